"""Runs that learn pairs of texts, from a file to a resumed run: plans, ranks, what is shown, and each preset with two stacks."""

import json
import multiprocessing
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from heddle.config import RunConfig, TrainConfig, TranslationConfig, preset, preset_names
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.errors import HeddleError
from heddle.model import build
from heddle.prove.laptop import laptop
from heddle.runs import Trainer, open_session, prepare, show_step
from heddle.tasks import DataSpec
from heddle.tasks.task import tokens_read
from heddle.tasks.translation import TranslationTask
from heddle.train import Optimizer, evaluate, train_step
from tests.runs.test_resume import train, written
from tests.tasks.pairs import TOKENIZER, pairs, task
from tests.thorough import thorough

pytestmark = pytest.mark.usefixtures("roomy")

Make = Callable[..., RunConfig]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Digits in words, and in figures."""
    draw, file = np.random.default_rng(0), tmp_path / "pairs.tsv"
    digits = [draw.integers(0, 10, draw.integers(1, 5)) for _ in range(300)]
    rows = (f"{' '.join(NUMBERS[digit] for digit in each)}\t{''.join(map(str, each))}" for each in digits)
    file.write_text("\n".join(["source\ttarget", *rows]))
    return file


@pytest.fixture
def make_config(config: Make, quick: None, table: Path) -> Make:
    """A run on that table; `asked("decoder", steps=3)` of a decoder alone."""

    def made(family: str = "encoder-decoder", task: Any = "translation", **train: Any) -> RunConfig:
        data = config(
            data={"sources": [str(table)], "tokenizer": "characters"}, model={"context": 32}, **{"batch": None, **train}
        ).to_dict()
        data["train"] = {key: value for key, value in data["train"].items() if key != "batch"}
        return RunConfig.of({**data, "task": task, "model": {**data["model"], "family": family}})

    return made


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_a_run_is_planned_learns_and_resumes_bit_for_bit(make_config: Make, tmp_path: Path, family: str) -> None:
    settings = make_config(family, steps=12, batch_tokens=256, evaluate_every=6, learning_rate=1e-2)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    planned = prepare(settings, whole)
    shutil.copytree(whole, stopped)
    assert tuple(planned.model.stacks()) == tuple(family.split("-"))
    assert (planned.chosen.batch, planned.chosen.batch_tokens) == (8, 256)
    trainer, reports = Trainer(whole), list[Any]()
    steps = [tokens_read(trainer.session.task.batch(trainer.session.task.examples(step))) for step in range(8)]
    assert planned.tokens_per_step == round(np.mean(steps))
    assert planned.epochs == pytest.approx(12 / trainer.session.task.steps_per_epoch())
    assert planned.train_tokens + planned.validation_tokens > 300 * 4
    trainer.readers.append(reports.append)
    result = trainer.run()
    assert set(result.metrics) == {"perplexity", "accuracy"}
    assert any(report.sample and " → " in report.sample for report in reports)
    train(stopped, 7)
    assert written(stopped) == written(whole)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_a_step_is_shown_as_it_is_read(make_config: Make, tmp_path: Path, family: str) -> None:
    """The decoder's ids beside their targets, the source in a table of its own, and the mask of each kind of attention."""
    prepare(make_config(family, steps=4), tmp_path / "run")
    session = open_session(tmp_path / "run")
    session.step = 2
    batch = session.batch()
    view = show_step(tmp_path / "run", step=3, rows=2, length=10)
    assert (view.places, view.targets) == (tokens_read(batch), int(batch.weights.sum()))
    for number, row in enumerate(view.rows):
        assert row.tokens == batch.tokens[number, :10].tolist()
        assert row.targets == [None if id < 0 else id for id in batch.targets[number, :10].tolist()]
        assert row.answer is None
        assert (row.source is None) == (batch.source is None)
        if row.source is not None and batch.source is not None:
            assert row.source.tokens == batch.source[number, :10].tolist()
            assert [segment < 0 for segment in row.source.segments] == [piece == "" for piece in row.source.pieces]
    real = (batch.layout.segment[0, :10] >= 0).tolist()
    shown = {mask.stack: mask.seen for mask in view.masks}
    width = len(real)
    assert shown["decoder"] == [[key <= query and real[query] for key in range(width)] for query in range(width)]
    if batch.source_layout is None:
        assert list(shown) == ["decoder"]
    else:
        read = (batch.source_layout.segment[0, :10] >= 0).tolist()
        assert shown["encoder"] == [[key and query for key in read] for query in read]
        assert shown["decoder, cross"] == [[key and query for key in read] for query in real]


@pytest.mark.parametrize("family", ["both", "decoder"])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(family: str, count: int) -> None:
    """The rows of all ranks are the batch's, with less padding; the last batch of an epoch has empty rows."""
    made = task(family, pairs(60), batch_tokens=256)
    empty = False
    for step in range(int(made.steps_per_epoch())):
        examples = made.examples(step)
        empty |= EMPTY in examples.places
        whole, parts = made.batch(examples), [made.batch(examples.part(rank, count)) for rank in range(count)]
        for name, fill in (("tokens", None), ("targets", -100), ("weights", 0), ("source", None)):
            if getattr(whole, name) is None:
                continue
            rows = [row for part in parts for row in getattr(part, name)]
            for row, expected in zip(rows, getattr(whole, name), strict=True):
                assert torch.equal(row, expected[: len(row)])
                assert fill is None or (expected[len(row) :] == fill).all()
    assert empty


def train_as(rank: int, port: int, run: Path) -> None:
    """One of two ranks, with the environment that torchrun makes."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in {"RANK": rank, "WORLD_SIZE": 2, **place}.items()})
    Trainer(run).run()
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_ranks_train_what_one_process_trains(make_config: Make, tmp_path: Path) -> None:
    run, together = tmp_path / "run", tmp_path / "together"
    prepare(make_config(steps=4, batch_tokens=256, evaluate_every=2, learning_rate=1e-2), run)
    shutil.copytree(run, together)
    Trainer(run).run()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=train_as, args=(rank, port, together)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]
    one, two = (
        [json.loads(line) for line in (each / "metrics.jsonl").read_text().splitlines()] for each in (run, together)
    )
    for name in ("loss", "validation_loss", "accuracy"):
        actual, expected = ([row[name] for row in rows if name in row] for rows in (two, one))
        assert actual == pytest.approx(expected, abs=2e-5)
    weights = [load_file(each / "model.safetensors") for each in (run, together)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-4, msg=name)


TWO_STACKS = [name for name in preset_names() if len(preset(name).stacks()) == 2]


@pytest.mark.parametrize(
    "name", ["laptop-translate", *thorough(*(name for name in TWO_STACKS if name != "laptop-translate"))]
)
def test_every_preset_with_two_stacks_trains(name: str) -> None:
    """At laptop size: thirty steps lower the loss of what is held out well below that of guessing."""
    config = laptop(preset(name)).override({"vocab_size": TOKENIZER.vocab_size, "context": 16})
    corpus = Corpus(pairs(500, longest=3), pairs(40, seed=1, longest=3))
    made = TranslationTask(TranslationConfig(), DataSpec(corpus, config, 16, 3, tokenizer=TOKENIZER))
    model = build(config)
    objective, optimizer = made.objective(model), Optimizer(model, TrainConfig(), 1e-2, "fp32")
    model.train()
    for step in range(30):
        train_step(objective, optimizer, made.batch(made.examples(step)), 1, 1 - step / 30, 1.0)
    assert evaluate(model, made).loss < 2.25  # 14 ids: 2.64 nats


def test_a_family_that_does_not_suit_is_refused(make_config: Make, tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="family = 'encoder' does not suit the task, which needs encoder-decoder or"):
        prepare(make_config("encoder"), tmp_path / "run")
    with pytest.raises(HeddleError, match=r"source_loss applies .* set family=decoder"):
        prepare(make_config(task={"kind": "translation", "source_loss": True}), tmp_path / "run")
    with pytest.raises(HeddleError, match="family = 'decoder' is for a model without a preset"):
        RunConfig.of({"model": {"preset": "t5-small", "family": "decoder"}})
