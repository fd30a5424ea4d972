"""Memory that runs out on the imitated GPU: one line says what to lower, and what was done before is kept."""

import gc
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import heddle
from heddle.config import BeamConfig, EngineConfig, SamplingConfig
from heddle.errors import OutOfMemory
from heddle.generate import Event, beam_search, complete, generate
from heddle.runs import Trainer, prepare
from heddle.serve.worker import GenerationRequest, Worker
from heddle.train.training import Training
from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation, OnDevice, Place
from tests.device.test_runs import configured, in_a_folder
from tests.runs.test_resume import train, written
from tests.serve.conftest import TOKENIZER, models
from tests.thorough import thorough

STEPS = {"steps": 7, "evaluate_every": 2, "save_every": 2, "clip": 0}  # clipping allocates before an update begins
LATE = 6  # after two evaluations and two checkpoints
HOST = (
    "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
)
# What a step allocates, by the nearest place in heddle.
FORWARD = ("nn/", "model/", "tasks/")
BACKWARD = ("train/step.py",)
BATCH = ("data/batch.py", "nn/numeric.py")
UPDATE = ("train/optimizer.py", "train/update_rules.py", "train/muon.py")


class Allocation:
    """Whether this is the allocation with this number, from 1."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, place: Place) -> bool:
        self.left -= 1
        return self.left == 0


@contextmanager
def full_in(gpu: Imitation, step: int, places: tuple[str, ...], number: int = 1) -> Iterator[None]:
    """In this step of a training, the memory is too short for the allocation with this number at these places."""
    advance, now, count = Training.advance, 0, 0

    def noted(training: Training) -> Any:
        nonlocal now
        now = training.step + 1
        return advance(training)

    def full(place: Place) -> bool:
        nonlocal count
        count += now == step and place.file.startswith(places)
        return count == number and place.file.startswith(places)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "advance", noted)
        patch.setattr(gpu, "full", full)
        yield


def resumed(gpu: Imitation, places: tuple[str, ...], name: str, saved: int, place: Path) -> None:
    """A run that stops late for want of memory, continued, ends as one that had enough."""
    whole, stopped = place / "whole", place / "stopped"
    prepare(configured(place, name, "cuda", **STEPS), whole)
    shutil.copytree(whole, stopped)
    train(whole)
    with full_in(gpu, LATE, places), pytest.raises(OutOfMemory) as error:
        Trainer(stopped).run()
    assert str(error.value) == (
        f"step {LATE}: out of memory with 4 rows of 16 tokens at a time: use accumulate=2 (now 1), checkpoint_activations=true, or "
        f"a smaller batch, context or model; the last good checkpoint is {stopped}/checkpoints/step-{saved}; continue with: heddle "
        f"train --resume {stopped} checkpoint_activations=true, or train a new run"
    )
    train(stopped)
    assert written(whole) == written(stopped)


@imitated
@pytest.mark.parametrize(
    ("places", "name", "saved"),
    [(UPDATE, "muon", 4), *thorough((FORWARD, "adamw", 5), (BACKWARD, "sgd", 5), (BATCH, "ema", 5))],
)
def test_a_late_step(places: list[str], name: str, saved: int) -> None:
    """The steps before it are saved, unless its update had begun."""
    with Imitation() as gpu:
        in_a_folder(lambda place: resumed(gpu, tuple(places), name, saved, place))


@imitated
@pytest.mark.parametrize(
    ("sampled", "size"),
    [(True, r"1 text of up to \d+ tokens? at a time"), *thorough((False, "4 rows of 16 tokens to score"))],
)
def test_a_late_evaluation(sampled: bool, size: str) -> None:
    """The steps before it are saved, too; only its score is missing. Also where it samples a text."""

    def runs(place: Path) -> None:
        whole, stopped = place / "whole", place / "stopped"
        prepare(configured(place, "adamw", "cuda", **{**STEPS, "save_every": 7}), whole)
        shutil.copytree(whole, stopped)
        train(whole)
        trainer = Trainer(stopped)
        owner, name = (trainer, "samples") if sampled else (trainer.session, "score")
        method = getattr(owner, name)

        def failing(*words: Any) -> Any:
            gpu.full = lambda where, full=trainer.session.step == 4: full
            return method(*words)

        setattr(owner, name, failing)
        with pytest.raises(OutOfMemory) as error:
            trainer.run()
        gpu.full = lambda where: False
        assert re.fullmatch(
            rf"out of memory with {size}: use fewer .*; the last good checkpoint is "
            rf"{stopped}/checkpoints/step-4; continue with: heddle train --resume {stopped}, once more memory is free, or .*",
            str(error.value),
        ), error.value
        train(stopped)
        name = "model.safetensors"
        assert (whole / name).read_bytes() == (stopped / name).read_bytes()

    with Imitation() as gpu:
        in_a_folder(runs)


@imitated
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fit_leaves_the_weights_of_the_step_before(device: str) -> None:
    config = models()["plain"].config

    def fitted(steps: int) -> dict[str, Any]:
        model = heddle.build(config, seed=1, device=device)
        settings: dict[str, Any] = {"batch": 2, "seed": 3, "schedule": "constant", "warmup": 0}
        line = ""
        try:
            heddle.fit(model, TOKENIZER, ["the warp is held, the weft is thrown " * 9] * 9, steps=steps, **settings)
        except OutOfMemory as error:
            line = str(error)
        assert not any(parameter.grad is not None for parameter in model.parameters())
        assert heddle.generate_text(model, TOKENIZER, "the", max_tokens=3)
        return {"line": line, **model.state_dict()}

    line = (
        "step 5: out of memory with 2 rows of 64 tokens at a time: use accumulate=2 (now 1), checkpoint_activations=true, or a "
        "smaller batch, context or model; the model has the weights of step 4"
    )
    gpu = Imitation()
    with gpu if device == "cuda" else nullcontext():
        expected = {**fitted(4), "line": line}
        with full_in(gpu, 5, BACKWARD) if device == "cuda" else short(5):
            assert_same(expected, fitted(9))


@contextmanager
def short(step: int) -> Iterator[None]:
    """In this step of a training, the host's memory is too short for a backward pass."""
    backward, calls = torch.Tensor.backward, list[int]()

    def full(tensor: torch.Tensor, *words: Any) -> None:
        calls.append(1)
        if len(calls) == step:
            raise RuntimeError(HOST)
        backward(tensor, *words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", full)
        yield


@imitated
def test_weights_that_do_not_fit_stay_where_they_are() -> None:
    model = models()["plain"]
    texts = ["the warp is held, the weft is thrown " * 9]
    with Imitation() as gpu:
        gpu.full = Allocation(3)
        line = r"^out of memory with 0 MiB of weights on cuda: use a smaller model, or another device$"
        with pytest.raises(OutOfMemory, match=line):
            heddle.fit(model, TOKENIZER, texts, steps=1, device="cuda")
        assert {each.device.type for each in model.parameters()} == {"cpu"}
        gpu.full = Allocation(3)
        with pytest.raises(OutOfMemory, match=line):
            heddle.build(model.config, device="cuda")
        gpu.full = lambda place: False
        heddle.fit(model, TOKENIZER, texts, steps=1, device="cuda")
        assert model.device.type == "cuda"


@pytest.mark.thorough
@imitated
def test_texts_that_do_not_fit() -> None:
    """One error for every way to generate; afterwards nothing of their caches is held, and texts that fit are the same."""
    with Imitation() as gpu:
        model = models()["plain"].to("cuda")

        def text() -> str:
            return heddle.generate_text(model, TOKENIZER, "the warp", max_tokens=20, temperature=0.0)

        def texts() -> list[str]:
            sampling = SamplingConfig(max_tokens=20)
            return [piece.text for piece in complete(model, TOKENIZER, ["the", "a weft"], sampling)]

        def ids() -> list[Any]:
            return list(generate(model, [[5, 7], [3]], SamplingConfig(max_tokens=20)))

        def beams() -> list[Any]:
            return list(beam_search(model, [[5, 7], [3]], BeamConfig(beams=3, max_tokens=20)))

        expected, *_ = text(), texts(), ids(), beams()
        weights = held()
        for call, size in (
            (text, "1 text of up to [0-9]+ tokens at a time: use fewer texts, a lower max_tokens"),
            (texts, "2 texts of up to [0-9]+ tokens at a time: use fewer texts, a lower max_tokens"),
            (ids, "2 texts of up to [0-9]+ tokens at a time: use fewer texts, a lower max_tokens"),
            (beams, "2 texts of 3 beams at a time: use fewer rows or beams"),
        ):
            for number in (30, 400):
                gpu.full = Allocation(number)
                with pytest.raises(OutOfMemory, match=f"^out of memory with {size}"):
                    call()
                assert held() <= weights, (call, number)
            gpu.full = lambda place: False
            assert text() == expected


@pytest.mark.thorough
@imitated
def test_a_server_goes_on() -> None:
    """Texts that do not fit end with the line, also those that wait; nothing of them is held, and the next ones are the same."""
    with Imitation() as gpu:
        model = models()["plain"].to("cuda")
        worker = Worker(model, TOKENIZER, EngineConfig(rows=2, keep=2))
        prompts = [[5 + number] * 20 for number in range(3)]

        def answers() -> list[list[Event]]:
            events = [list[Event]() for _ in prompts]
            sampling = SamplingConfig(temperature=0.8, max_tokens=12, seed=3)
            requests = [
                GenerationRequest(prompt, sampling, each.append) for prompt, each in zip(prompts, events, strict=True)
            ]
            worker.submit(requests)[1].result(30)
            while not all(each and each[-1].finish for each in events):
                time.sleep(0.01)
            return events

        expected = [[event.token for event in each] for each in answers()]
        worker.call(worker.engine.clear).result(30)
        weights = held()
        for number in (5, 300):
            gpu.full = Allocation(number)
            for each in answers():
                assert each[-1].finish == "broken"
                assert re.fullmatch(
                    r"the server ran out of memory with [12] texts? of up to \d+ tokens at a time: use fewer texts, .* model; "
                    "started with a lower --rows, it has more room for each text",
                    each[-1].error or "",
                )
            worker.call(lambda: None).result(30)
            assert held() <= weights, number
            gpu.full = lambda place: False
            assert [[event.token for event in each] for each in answers()] == expected
            worker.call(worker.engine.clear).result(30)
        worker.drain()
        assert worker.join(30)


def held() -> int:
    """Bytes of all tensors on the device."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) is OnDevice]
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())
