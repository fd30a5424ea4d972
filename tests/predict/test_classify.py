"""Classes and numbers: those that training scores, those of transformers, and the same alone and in a batch."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TextClassificationPipeline

import heddle
from heddle.config import (
    ClassificationConfig,
    MultiLabelConfig,
    RegressionConfig,
    TokenClassificationConfig,
    TransformerConfig,
)
from heddle.data.batch import IGNORED
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.errors import HeddleError
from heddle.model import build
from heddle.predict import TextClass, TextLabels, TextNumber, WordClasses, classify
from heddle.predict.rows import InputRow, evaluation, forward_batches
from heddle.tasks import DataSpec, ExampleIndices, make_task
from heddle.tasks.rows.framing import frame_of
from heddle.text import train_tokenizer
from tests.models import BOTH, ENCODERS, FEW, awake, name_of
from tests.tasks.labelled import NAMES, TOKENIZER, WORDS, model_for, records

from .published import published

TASKS = {
    "class": ClassificationConfig(),
    "labels": MultiLabelConfig(),
    "tags": TokenClassificationConfig(),
    "number": RegressionConfig(),
}
LONG = " ".join(WORDS * 2)
TEXTS = ["the warp is held", LONG, "thrown", "the weft is thrown over the warp", "and the weft"]


def random_texts(records: Records, name: str) -> list[str]:
    return [TOKENIZER.decode(records.columns[name][number].tolist()) for number in range(len(records))]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("kind", "pairs"), [("class", False), ("class", True), ("labels", True), ("tags", False), ("number", True)]
)
def test_what_predicts_is_what_training_scores(kind: str, pairs: bool, stack: str) -> None:
    """-log p of every label, from probabilities of texts, is the loss of the training task for the same records."""
    there = records(kind, 24, pairs=pairs, most=14)
    corpus = Corpus(None, there)
    settings = {"context": 16 if pairs else 10, **({stack: {"entry": {"types": 2}}} if pairs else {})}
    model = build(model_for(TASKS[kind], corpus, stack, **settings), seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3).add_(0.01)  # far from what a new model says of everything
    task = make_task(TASKS[kind], DataSpec(corpus, model.config, tokenizer=TOKENIZER))
    batch = task.batch(ExampleIndices(np.arange(len(there)), held_out=True))
    assert (batch.types is not None) == pairs
    with evaluation(model):
        losses = task.objective(model).by_row(batch)["loss"].tolist()
    texts: list[Any] = random_texts(there, "text")
    if pairs:
        texts = list(zip(texts, random_texts(there, "pair"), strict=True))
    predictions = classify(model, TOKENIZER, texts)
    assert any(each.cut for each in predictions)
    labels = there.columns["label"]
    for number, (each, loss) in enumerate(zip(predictions, losses, strict=True)):
        right = labels[number].tolist()
        if isinstance(each, TextNumber):
            assert (each.number - right[0]) ** 2 == pytest.approx(loss, rel=1e-4)
        elif isinstance(each, TextLabels):
            shares = [abs((place not in right) - share) for place, share in enumerate(each.probabilities.values())]
            assert -np.log(shares).mean() == pytest.approx(loss, rel=1e-4)
            assert each.labels == tuple(name for name, share in each.probabilities.items() if share > 0.5)
        elif isinstance(each, TextClass):
            assert -np.log(each.probabilities[NAMES[right[0]]]) == pytest.approx(loss, rel=1e-4)
            assert each.label == max(each.probabilities, key=lambda name: each.probabilities[name])
        else:
            names = corpus.validation.classes if isinstance(corpus.validation, Records) else ()
            pieces = zip(each.words, right, strict=True)
            scored = [-np.log(word.probabilities[names[label]]) for word, label in pieces if word.label is not None]
            assert sum(scored) == pytest.approx(loss, rel=1e-4)
            assert len(scored) == int((batch.targets[number] != IGNORED).sum())


CONFIGS = [*ENCODERS, *BOTH, *FEW]


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_a_row_is_the_same_alone_and_in_a_batch(config: TransformerConfig) -> None:
    """Whatever the model's layers are: the hidden vectors of every real token, in fp32."""
    model = awake(config, torch.float32)
    draw = np.random.default_rng(0)
    rows = [InputRow(draw.integers(0, model.vocab_size, size).tolist(), size, False) for size in (5, 1, 9, 2, 9)]
    with evaluation(model):
        together: dict[int, torch.Tensor] = {}
        for numbers, hidden, _ in forward_batches(model, rows):
            together |= dict(zip(numbers, hidden, strict=True))
        for number, row in enumerate(rows):
            ((_, alone, _),) = forward_batches(model, [row])
            torch.testing.assert_close(together[number][: len(row.ids)], alone[0], rtol=1e-4, atol=1e-5)


def test_batches_are_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.predict.rows.TOKENS", {"cpu": 12})
    model = build(model_for(TASKS["class"], Corpus(records("class"))))
    sizes = [4, 12, 3, 20, 4, 1]
    done: list[tuple[int, int]] = []
    rows = [InputRow([1] * min(size, 16), 16, False) for size in sizes]
    with evaluation(model):
        widths = [
            (numbers, hidden.shape[1])
            for numbers, hidden, _ in forward_batches(model, rows, lambda *so: done.append(so))
        ]
    assert widths == [([3], 16), ([1], 12), ([0, 4, 2], 4), ([5], 1)]
    assert done == [(1, 6), (2, 6), (5, 6), (6, 6)]


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_at_the_same_time_are_without_gradients(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.predict.rows.TOKENS", {"cpu": 12})
    model, before = awake(CONFIGS[0], torch.float32), torch.get_num_threads()
    rows = [InputRow(list(range(1, size)), size - 1, False) for size in (5, 8, 9, 3, 9)]
    try:
        torch.set_num_threads(threads)
        with evaluation(model):
            for numbers, hidden, _ in forward_batches(model, rows):
                assert not hidden.requires_grad
                for number, vectors in zip(numbers, hidden, strict=True):
                    ((_, alone, _),) = forward_batches(model, [rows[number]])
                    torch.testing.assert_close(vectors[: len(rows[number].ids)], alone[0], rtol=1e-4, atol=1e-5)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_texts_in_a_batch_have_the_probabilities_that_they_have_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(model_for(TASKS["class"], Corpus(records("class"))), seed=3).train()
    together = classify(model, TOKENIZER, TEXTS)
    assert model.training
    for text, each in zip(TEXTS, together, strict=True):
        (alone,) = classify(model, TOKENIZER, [text])
        assert isinstance(each, TextClass)
        assert isinstance(alone, TextClass)
        assert each.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
    assert [each.cut for each in together] == [False, True, False, False, False]
    with pytest.raises(FrozenInstanceError):
        together[0].label = "hot"  # type: ignore[misc, union-attr]
    assert classify(model, TOKENIZER, []) == []


def test_a_published_classifier_says_what_transformers_says(tmp_path: Path) -> None:
    labels = {"id2label": {0: "cold", 1: "warm", 2: "hot"}, "label2id": {"cold": 0, "warm": 1, "hot": 2}}
    model, tokenizer, reference, cut = published(tmp_path, "BertForSequenceClassification", **labels)
    items: list[Any] = ["the warps", ("the weft is held", "and thrown over"), "loom", ("the", "warp and the weft over")]
    for item, each in zip(items, classify(model, tokenizer, items), strict=True):
        texts = item if isinstance(item, tuple) else (item,)
        with torch.no_grad():
            expected = (
                reference(**cut(*texts, return_tensors="pt", return_token_type_ids=True)).logits.softmax(-1)[0].tolist()
            )
        assert isinstance(each, TextClass)
        assert list(each.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert list(each.probabilities) == ["cold", "warm", "hot"]
        assert each.probability == max(each.probabilities.values())


def test_a_published_model_of_several_labels_says_what_transformers_pipeline_says(tmp_path: Path) -> None:
    """Sigmoids, not a softmax; the threshold chooses, and travels with the model."""
    names = {0: "cold", 1: "warm", 2: "hot"}
    means = {"id2label": names, "problem_type": "multi_label_classification"}
    model, tokenizer, reference, cut = published(tmp_path, "BertForSequenceClassification", **means)
    pipe: Any = TextClassificationPipeline(model=reference, tokenizer=cut, top_k=None)
    texts = ["the warps", "loom", "the weft is held"]
    predictions = classify(model, tokenizer, texts)
    chosen = []
    for each, expected in zip(predictions, pipe(texts), strict=True):
        assert isinstance(each, TextLabels)
        scores_by_label = {one["label"]: one["score"] for one in expected}
        assert dict(each.probabilities) == pytest.approx(scores_by_label, abs=1e-6)
        assert list(each.probabilities) == list(names.values())
        assert set(each.labels) == {name for name, share in scores_by_label.items() if share > 0.5}
        chosen.append(len(each.labels))
    assert sum(predictions[0].probabilities.values()) != pytest.approx(1.0, abs=1e-2)  # type: ignore[union-attr]
    for threshold, counts in ((0.0, [3, 3, 3]), (1.0, [0, 0, 0]), (0.5, chosen), (None, chosen)):
        assert [len(each.labels) for each in classify(model, tokenizer, texts, threshold=threshold)] == counts  # type: ignore[union-attr]
    eager = build(model.config.override({"head.threshold": 0.999}))
    eager.load_state_dict(model.state_dict())
    assert sum(len(each.labels) for each in classify(eager, tokenizer, texts)) < sum(chosen)  # type: ignore[union-attr]
    other = build(model_for(TASKS["class"], Corpus(records("class"))))
    with pytest.raises(HeddleError, match=r"threshold = 0.5 is for multi-label models, and this model is not one"):
        classify(other, TOKENIZER, ["warp"], threshold=0.5)


def test_published_tags_are_those_of_transformers(tmp_path: Path) -> None:
    model, tokenizer, reference, cut = published(tmp_path, "BertForTokenClassification", num_labels=4)
    items: list[Any] = ["the wefts is warped", ["loom", "helded"]]
    for item, each in zip(items, classify(model, tokenizer, items), strict=True):
        words = item.split() if isinstance(item, str) else item
        encoded = cut([words], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            expected = reference(**encoded).logits.softmax(-1)[0]
        places = [encoded.word_ids().index(number) for number in range(len(words))]
        assert isinstance(each, WordClasses)
        assert [word.word for word in each.words] == words
        for word, place in zip(each.words, places, strict=True):
            assert [*word.probabilities.values()] == pytest.approx(expected[place].tolist(), abs=1e-5)
            assert word.label == str(int(expected[place].argmax()))


def test_words_that_do_not_fit_have_no_class() -> None:
    model = build(model_for(TASKS["tags"], Corpus(records("tags")), context=6))
    (prediction,) = classify(model, TOKENIZER, ["the warp is held and the weft"])
    assert isinstance(prediction, WordClasses)
    assert [word.label is None for word in prediction.words] == [False] * 4 + [True] * 3
    assert prediction.words[-1].probability is None
    assert prediction.cut


@pytest.mark.parametrize(
    ("single", "pair", "marks"),
    [
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1", ((2,), (3, 3), (3,))),  # RoBERTa's
        ("$A [SEP]", "$A [SEP] $B:1 [SEP]:1", ((), (3,), (3,))),  # T5's
        ("[CLS] $A", "[CLS] $A [CLS] $B:1", ((2,), (2,), ())),  # Llama's
    ],
)
def test_a_published_tokenizer_frames_texts_as_it_says(
    tmp_path: Path, single: str, pair: str, marks: tuple[tuple[int, ...], ...]
) -> None:
    """Training frames them so, too, since there is one function."""
    model, tokenizer, _, cut = published(tmp_path, "BertForSequenceClassification", (single, pair))
    frame = frame_of(DataSpec(Corpus(), model.config, tokenizer=tokenizer), 2)
    assert (frame.begin, frame.between, frame.end) == marks
    texts = ("the warp", "is held over")
    ids = [Column.of([tokenizer.encode(text)]) for text in texts]
    row, first = frame.row(Records({"text": ids[0], "pair": ids[1]}), 0)
    assert row == cut(*texts)["input_ids"]
    assert row[first:] == [*tokenizer.encode(texts[1]), *marks[2]]
    assert frame.row(Records({"text": ids[0]}), 0)[0] == cut(texts[0])["input_ids"]


def test_a_blank_text_has_a_row_and_no_class_and_a_warning_says_so() -> None:
    model = build(model_for(TASKS["class"], Corpus(records("class"))))
    plain = classify(model, TOKENIZER, ["warp", "weft over"])
    with pytest.warns(UserWarning, match="classify: 2 texts of 4 empty or only whitespace: the result is None"):
        predictions = classify(model, TOKENIZER, ["", "warp", " \n", "weft over"])
    assert predictions == [None, plain[0], None, plain[1]]
    with pytest.warns(UserWarning, match="1 text of 2"):  # training leaves out a pair if one of its texts is blank
        pair, missing = classify(model, TOKENIZER, [("warp", "weft"), ("warp", "")])
    assert pair is not None
    assert missing is None
    with pytest.warns(UserWarning, match="1 text of 3"), pytest.raises(HeddleError, match="item 2 is a NoneType"):
        classify(model, TOKENIZER, ["", "warp", None])
    with pytest.warns(UserWarning, match="classify: 1 text"):
        assert classify(model, TOKENIZER, [" "]) == [None]


def test_what_cannot_be_classified_is_refused() -> None:
    model = build(model_for(TASKS["class"], Corpus(records("class"))))
    for texts, message in (
        (["warp", 3], "item 1 is an int, but must be a text or a pair of texts"),
        ([["warp", " ", "x"]], "item 0 has 3 parts"),
        ([("warp", "weft", "loom")], "item 0 has 3 parts"),
        (["warp", None], "item 1 is a NoneType"),
    ):
        with pytest.raises(HeddleError, match=message):
            classify(model, TOKENIZER, texts)
    for head, message in (("language", "predicts tokens"), ("embedding", "returns vectors"), ("none", "has no head")):
        other = build(TransformerConfig.of({**model.config.to_dict(), "head": {"kind": head}}))
        with pytest.raises(HeddleError, match=f"this model {message}, so it cannot classify; heddle train"):
            heddle.classify(other, TOKENIZER, ["warp"])
    larger = train_tokenizer("bytes", [])
    with pytest.raises(HeddleError, match="use the model's own tokenizer"):
        classify(model, larger, ["warp"])
