"""Readings saved while training: what they say, that they change nothing, and that a resumed run goes on with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import RecurrentConfig, RunConfig
from heddle.errors import HeddleError
from heddle.look import find_heads, lens, read_readings, take_reading
from heddle.look.readings import READINGS, Readings
from heddle.runs import Trainer, prepare
from heddle.runs.trainer import Interrupted
from heddle.weights import load
from tests.look.inputs import inputs_of
from tests.models import EVERY, awake, config_of, name_of
from tests.running import Begin
from tests.running import begin as begin
from tests.running import config as config
from tests.running import corpus as corpus
from tests.running import quick as quick


def train(run: Path, at: Any, stop: int | None = None) -> Trainer:
    trainer = Trainer(run)
    trainer.readers.append(Readings(trainer.session, at))
    if stop is not None:
        trainer.readers.append(lambda report: trainer.stop.set() if report.step == stop else None)
    try:
        trainer.run()
    except Interrupted:
        assert stop is not None
    return trainer


@pytest.mark.parametrize("config", EVERY[::9], ids=name_of)
def test_a_reading_is_what_the_library_says(config: Any) -> None:
    """Norms and lens losses of each layer, and scores of each head, of any family."""
    model = awake(config)
    tokens, more = inputs_of(model, rows=1)
    reading = take_reading(model, tokens, **more)
    layers = {name: len(stack.blocks) for name, stack in model.config.stacks().items()}
    assert set(reading["norm"]) == {f"{name}.{at}" for name, n in layers.items() for at in ("entry", *range(n))}
    assert ("lens_loss" in reading) == (model.decoder is not None and model.config.head.kind == "language")
    if "lens_loss" in reading:
        read = lens(model, tokens, **more)
        assert list(reading["lens_loss"].values()) == read.losses().tolist()
        assert [reading["norm"][f"decoder.{at}"] for at in read.places] == pytest.approx(read.norms.mean(1).tolist())
    if "entropy" in reading:
        scores = find_heads(model, min(25, (model.last_stack().longest or model.config.context) // 2))
        for layer, each in scores.items():
            assert [
                reading["entropy"][f"{layer}.heads.{head}"] for head in range(len(each.entropy))
            ] == each.entropy.tolist()
    json.dumps(reading, allow_nan=False)


def test_training_is_bit_equal_with_and_without(begin: Begin) -> None:
    plain, read = (begin(name, model={"dropout": 0.2}, ema=0.9) for name in ("plain", "read"))
    Trainer(plain).run()
    train(read, 1)
    assert (plain / "metrics.jsonl").read_bytes() == (read / "metrics.jsonl").read_bytes()
    one, two = (load(run, "cpu")[0].state_dict() for run in (plain, read))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert list(read_readings(read)) == list(range(9))
    assert read_readings(plain) == {}


def test_the_weights_to_use_are_looked_at(begin: Begin) -> None:
    """The moving average where there is one: the last reading is that of the published weights."""
    trainer = train(begin(ema=0.9), [8])
    session = trainer.session
    task = session.task
    batches = task.held_out(1, 4096).batches
    tokens = task.batch(batches[len(batches) // 2]).tokens
    ((step, reading),) = read_readings(session.run.directory).items()
    assert step == 8
    assert list(reading["lens_loss"].values()) == pytest.approx(
        lens(load(session.run.directory, "cpu")[0], tokens).losses().tolist()
    )


@pytest.mark.parametrize(("at", "steps"), [(2, [0, 2, 4, 6, 8]), ([8, 1, 3], [1, 3, 8])])
def test_a_resumed_run_goes_on_with_its_own(begin: Begin, at: Any, steps: list[int]) -> None:
    """Lines after its checkpoint are written again, and a half-written one is dropped: the file of a run that never stopped."""
    whole, cut = begin("whole"), begin("cut")
    train(whole, at)
    train(cut, at, stop=3)
    with (cut / READINGS).open("a") as file:
        file.write(json.dumps({"step": 7, "norm": {"decoder.0": 1.0}}) + '\n{"step": 9, "no')
    train(cut, None)
    assert list(read_readings(cut)) == steps
    assert (cut / READINGS).read_bytes() == (whole / READINGS).read_bytes()


def test_nothing_is_saved_unasked(begin: Begin) -> None:
    run = begin()
    train(run, None)
    assert not (run / READINGS).exists()


@pytest.mark.parametrize("kind", ["masked", "classification", "translation"])
def test_every_family_of_tasks_is_read(
    kind: str, config: Callable[..., RunConfig], quick: None, tmp_path: Path
) -> None:
    """An encoder has norms and heads, and no loss of the token that follows; a translation has those of both stacks."""
    words = [("warp", "kette"), ("weft", "schuss"), ("loom", "stuhl"), ("reed", "blatt")] * 20
    table = tmp_path / "pairs.tsv"
    head = "text\tclass\n" if kind == "classification" else "source\ttarget\n"
    table.write_text(head + "".join(f"{one} {number}\t{other}\n" for number, (one, other) in enumerate(words)))
    data: dict[str, Any] = {"sources": [str(table)], "tokenizer": "characters"}
    if kind == "classification":
        data |= {"label": "class", "tokenizer": "words"}
    settings, run = config(steps=4, evaluate_every=4).to_dict(), tmp_path / "run"
    prepare(RunConfig.of({**settings, "task": kind} | ({} if kind == "masked" else {"data": data})), run)
    train(run, 4)
    readings = read_readings(run)
    assert list(readings) == [0, 4]
    stacks = {name.split(".")[0] for name in readings[4]["norm"]}
    assert stacks == ({"encoder", "decoder"} if kind == "translation" else {"encoder"})
    assert ("lens_loss" in readings[4]) == (kind == "translation")
    assert {"previous", "induction"} <= set(readings[4])
    assert readings[0] != readings[4]


@pytest.mark.parametrize(("at", "message"), [(0, "must be at least 1"), ([], "at least one step"), ([-1, 3], "from 0")])
def test_steps_that_cannot_be_are_refused(begin: Begin, at: Any, message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        Readings(Trainer(begin()).session, at)


def test_what_a_model_does_not_have_is_left_out() -> None:
    model = awake(config_of(first=RecurrentConfig(), second=RecurrentConfig(), kernel="plain"))
    assert set(take_reading(model, inputs_of(model, rows=1)[0])) == {"norm", "lens_loss"}
