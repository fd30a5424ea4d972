"""The store of records: what was written comes back, nothing foreign or damaged is opened."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.data import IGNORED, RecordStore, TokenStore, build_records, build_store, open_store, records_of
from heddle.data.encode import Encoder
from heddle.data.record_stats import RecordStats, describe_examples
from heddle.data.sources.documents import Document
from heddle.data.sources.examples import Example
from heddle.text import train_tokenizer
from tests.refusing import refusal

BYTES = train_tokenizer("bytes", [])
WORDS = ("EU", "rejects", "German", "do", "n't", ".", "(", "12,000", "état", "I", "'m")


def pairs(count: int) -> list[Example]:
    return [Example({"source": f"one {n}", "target": f"eins {n * n}"}, None, f"a:{n}") for n in range(count)]


def labelled(labels: Sequence[str]) -> list[Example]:
    return [Example({"text": f"text {n}"}, label, f"a:{n}") for n, label in enumerate(labels)]


def test_records_come_back_in_order_and_each_in_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.data.record_store.BATCH", 7)
    examples = pairs(100)
    store = build_records(tmp_path / "store", examples, BYTES, 0.2)
    tally = RecordStats(0.2)
    parts = [tally.add(example) for example in examples]
    for part, records in (("train", store.train), ("validation", store.validation)):
        members = [example for example, its in zip(examples, parts, strict=True) if its == part]
        assert len(records) == len(members) > 5
        for name, column in records.columns.items():
            assert isinstance(column.values, np.memmap)
            assert [BYTES.decode(column[n].tolist()) for n in range(len(members))] == [
                each.texts[name] for each in members
            ]
        assert store.tokens(part) == sum(len(text) for each in members for text in each.written())
    assert store.corpus.train is store.train
    store.verify()
    assert isinstance(open_store(tmp_path / "store"), RecordStore)
    build_store(tmp_path / "texts", [Document("some text", "a")], BYTES, 0.5, end_of_text=False)
    assert isinstance(open_store(tmp_path / "texts"), TokenStore)


def test_classes_are_those_of_the_training_part(tmp_path: Path) -> None:
    store = build_records(tmp_path / "store", labelled([str(n % 11) for n in range(300)]), BYTES, 0.2)
    assert store.train.classes == tuple(map(str, range(11)))
    for records in (store.train, store.validation):
        texts, labels = records.columns["text"], records.columns["label"]
        for n in range(len(records)):
            assert labels[n].tolist() == [int(BYTES.decode(texts[n].tolist()).split()[1]) % 11]
    other = records_of(labelled(["10", "9"]), BYTES, classes=store.train.classes)
    assert other.columns["label"].values.tolist() == [10, 9]
    message = refusal(lambda: records_of(labelled(["eleven"]), BYTES, classes=store.train.classes))
    assert message == "a:0: the label 'eleven' is not in the training part, which has: 0, 1, 2, 3, 4, 5, 6, 7, …"


def test_numbers_are_kept_as_they_are(tmp_path: Path) -> None:
    values = [0.1 + n / 7 for n in range(50)]
    store = build_records(tmp_path / "store", labelled(list(map(repr, values))), BYTES, 0.2, "numbers")
    assert store.train.classes == ()
    labels = [*store.train.columns["label"].values.tolist(), *store.validation.columns["label"].values.tolist()]
    assert sorted(labels) == values


TOKENIZERS = {
    kind: train_tokenizer(kind, [" ".join(WORDS * 3)], size)
    for kind, size in (
        ("bytes", None),
        ("characters", None),
        ("words", None),
        ("bpe", 290),
        ("wordpiece", 60),
        ("unigram", 300),
    )
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
def test_a_words_label_is_at_its_first_id(kind: str, words: list[str]) -> None:
    tokenizer = TOKENIZERS[kind]
    names = [str(n) for n in range(len(words))]
    rows = Encoder(tokenizer, "tokens", names).rows([Example({"text": tuple(words)}, tuple(names), "a")])
    (ids,), (labels,) = rows["text"], rows["label"]
    whole = tokenizer.encode(" ".join(words))
    assert list(ids) == whole  # the ids of the text as a reader has it
    places = [place for place, label in enumerate(labels) if label != IGNORED]
    assert [labels[place] for place in places] == list(range(len(words)))
    # What is before the label spells the words before it.
    if kind in ("bytes", "bpe", "characters"):
        for n, place in enumerate(places):
            assert tokenizer.decode(whole[:place]).split() == words[:n]


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "store"
    store = build_records(place, pairs(60), BYTES, 0.2)
    file = place / "train.target.values"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    assert f"{file}: damaged" in refusal(store.verify)
    store.verify("validation")
    file.write_bytes(data[:-2])
    assert "build the store again" in refusal(lambda: open_store(place))
    file.unlink()
    assert "No such file" in refusal(lambda: open_store(place))
    meta = json.loads((place / "meta.json").read_text())
    for broken in ({**meta, "version": 9}, {**meta, "columns": 3}, {**meta, "train": {}}):
        (place / "meta.json").write_text(json.dumps(broken))
        assert "build the store again" in refusal(lambda: open_store(place))
    (place / "meta.json").unlink()
    assert "not a token store" in refusal(lambda: open_store(place))


def test_records_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    described = describe_examples(pairs(60), RecordStats(0.2))
    changed = [*pairs(59), Example({"source": "one 59", "target": "other"}, None, "a:59")]
    build: Any = lambda examples: build_records(tmp_path / "s", examples, BYTES, 0.2, described=described)  # noqa: E731
    assert "have changed since they were first read" in refusal(lambda: build(changed))
    assert not (tmp_path / "s").exists()
    assert len(build(pairs(60)).train) > 30
    assert "already exists" in refusal(lambda: build(pairs(60)))


def test_a_tokenizer_with_ids_that_it_does_not_have(tmp_path: Path) -> None:
    class Wrong:
        vocab_size, end_of_text = 9, None
        encode_batch = staticmethod(BYTES.encode_batch)
        token_bytes = staticmethod(BYTES.token_bytes)
        fingerprint = staticmethod(BYTES.fingerprint)

    message = refusal(lambda: build_records(tmp_path / "s", pairs(60), Wrong(), 0.2))
    assert "which is out of range (vocab size 9)" in message
