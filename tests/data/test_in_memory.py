"""Columns and data frames are read as the lists that they hold, in `fit` and in every call that takes a list."""

from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

import heddle
from heddle.checks import as_list, checked
from heddle.config.data import DataConfig
from heddle.config.tasks import ClassificationConfig, NextTokenConfig, RegressionConfig
from heddle.data.corpus import Part
from heddle.data.in_memory import InMemoryData, corpus_of, part_of_ids
from heddle.errors import HeddleError
from heddle.text import train_tokenizer

pandas = pytest.importorskip("pandas")

TEXTS, LABELS = ["the warp", "a weft", "the loom"], ["a", "b", "a"]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
FRAMES = {
    "rows": ROWS,
    "data frame": pandas.DataFrame(ROWS),
    "columns": {"text": TEXTS, "label": LABELS},
    "arrays": {"text": np.array(TEXTS), "label": np.array(LABELS)},
    "series": {"text": pandas.Series(TEXTS), "label": pandas.Categorical(LABELS)},
    "tuples": list(zip(TEXTS, LABELS, strict=True)),
    "array of rows": np.array(list(zip(TEXTS, LABELS, strict=True))),
    "array of objects": np.array(list(zip(TEXTS, LABELS, strict=True)), dtype=object),
}


def read(data: Any, task: Any = None) -> list[Any]:
    return list(InMemoryData(data, task or ClassificationConfig(), DataConfig()).examples())


@pytest.mark.parametrize("name", FRAMES)
def test_records_in_columns_are_records_in_rows(name: str) -> None:
    records = read(FRAMES[name])
    assert [(*example.written(), example.label) for example in records] == FRAMES["tuples"]


@pytest.mark.parametrize("texts", [pandas.Series(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), tuple(TEXTS)])
def test_texts_in_a_column_are_texts(texts: Any) -> None:
    data = InMemoryData(texts, NextTokenConfig(), DataConfig())
    assert [document.text for document in data.documents()] == TEXTS


def test_a_label_of_a_frame_may_be_a_numpy_number() -> None:
    frame = pandas.DataFrame({"text": TEXTS, "label": np.array([0.5, 1, 2], dtype=np.float32)})
    assert [float(str(example.label)) for example in read(frame, RegressionConfig())] == [0.5, 1.0, 2.0]


def test_a_label_may_be_a_tensor() -> None:
    assert [example.label for example in read(list(zip(TEXTS, torch.tensor([0, 1, 0]), strict=True)))] == [
        "0",
        "1",
        "0",
    ]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"text": TEXTS, "label": LABELS[:2]}, "columns must have equal lengths, not text 3, label 2"),
        (pandas.DataFrame({"text": [*TEXTS, None], "label": [*LABELS, "a"]}), "item 3"),
        (pandas.DataFrame({"text": TEXTS, "label": [0.5, np.nan, 1]}), "item 1"),
        ({"text": "abc", "label": "def"}, "a text, a list or a dataset is needed"),
    ],
    ids=["lengths", "missing text", "missing label", "strings"],
)
def test_what_is_missing_is_named(data: Any, line: str) -> None:
    with pytest.raises(HeddleError, match=line):
        list(read(data))


def test_a_list_may_be_a_column_anywhere() -> None:
    @checked()
    def count(names: list[str], *, ids: list[int] | None = None) -> tuple[Any, Any]:
        return names, ids

    columns = [pandas.Series(TEXTS), np.array(TEXTS), pyarrow.array(TEXTS), pyarrow.chunked_array([TEXTS])]
    assert [count(column)[0] for column in columns] == [TEXTS] * 4
    assert count(TEXTS, ids=np.array([1, 2]))[1] == [1, 2]
    with pytest.raises(HeddleError, match="count: names = "):
        count(np.array([1, 2]))
    assert as_list(heddle.build(heddle.sized(1, vocab_size=16, dim=16)).embedding.weight) is None


TOKENIZER = train_tokenizer("bytes", [], special=("<|endoftext|>",))


@pytest.mark.parametrize(
    ("lengths", "share", "halves"),
    [
        ([4, 6], 0.2, ([4, 4], [2])),
        ([4, 3, 3], 0.4, ([4, 2], [1, 3])),
        ([5, 5], 0.5, ([5], [5])),
        ([10], 0.2, ([8], [2])),
    ],
    ids=str,
)
def test_ids_are_cut_where_the_share_begins(lengths: list[int], share: float, halves: tuple[list[int], ...]) -> None:
    """Of ten ids the last ones are held out: the end of a document, which is cut, and whole ones behind it."""
    documents = np.split(np.arange(10), np.cumsum(lengths)[:-1])
    corpus = corpus_of(InMemoryData(documents, NextTokenConfig(), DataConfig()), share, TOKENIZER)
    for part, expected in zip((corpus.train, corpus.validation), halves, strict=True):
        assert isinstance(part, Part)
        mark = len(expected) > 1
        assert (np.diff(part.starts) - [*[int(mark)] * (len(expected) - 1), 0]).tolist() == expected
    assert isinstance(corpus.train, Part)
    assert isinstance(corpus.validation, Part)
    assert (corpus.train.begins, corpus.train.ends, corpus.validation.begins) == (True, False, False)
    assert (corpus.train.separator is None) == (sum(map(len, halves)) == 2)


def test_ids_that_are_none_are_refused_and_the_last_one_is_not() -> None:
    count = TOKENIZER.vocab_size
    assert part_of_ids([np.array([97, count - 1])], TOKENIZER).tokens.tolist() == [97, count - 1]
    for wrong in (count, -1):
        with pytest.raises(HeddleError, match=rf"^data: id {wrong} is out of range \(vocab size {count}\)"):
            part_of_ids([np.array([97, wrong])], TOKENIZER)


def test_an_end_of_text_among_ids_has_no_bytes() -> None:
    end = TOKENIZER.end_of_text
    part = part_of_ids([np.array([97, 98, end, 99]), np.array([100, end])], TOKENIZER)
    assert (part.bytes, part.characters, part.first_token_bytes) == (4, 4, 1)
    assert part.target_sizes.tolist() == [2, 0]


def test_a_tuple_may_have_an_optional_field_before_its_label() -> None:
    (alone, both) = read([("a", "x"), ("a", "b", "x")])
    assert (alone.texts, alone.label) == ({"text": "a"}, "x")
    assert (both.texts, both.label) == ({"text": "a", "pair": "b"}, "x")
