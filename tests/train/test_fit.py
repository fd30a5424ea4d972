"""`heddle.fit`: the losses of a run and of a plain loop, every kind of data, and what it refuses."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import heddle
from heddle.config import DataConfig, ModelChoice, RunConfig, TrainConfig
from heddle.config.tasks import (
    ClassificationConfig,
    NextTokenConfig,
    RegressionConfig,
    TokenClassificationConfig,
    TranslationConfig,
)
from heddle.data import Batch, next_token_batch, windows
from heddle.data.in_memory import InMemoryData, corpus_of
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn import Layout
from heddle.runs import Trainer, prepare
from heddle.train import History, Report, training
from heddle.train.gradient_norms import GradientNorms
from tests import refusing

TEXT = "the quick brown fox jumps over the lazy dog. " * 20
BYTES = heddle.train_tokenizer("bytes", [])
SPECIAL = ("<|endoftext|>", "<start_translation>", "[CLS]", "[SEP]", "[MASK]")
LETTERS = heddle.train_tokenizer("bytes", [], special=SPECIAL)
LABELLED = [(f"the {'warp' if number % 2 else 'weft'} is held {number}", "ab"[number % 2]) for number in range(24)]
TAGGED = [(["the", "warp", "holds"], ["O", "B", "O"]), ("a weft", "O B")] * 6
PAIRS = [("the warp", f"weft {number}") for number in range(16)]
SMALL = ModelChoice.of({"dim": 16, "heads": 2, "depth": 1, "context": 24})
QUIET: dict[str, Any] = {"progress": False, "batch": 4}


def decoder(seed: int = 0, **more: Any) -> Transformer:
    return heddle.build(heddle.sized(1, vocab_size=257, context=16, dim=16).override(more), seed=seed)


def suited(task: Any, classes: tuple[str, ...] = ()) -> Transformer:
    return heddle.build(SMALL.resolve(LETTERS.vocab_size, 1, 24, task, classes=classes))


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_same_twice() -> None:
    models = [decoder(), decoder()]
    histories = [heddle.fit(model, BYTES, TEXT, steps=4, config=TrainConfig(seed=3), **QUIET) for model in models]
    assert histories[0].losses == histories[1].losses
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value), name
    assert not models[0].training


def ring() -> np.ndarray[Any, Any]:
    """The ids of the text, behind what starts a text, which also ends it."""
    return np.array([BYTES.end_of_text, *BYTES.encode(TEXT)])


def windows_of(ids: np.ndarray[Any, Any], step: int) -> np.ndarray[Any, Any]:
    """The rows of a step, each with the id after it."""
    starts = windows(len(ids), 16, 0, step, 4, ring=True)
    return np.stack([ids.take(range(start, start + 17), mode="wrap") for start in starts])


def test_a_plain_loop_has_these_losses() -> None:
    """torch's AdamW, cross-entropy and clipping, over the windows that the first epoch reads."""
    train = TrainConfig.of({"optimizer": "adamw", "weight_decay": 0.0, "warmup": 2, "clip": 0.5})
    model, plain = decoder(), decoder()
    actual = heddle.fit(model, BYTES, TEXT, 5, config=train, learning_rate=1e-2, **QUIET).losses
    ids = ring()
    optimizer = torch.optim.AdamW(plain.parameters(), 1e-2, betas=(0.9, 0.99), eps=1e-10, weight_decay=0.0)
    losses = []
    for step in range(5):
        rows = torch.tensor(windows_of(ids, step))
        scores = plain.logits(plain(rows[:, :-1]).hidden)
        loss = cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        # Two steps of warmup, then linearly down: no rate is zero.
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 / 2, 1, 1, 2 / 3, 1 / 3)[step]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert actual == pytest.approx(losses, abs=1e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, atol=1e-4, rtol=0)


RUN = {"steps": 8, "batch": 4, "precision": "fp32", "compile": "off", "products": "torch", "evaluate_every": 4}


@pytest.mark.parametrize(
    ("task", "more"),
    [("next_token", {"ema": 0.9, "accumulate": 2}), ("classification", {"label_smoothing": 0.1}), ("translation", {})],
)
def test_a_run_has_these_losses(tmp_path: Path, quick: None, task: str, more: dict[str, Any]) -> None:
    """Bit for bit: every number that the run writes down, and the weights."""
    rows: Any = {"next_token": [TEXT], "classification": LABELLED, "translation": PAIRS}[task]
    fields = {"next_token": ("text",), "classification": ("text", "label"), "translation": ("source", "target")}[task]
    file = tmp_path / "data.jsonl"
    file.write_text(
        "".join(
            json.dumps(dict(zip(fields, [row] if task == "next_token" else row, strict=True))) + "\n" for row in rows
        )
    )
    LETTERS.save(tmp_path / "letters.json")
    data = {"sources": [str(file)], "tokenizer": str(tmp_path / "letters.json"), "validation": 0.3}
    settings: dict[str, Any] = {
        "data": data,
        "model": SMALL,
        "task": task,
        "train": {**RUN, **more, "threads": 1, "dropout": 0.1},
    }
    settings["train"].pop("dropout")
    settings["model"] = {**SMALL.to_dict(), "dropout": 0.1}
    prepare(RunConfig.of(settings), tmp_path / "run")
    trainer = Trainer(tmp_path / "run")
    model = heddle.build(trainer.session.run.config.model, seed=0)
    evaluation = trainer.run()
    history = heddle.fit(model, LETTERS, rows, task=task, validation=0.3, threads=1, progress=False, **RUN, **more)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [{"step": report.step, **report.values} for report in history.reports] == lines
    assert history.evaluation == evaluation
    published = heddle.load(tmp_path / "run", device="cpu").model
    for name, value in weights(published).items():
        assert torch.equal(model.state_dict()[name], value), name
    assert model.config == published.config


class Table:
    """A table as the library `datasets` has it: rows by number, names of columns, and names of classes."""

    def __init__(self, rows: list[dict[str, Any]], names: Mapping[str, list[str]]) -> None:
        self.rows, self.column_names = rows, list(rows[0])
        self.features = {name: type("ClassLabel", (), {"names": names.get(name)})() for name in rows[0]}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


def losses(data: Any, model: Transformer, task: Any = None, tokenizer: Any = LETTERS, **more: Any) -> list[float]:
    return heddle.fit(model, tokenizer, data, 2, task=task, **QUIET, **more).losses


def test_every_form_of_a_text_is_the_same_text() -> None:
    lines = [TEXT[:300], TEXT[300:], ""]
    ids = [np.array(BYTES.encode(line)) for line in lines]
    forms: list[Any] = [
        lines,
        tuple(lines),
        (line for line in lines),
        ids,
        [torch.tensor(each) for each in ids],
        [{"text": line} for line in lines],
        Table([{"text": line} for line in lines], {}),
    ]
    results = [losses(form, decoder(), tokenizer=BYTES, validation=TEXT) for form in forms]
    assert all(each == results[0] for each in results)
    whole = losses(TEXT, decoder(), tokenizer=BYTES)
    assert losses(np.array(BYTES.encode(TEXT), np.uint16), decoder(), tokenizer=BYTES) == whole
    assert losses([{"body": TEXT}], decoder(), tokenizer=BYTES, columns={"text": "body"}) == whole


def test_documents_that_are_ids_stay_documents_in_both_parts() -> None:
    documents = [np.array(BYTES.encode(TEXT[start : start + 40])) for start in range(0, 400, 40)]
    data = InMemoryData(documents, NextTokenConfig(), DataConfig())
    corpus = corpus_of(data, 0.25, BYTES)
    ends = [(part.tokens == BYTES.end_of_text).sum() for part in (corpus.train, corpus.validation)]
    assert ends == [7, 2], "between eight and three documents, one of which is divided"
    both = np.concatenate([part.tokens for part in (corpus.train, corpus.validation)])
    assert np.array_equal(both[both != BYTES.end_of_text], np.concatenate(documents))


def test_the_clock_runs_until_all_of_a_step_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has done a step, its update included, when the last numbers of it are read."""
    passed, by_layer = [0.0], GradientNorms.by_layer
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def wait(norms: GradientNorms) -> dict[str, float]:
        passed[0] += 4.0
        return by_layer(norms)

    monkeypatch.setattr(GradientNorms, "by_layer", wait)
    speeds: list[Mapping[str, float]] = []
    heddle.fit(decoder(), BYTES, TEXT, steps=2, readers=[lambda report: speeds.append(report.speed)], **QUIET)
    times = [{name: value for name, value in each.items() if name != "memory"} for each in speeds]
    assert times == [{"seconds": 4.0, "tokens_per_second": 4 * 16 / 4.0, "data_seconds": 0.0}] * 2
    assert all(each["memory"] > 2**20 for each in speeds)


def test_a_step_says_how_long_it_waited_for_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, batch, by_layer = [0.0], training.Training.batch, GradientNorms.by_layer
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: passed[0]))

    def wait(seconds: float, inner: Any) -> Any:
        def waited(self: Any) -> Any:
            passed[0] += seconds
            return inner(self)

        return waited

    monkeypatch.setattr(training.Training, "batch", wait(1.0, batch))
    monkeypatch.setattr(GradientNorms, "by_layer", wait(4.0, by_layer))
    speeds: list[Mapping[str, float]] = []
    heddle.fit(decoder(), BYTES, TEXT, steps=2, readers=[lambda report: speeds.append(report.speed)], **QUIET)
    assert [(each["data_seconds"], each["seconds"]) for each in speeds] == [(1.0, 5.0)] * 2


def test_every_form_of_labels_is_the_same_labels() -> None:
    names = ("a", "b")
    rows = [{"text": text, "label": label} for text, label in LABELLED]
    numbered = Table([{**row, "label": names.index(row["label"])} for row in rows], {"label": list(names)})
    renamed = [{"review": text, "stars": label} for text, label in LABELLED]
    task = ClassificationConfig()
    model = suited(task)
    results = losses(LABELLED, model, task)
    assert model.config.head.names == names
    for form in (rows, numbered):
        model = suited(task)
        assert losses(form, model, "classification") == results
        assert model.config.head.names == names
    columns = {"text": "review", "label": "stars"}
    assert losses(renamed, suited(task), task, columns=columns) == results
    number = RegressionConfig()
    shares = [(text, len(text) / 20) for text, _ in LABELLED]
    plain = losses(shares, suited(number), number)
    assert losses([(text, np.float64(share)) for text, share in shares], suited(number), number) == plain


def test_every_form_of_tags_is_the_same_tags() -> None:
    task = TokenClassificationConfig()
    listed = [[("the", "O"), ("warp", "B"), ("holds", "O")], [("a", "O"), ("weft", "B")]] * 6
    rows = [{"tokens": ["the", "warp", "holds"], "tags": [0, 1, 0]}, {"tokens": ["a", "weft"], "tags": [0, 1]}] * 6
    table = Table(rows, {"tags": ["O", "B"]})
    columns = {"text": "tokens", "label": "tags"}
    results = losses(TAGGED, suited(task), task)
    assert losses(listed, suited(task), task) == results
    assert losses(table, suited(task), task, columns=columns) == results


def test_pairs_and_their_share() -> None:
    task = TranslationConfig()
    data = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    columns = {"source": "translation.en", "target": "translation.de"}
    history = heddle.fit(suited(task), LETTERS, PAIRS, 4, task=task, validation=0.4, evaluate_every=2, **QUIET)
    again = heddle.fit(suited(task), LETTERS, data, 4, task, 0.4, columns=columns, evaluate_every=2, **QUIET)
    assert history.losses == again.losses
    assert (len(history.losses), len(history.validation)) == (4, 2)
    assert history.evaluation is not None
    assert history.evaluation.loss == again.evaluation.loss


class Loader:
    """What can be read again and again, as a `DataLoader`."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def test_batches_of_ones_own() -> None:
    """Those that a text gives, one after the other, give its losses."""
    batches = [next_token_batch(windows_of(ring(), step)) for step in range(4)]
    results = heddle.fit(decoder(), BYTES, TEXT, 4, **QUIET).losses
    forms: list[Callable[[], Any]] = [lambda: batches, lambda: iter(batches), lambda: Loader(batches)]
    for form in forms:
        assert heddle.fit(decoder(), None, form(), 4, progress=False).losses == results
    twice = heddle.fit(decoder(), None, batches[:2], 4, validation=batches[2:], progress=False)
    assert twice.losses[:2] == results[:2]
    assert twice.evaluation is not None
    assert twice.evaluation.tokens == 2 * 4 * 16
    with pytest.raises(HeddleError, match="data: ended after 2 of the batches"):
        heddle.fit(decoder(), None, iter(batches[:2]), 4, progress=False)
    with pytest.raises(HeddleError, match="batch = 3 has no effect on batches"):
        heddle.fit(decoder(), None, batches, 4, batch=3)


def test_readers_hear_everything_and_patience_keeps_the_best() -> None:
    reports: list[Report] = []
    # A constant, far too high rate: the validation loss rises after a while.
    settings = {"schedule": "constant", "matrix_learning_rate": 0.3, "evaluate_every": 1, "patience": 2}
    model = decoder()
    history = heddle.fit(
        model,
        BYTES,
        TEXT,
        60,
        validation="a dog and a fox lazily jump " * 4,
        readers=[reports.append],
        **settings,
        **QUIET,
    )
    assert reports == history.reports
    best = min(range(len(history.validation)), key=history.validation.__getitem__)
    assert history.weights is not None
    assert (history.weights.kind, history.weights.steps) == ("best", (best + 1,))
    assert len(history.losses) == best + 3 < 60
    again = decoder()
    heddle.fit(
        again,
        BYTES,
        TEXT,
        60,
        readers=[stopping(best + 1, again)],
        **{**settings, "patience": None, "evaluate_every": None},
        **QUIET,
    )
    for name, value in SAVED.pop().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert "validation loss" in repr(history)


SAVED: list[dict[str, torch.Tensor]] = []


def stopping(step: int, model: Transformer) -> Callable[[Report], None]:
    """A reader that copies the weights after a step."""

    def read(report: Report) -> None:
        if report.step == step:
            SAVED.append(weights(model))

    return read


def test_the_model_is_left_in_order() -> None:
    """In fp32 and evaluation mode, with the masters of bf16, and the gradients wanted as before; after an error too."""
    model = decoder()
    groups = [{"parameters": "embedding.weight", "frozen": True}]
    before = weights(model)
    heddle.fit(model, BYTES, TEXT, 2, precision="bf16", groups=groups, learning_rate=1e-6, **QUIET)
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    assert torch.equal(model.embedding.weight, before["embedding.weight"])
    matrix = next(name for name, value in before.items() if name.startswith("decoder") and value.dim() == 2)
    moved = model.state_dict()[matrix] - before[matrix]
    assert moved.abs().max() > 0
    assert not torch.equal(model.state_dict()[matrix], model.state_dict()[matrix].bfloat16().float())
    with pytest.raises(HeddleError, match=r"step \d+: (loss|norm of the gradient) is .*lower learning_rate"):
        heddle.fit(model, BYTES, TEXT, steps=9, learning_rate=1e30, optimizer="adamw", precision="bf16", **QUIET)
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert not model.training
    assert all(each.grad is None for each in model.parameters())


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (PAIRS, {}, r"data: next_token needs a text, texts or arrays of ids; item 0 is a tuple"),
    ([*PAIRS[:3], "warp"], {"task": "translation"}, r"translation needs pairs \(source, target\); item 3 is a str"),
    (TEXT, {"task": "translation"}, r"translation needs pairs \(source, target\); it is a str"),
    ([("a", "b", "c", "d")], {"task": "classification"}, r"needs pairs \(text, label\); item 0 is a tuple"),
    ([np.arange(9)], {"task": "classification"}, r"needs pairs \(text, label\); it is an array"),
    ([("a", None)], {"task": "classification"}, r"item 0: the label is null"),
    ([{"txt": "a", "label": 1}], {"task": "classification"}, r"item 0: no column 'text'; there are: txt, label"),
    ([("a", "x")], {"task": "regression"}, r"item 0: the label 'x' is not a finite number"),
    ([(["a", "b"], ["O"])], {"task": "token_classification"}, r"item 0: 2 words, but 1 label"),
    ([], {}, "data: empty; the task next_token needs a text"),
    (np.ones(9), {}, r"ids are whole numbers in one dimension, not float64 of shape \[9\]"),
    (np.arange(255, 275), {}, r"id 261 is out of range \(vocab size 261\)"),
    ({"text": TEXT}, {}, "a text, a list or a dataset is needed, not a dict"),
    (LABELLED, {"task": "clasification"}, "clasification"),
    (LABELLED, {"task": "classification", "columns": {"label": "stars", "source": "x"}}, "source = 'x' names a column"),
    (TEXT, {"columns": {"words": "x"}}, "'words' is not a field"),
    (TEXT, {"minutes": 2.0}, "steps = 2 and minutes = 2 all set the length of training"),
    (TEXT, {"average": 2}, "fit does not know average"),
    (TEXT, {"vectors": "v.txt"}, "fit does not know vectors: leave it out; call heddle.convert.load_vectors before"),
    (TEXT, {"patience": 2}, "patience = 2 needs validation data: give validation"),
    (TEXT, {"evaluate_every": 2}, "evaluate_every = 2 needs validation data: give validation"),
    (TEXT, {"patience": 2, "validation": 0.5, "evaluate_every": 1}, "patience = 2: the run has 2 evaluations"),
    (TEXT, {"validation": 1.5}, "validation = 1.5: must be data, or a share above 0 and below 1"),
    (TEXT, {"steps": None}, "steps = None: must be at least 1"),
    (TEXT, {"learning_rat": 1.0}, "learning_rat"),
    (TEXT, {"batch": 3, "accumulate": 2}, "batch = 3 cannot be split into accumulate = 2"),
    (LABELLED, {"task": "regression", "label_smoothing": 0.1}, "label_smoothing = 0.1 has no effect"),
]


@pytest.mark.parametrize(("data", "settings", "line"), REFUSED, ids=[line[:40] for _, _, line in REFUSED])
def test_what_cannot_work_is_refused(data: Any, settings: dict[str, Any], line: str) -> None:
    arguments = {"steps": 2, "progress": False, **settings}
    model = MODELS.get(arguments.get("task"), MODELS["next_token"])
    assert_matches(refusing.refusal(lambda: heddle.fit(model, LETTERS, data, **arguments)), line)


MODELS = {
    "next_token": heddle.build(SMALL.resolve(LETTERS.vocab_size, 1, 24)),
    "translation": suited(TranslationConfig()),
    "classification": suited(ClassificationConfig()),
    "token_classification": suited(TokenClassificationConfig()),
    "regression": suited(RegressionConfig()),
}


def assert_matches(message: str, line: str) -> None:
    with pytest.raises(HeddleError, match=line):
        raise HeddleError(message)


def test_the_models_classes_are_the_datas() -> None:
    three = suited(ClassificationConfig(), ("x", "y", "z"))
    line = refusing.refusal(lambda: losses(LABELLED, three, "classification"))
    assert "the label 'a' is not in the training part, which has: x, y, z" in line
    unnamed = heddle.build(three.config.override({"head.names": []}))
    line = refusing.refusal(lambda: losses(LABELLED, unnamed, "classification"))
    assert line == "the records have the classes a, b, but the model has 3 of them"


def test_a_short_text_is_refused() -> None:
    line = "context = 16, but training has 16 tokens: set context=15 or less, or give more text"
    with pytest.raises(HeddleError, match=line):
        heddle.fit(decoder(), BYTES, TEXT[:16], steps=1)


def test_curves() -> None:
    pytest.importorskip("matplotlib")
    history = heddle.fit(decoder(), BYTES, TEXT, 4, validation=0.3, **QUIET)
    assert isinstance(history, History)
    drawn = history.plot().axes[0].lines[0].get_ydata()
    assert list(drawn) == history.losses  # a fiftieth of four steps is one


class Quacks:
    column_names: ClassVar[dict[str, list[str]]] = {"train": ["text"], "test": ["text"]}

    def __iter__(self) -> Iterator[str]:
        return iter(self.column_names)


def test_several_datasets_are_not_one() -> None:
    line = refusing.refusal(lambda: losses(Quacks(), decoder(), tokenizer=BYTES))
    assert line == "data: a table of several datasets; take one, such as data['train']"


def test_a_long_training_says_where_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, here at once and not after two seconds; and nothing if it is not wanted."""
    monkeypatch.setattr("heddle.train.live.SILENT", 0.0)
    for shows, message in ((True, "step 1/2  loss "), (False, "")):
        heddle.fit(decoder(), BYTES, TEXT, 2, validation=0.3, progress=shows, batch=4)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(message)
        assert bool(captured.err) == shows


def test_batches_for_another_objective() -> None:
    """Numbers, by the squared error of the task that learns them: the mean square of the first scores."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(256, (4, 8)), torch.rand(4)
    batch = Batch(tokens, Layout.whole(4, 8), targets, torch.ones(4))
    model = suited(RegressionConfig())
    with torch.no_grad():
        assert model.head is not None
        hidden = model(tokens).hidden
        scores = model.head(hidden, batch.layout, model.embedding.weight)[:, 0]
    history = heddle.fit(model, LETTERS, [batch], 3, task="regression", validation=[batch], progress=False)
    assert history.losses[0] == pytest.approx(float(((scores - targets).double() ** 2).mean()), rel=1e-5)
    assert history.losses[-1] < history.losses[0]
    assert history.evaluation is not None
    assert history.evaluation.metrics.keys() == {"root_mean_squared_error", "pearson"}


MALFORMED = {
    "classification": ([("the warp", "yes"), 3, ("held", "no"), ("alone",)], "item 1 is an int"),
    "regression": ([("the warp", 1.5), ("held", "much"), ("over", 2.0)], "'much' is not a finite number"),
    "translation": ([{"source": "a", "target": "b"}, {"source": "a"}, {"source": "a", "target": None}], "target"),
    "next_token": (["the warp is held", 3, "the weft is thrown"], "item 1 is an int"),
}


@pytest.mark.parametrize("task", MALFORMED)
def test_malformed_items_are_refused_or_left_out_and_counted(task: str) -> None:
    """With what is left, the same is learned as from it alone."""
    data, fault = MALFORMED[task]
    wrong = 1 if task in ("regression", "next_token") else 2
    clean = [
        item for number, item in enumerate(data) if number not in {1, 3 if task == "classification" else 1} and item
    ]
    clean = clean[:1] if task == "translation" else clean
    tokenizer = heddle.tokenizer_for(task, data, kind="bytes", skip_invalid=True)
    learned = []
    for items, skips in ((data, True), (clean, False)):
        model = heddle.model_for(task, tokenizer, items, depth=1, context=16, dim=16, skip_invalid=skips)
        if skips:
            with pytest.raises(HeddleError, match=re.escape(fault)):
                heddle.fit(model, tokenizer, items, steps=1, task=task, progress=False)
            with pytest.warns(UserWarning, match=f"data: left out: {wrong} of {len(items)} items"):
                history = heddle.fit(model, tokenizer, items, steps=2, task=task, progress=False, skip_invalid=True)
        else:
            history = heddle.fit(model, tokenizer, items, steps=2, task=task, progress=False)
        learned.append(history.losses)
    assert learned[0] == learned[1]
