"""Runs from files of labelled texts: they learn, resume bit for bit, keep the names of their classes, and are scored."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.cli.main import run as run_command
from heddle.config import RunConfig
from heddle.errors import HeddleError
from heddle.generate import generate_text
from heddle.runs import Trainer, prepare, show_step
from heddle.weights import load, read_config
from tests.running import SIZES, TRAIN, WORDS
from tests.runs.test_resume import train, written

pytestmark = pytest.mark.usefixtures("roomy")

CLASSES = {True: "animals", False: "none"}
TAGS = {"fox": "B-ANIMAL", "dog": "B-ANIMAL", "lazy": "B-MANNER"}


def sentences() -> list[list[str]]:
    draw = random.Random(0)
    return [draw.choices(WORDS, k=draw.randint(2, 7)) for _ in range(120)]


@pytest.fixture
def labelled(tmp_path: Path) -> Callable[..., RunConfig]:
    """`labelled("classification", steps=3)`: a config with files of that kind of labels."""
    rows = sentences()
    table = tmp_path / "texts.tsv"
    lines = [
        f"{' '.join(row)}\t{CLASSES[bool({'fox', 'dog'} & set(row))]}\t{len(row) / 4}\t{'+'.join({'fox', 'dog'} & set(row))}"
        for row in rows
    ]
    table.write_text("\n".join(["text\tclass\tlength\tkinds", *lines]))
    conll = tmp_path / "words.conll"
    conll.write_text("\n\n".join("\n".join(f"{word}\t{TAGS.get(word, 'O')}" for word in row) for row in rows))

    def made(kind: str, model: dict[str, Any] | None = None, stack: str = "encoder", **train: Any) -> RunConfig:
        label = {
            "classification": {"label": "class"},
            "multi_label_classification": {"label": "kinds", "separator": "+"},
            "regression": {"label": "length"},
        }.get(kind, {})
        source = conll if kind == "token_classification" else table
        data = {"sources": [str(source)], "tokenizer": "words", **label}
        sizes = {**SIZES, stack: {"depth": 1}, **(model or {})}
        settings = {**TRAIN, "learning_rate": 1e-2, "warmup": 1, "clip": 0.0, **train}
        return RunConfig.of({"data": data, "model": sizes, "train": settings, "task": {"kind": kind}})

    return made


Labelled = Callable[..., RunConfig]
BEST = {
    "classification": ("accuracy", 0.9),
    "multi_label_classification": ("micro_f1", 0.9),
    "token_classification": ("span_f1", 0.9),
    "regression": ("pearson", 0.8),
}


@pytest.mark.parametrize(("kind", "stack"), [(kind, "encoder") for kind in BEST] + [("classification", "decoder")])
def test_a_run_learns_resumes_and_keeps_its_classes(
    labelled: Labelled, quick: None, tmp_path: Path, kind: str, stack: str
) -> None:
    settings = labelled(kind, stack=stack, steps=30, batch=32, evaluate_every=15)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    prepare(settings, whole)
    reports: list[Any] = []
    result = Trainer(whole, [reports.append]).run()
    name, least = BEST[kind]
    assert result.metrics[name] > least
    assert any(report.sample and report.sample.startswith("[") for report in reports) or kind == "token_classification"
    if kind == "token_classification":  # one kind is enough: sessions know no tasks
        prepare(settings, stopped)
        train(stopped, 18)
        assert written(stopped) == written(whole)
    shown = show_step(whole, step=2)
    (row,) = shown.rows
    if kind == "token_classification":
        assert {name for name in row.predicts if name} <= {"B-ANIMAL", "B-MANNER", "O"}
        assert (row.answer, row.predicts[0]) == (None, None)
    else:
        assert row.answer is not None
        assert row.predicts == []
        words = [piece for piece in row.pieces[1:] if piece not in ("", "[SEP]")]
        animals = sorted({"fox", "dog"} & set(words))
        named = {
            "classification": CLASSES[bool(animals)],
            "multi_label_classification": ", ".join(animals) or "none",
            "regression": f"{len(words) / 4:.4g}",
        }[kind]
        assert row.answer[1:] == (named, 1.0)
    names = {
        "classification": ("animals", "none"),
        "multi_label_classification": ("dog", "fox"),
        "token_classification": ("B-ANIMAL", "B-MANNER", "O"),
        "regression": (),
    }[kind]
    assert read_config(whole).model.head.names == load(whole, "cpu").model.config.head.names == names


def test_the_command_line_says_what_it_counts(
    labelled: Labelled, quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    prepare(labelled("classification", stack="decoder"), run)
    run_command(["train", "--resume", str(run)])
    ended = capsys.readouterr()
    last = ended.err + ended.out
    assert "held-out texts" in last
    assert "heddle generate" not in last
    run_command(["data", "show", str(run)])
    assert "row 0 predicts " in capsys.readouterr().out
    run_command(["eval", str(run), "--json"])
    scored = json.loads(capsys.readouterr().out)
    assert {"accuracy", "macro_f1", "matthews", "loss"} <= scored.keys()
    new = tmp_path / "new.tsv"
    new.write_text("text\tclass\nthe lazy dog\tanimals\nand then\tnone\n")
    run_command(["eval", str(run), str(new), "--json"])
    assert json.loads(capsys.readouterr().out)["tokens"] == 2


def test_pairs_are_read_where_their_column_is_named(labelled: Labelled, quick: None, tmp_path: Path) -> None:
    table = tmp_path / "pairs.jsonl"
    rows = sentences()
    pairs = [(" ".join(one), " ".join(other)) for one, other in zip(rows, rows[1:] + rows[:1], strict=True)]
    lines = [{"text": one, "second": other, "label": int("fox" in other)} for one, other in pairs]
    table.write_text("\n".join(map(json.dumps, lines)))
    settings = labelled("classification", steps=2).to_dict()
    data = {"sources": [str(table)], "tokenizer": "words", "pair": "second"}
    prepare(RunConfig.of({**settings, "data": data}), tmp_path / "run")
    trainer = Trainer(tmp_path / "run")
    batch = trainer.session.batch()
    separator = trainer.session.run.tokenizer.special["[SEP]"]
    real = batch.layout.real.any(1)
    assert ((batch.tokens == separator) & batch.layout.real).sum(1)[real].tolist() == [2] * int(real.sum())
    with pytest.raises(HeddleError, match=r"names a column that task.kind = 'token_classification' does not read"):
        RunConfig.of({**settings, "data": data, "task": {"kind": "token_classification"}})


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.lecture("L1-93")
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_the_readings_classifier_runs(labelled: Labelled, quick: None, tmp_path: Path, pooling: str) -> None:
    """The first model of the reading in row L1-93: blocks, a pooling over all tokens, a linear map."""
    run = tmp_path / "run"
    prepare(
        labelled("classification", model={"head": {"pooling": pooling}}, steps=30, batch=32, evaluate_every=30), run
    )
    assert Trainer(run).run().metrics["accuracy"] > 0.9
    head = load(run, "cpu").model.config.head
    assert (head.pooling, head.dense) == (pooling, False)


@pytest.mark.lecture("L1-93")
def test_the_readings_generator_runs(quick: None, tmp_path: Path) -> None:
    """The second model of the reading in row L1-93: a causal model of characters that writes."""
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 60)
    data = {"sources": [str(text)], "tokenizer": "characters"}
    train = {**TRAIN, "steps": 30, "evaluate_every": 30, "learning_rate": 1e-2}
    prepare(RunConfig.of({"data": data, "model": SIZES, "train": train}), tmp_path / "run")
    Trainer(tmp_path / "run").run()
    model, tokenizer = load(tmp_path / "run", "cpu")
    assert tokenizer is not None
    assert set(generate_text(model, tokenizer, "to be", max_tokens=20, seed=0)) <= set(text.read_text())
