"""What a rehearsal predicts is what real tensors hold, whole and divided among two processes."""

import json
from typing import Any

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from heddle.account import states
from heddle.config import TrainConfig, preset
from heddle.config.parallel import ParallelConfig
from heddle.parallel.mesh import mesh_sizes
from heddle.scale.measuring import measure
from heddle.scale.meter import Meter
from heddle.scale.rehearsal import PHASES, Step, rehearse
from heddle.scale.schedules import fake_processes
from tests import programs
from tests.thorough import thorough

WHOLE = ParallelConfig()
ONE = mesh_sizes(WHOLE, 1)
TINY = preset("laptop-tiny")


def peak(numbers: dict[str, int]) -> int:
    """The most bytes of all phases."""
    return max(numbers[f"peak/{phase}"] for phase in PHASES)


@pytest.mark.parametrize(
    ("name", "length", "train", "precision"),
    [
        ("laptop-tiny", 64, {"optimizer": "adamw"}, "fp32"),
        ("laptop-tiny", 64, {"optimizer": "muon"}, "fp32"),
        ("laptop-tiny", 64, {"optimizer": "sgd", "ema": 0.9}, "fp32"),
        *thorough(
            ("laptop-tiny", 64, {"optimizer": "adamw"}, "bf16"),
            ("laptop-tiny", 64, {"optimizer": "adamw", "accumulate": 2, "checkpoint_activations": True}, "fp32"),
            ("laptop-window", 64, {}, "fp32"),
            ("laptop-encoder", 64, {"optimizer": "adamw"}, "fp32"),
            ("laptop-moe", 64, {"optimizer": "adamw"}, "fp32"),
            ("laptop-linear", 64, {}, "fp32"),
            ("laptop-rnn", 24, {"optimizer": "adamw"}, "fp32"),
            ("laptop-translate", 64, {"optimizer": "adamw"}, "fp32"),
            ("rnn-translate", 12, {"optimizer": "adamw"}, "fp32"),
            ("conv-lm", 64, {"optimizer": "adamw"}, "fp32"),
        ),
    ],
)
def test_one_process_holds_what_was_predicted(
    name: str, length: int, train: dict[str, object], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.scale.measuring.timed", lambda *_: 1.0)  # how long they take is not compared
    config, settings = preset(name), TrainConfig.of(train)
    step = Step(config, settings, WHOLE, ONE, 2, length, precision)
    assert peak(rehearse(step)) == pytest.approx(measure(step).peak, rel=0.03)


@pytest.mark.parametrize(
    ("name", "layout", "train"),
    [
        ("laptop-tiny", {}, {"optimizer": "adamw"}),
        *thorough(
            ("laptop-encoder", {}, {"optimizer": "muon"}),
            ("laptop-linear", {}, {"optimizer": "adamw"}),
            ("laptop-tiny", {"tensor": 2}, {"optimizer": "muon", "accumulate": 2}),
            ("laptop-tiny", {"tensor": 2, "sequence": True}, {"optimizer": "adamw"}),
            ("laptop-tiny", {"context": 2}, {"optimizer": "adamw", "checkpoint_activations": True}),
            ("laptop-moe", {"expert": 2}, {"optimizer": "adamw"}),
        ),
    ],
)
def test_two_processes_hold_what_was_predicted(name: str, layout: dict[str, Any], train: dict[str, Any]) -> None:
    """Real routers do not give every expert as many tokens, and gloo's threads free memory when they get to it."""
    made = divided("measure", name, train, layout)
    assert peak(made["numbers"][0]) == pytest.approx(made["measured"], rel=0.03)


@pytest.mark.parametrize(
    ("name", "schedule", "train"),
    [
        ("laptop-tiny", "zero-bubble", {"optimizer": "adamw", "accumulate": 2}),
        *thorough(
            ("laptop-tiny", "1f1b", {"optimizer": "adamw", "accumulate": 4}),
            ("laptop-tiny", "interleaved", {"optimizer": "muon", "accumulate": 4, "checkpoint_activations": True}),
            ("laptop-moe", "zero-bubble", {"optimizer": "adamw", "accumulate": 4}),
        ),
    ],
)
def test_groups_of_a_pipeline_hold_what_was_predicted(name: str, schedule: str, train: dict[str, Any]) -> None:
    """The most of all groups; it was 8 bytes off."""
    made = divided("measure", name, train, {"pipeline": 2, "schedule": schedule})
    assert max(map(peak, made["numbers"])) == pytest.approx(made["measured"], rel=0.002)


def divided(word: str, *step: Any) -> dict[str, Any]:
    """A step of two processes, in a program of its own."""
    made: dict[str, Any] = json.loads(programs.forked("parallel.imported", "scale.forks", word, stdin=json.dumps(step)))
    return made


@pytest.mark.thorough
def test_a_process_is_started_for_each_of_a_mesh() -> None:
    """By `spawn`: a program of a user may have threads."""
    config = TINY.override({"decoder.depth": 1})
    assert (
        measure(Step(config, TrainConfig(optimizer="sgd"), WHOLE, {**ONE, "shard": 2}, 2, 64, "fp32")).tokens_per_second
        > 0
    )


def test_parts_of_the_whole_are_those_of_the_account() -> None:
    numbers = rehearse(Step(TINY, TrainConfig(optimizer="adamw"), WHOLE, ONE, 2, 64, "fp32"))
    account = states(TINY, "adamw", "fp32")
    assert (numbers["parameters"], numbers["gradients"]) == (account.weights, account.gradients)
    steps = 4 * sum(1 for _ in TINY.stacks())  # AdamW also counts its steps, 4 bytes for each parameter
    assert 0 <= numbers["state"] - account.moments < 400 * steps


@pytest.mark.thorough
def test_shards_divide_what_a_process_holds_and_sends() -> None:
    train = TrainConfig(optimizer="adamw")
    whole, *parts = (rehearse(Step(TINY, train, WHOLE, {**ONE, "shard": n}, 2, 64, "fp32"), 8) for n in (1, 2, 8))
    for count, part in zip((2, 8), parts, strict=True):
        for name in ("parameters", "gradients", "state"):
            assert whole[name] / count <= part[name] < whole[name] / count + 20_000
        assert peak(part) < peak(whole)
        # The gradients of all blocks, of which each process keeps its part.
        share = (count - 1) / count
        assert part["sent/reduce-scatter/link"] == pytest.approx(share * whole["gradients"], rel=0.02)
        assert part["sent/all-gather/link"] <= 2.02 * share * whole["parameters"]
    assert "sent/all-gather/network" in rehearse(Step(TINY, train, WHOLE, {**ONE, "shard": 8}, 2, 64, "fp32"), 4)


@pytest.mark.thorough
def test_deeper_models_are_predicted_from_shallow_ones() -> None:
    """Twelve equal blocks are measured with four and five of them."""
    train = TrainConfig(optimizer="adamw")
    deep = TINY.override({"decoder.depth": 12})
    groups = TrainConfig.of({"optimizer": "adamw", "groups": [{"parameters": "*", "rate": 1.0}]})  # leaves none out
    short, full = (rehearse(Step(deep, each, WHOLE, ONE, 2, 64, "fp32")) for each in (train, groups))
    assert short == pytest.approx(full, rel=0.01)


def test_checkpointing_holds_less_and_computes_more() -> None:
    whole, checkpointed = (
        rehearse(Step(TINY, TrainConfig(checkpoint_activations=each), WHOLE, ONE, 8, 64, "fp32"))
        for each in (False, True)
    )
    assert peak(checkpointed) < peak(whole)
    assert 1.1 < checkpointed["flops"] / whole["flops"] < 1.4


@pytest.mark.thorough
def test_micro_batches_send_parameters_again_and_gradients_once() -> None:
    sizes = {**ONE, "shard": 2}
    one, four = (
        rehearse(Step(TINY, TrainConfig(optimizer="adamw", accumulate=n), WHOLE, sizes, 2, 64, "fp32"), 8)
        for n in (1, 4)
    )
    assert four["sent/reduce-scatter/link"] == one["sent/reduce-scatter/link"]
    assert four["sent/all-gather/link"] > 3 * one["sent/all-gather/link"]
    assert four["flops"] == pytest.approx(4 * one["flops"], rel=0.01)


def test_storages_are_counted_once_and_until_they_are_gone() -> None:
    with Meter() as meter:
        meter.enter("first")
        x = torch.ones(1000)
        y = x.view(10, 100)
        z = x + 1
        assert meter.now == 8000
        del x, z
        assert meter.now == 4000
        y.untyped_storage().resize_(0)
        assert (meter.now, meter.peaks["first"]) == (0, 8000)
        y.untyped_storage().resize_(4000)
    assert meter.gathered() == 4000


def test_parts_of_other_processes_hold_nothing() -> None:
    with fake_processes(4):
        mesh = init_device_mesh("cpu", (4,))
        part = DTensor.from_local(torch.ones(1000), mesh, [Shard(0)], run_check=False)
        with Meter() as meter:
            double = part * 2
            assert double.shape == (4000,)
            assert meter.now == 8000


def test_a_tensor_around_another_has_no_memory_of_its_own() -> None:
    """Such as what a collective within layers returns before it has come."""
    with Meter() as meter:
        coming = AsyncCollectiveTensor(torch.ones(1000))
        meter.see(coming)
        assert meter.now == 4000


@pytest.mark.thorough
def test_what_is_sent_within_layers() -> None:
    """Of the four layers of a model whose feed-forwards have two first matrices, in units of the tokens' vectors."""
    train, vectors = {"optimizer": "adamw"}, 4 * 2 * 64 * TINY.dim

    def sent(layout: dict[str, Any]) -> dict[str, float]:
        numbers = divided("rehearse", "laptop-tiny", train, layout)["numbers"][0]
        within = "sent/layers/"
        return {name.removeprefix(within): size / vectors for name, size in numbers.items() if name.startswith(within)}

    # Two sums in each pass of a layer, one of the tokens' vectors and one of their gradients; three numbers for each target.
    tables = 2 + 3 / TINY.dim
    assert sent({"tensor": 2}) == {"all-reduce/link": 4 * (2 + 2) + tables}
    # Half of the vectors each time: before and after each part of a layer, forward and backward, and before the head.
    assert sent({"tensor": 2, "sequence": True}) == {
        "all-gather/link": 4 * 2 + 1,
        "reduce-scatter/link": 4 * 2,
        "all-reduce/link": tables,
    }
    # Half of the keys and values, forward and again backward, and half of their gradients.
    assert sent({"context": 2}) == {"all-gather/link": 4 * 2, "reduce-scatter/link": 4}


def in_pipeline(schedule: str, micro_batches: int, **changes: Any) -> Step:
    """A step of laptop-tiny on two groups of two devices, of one row of 16 tokens."""
    parallel = ParallelConfig.of({"pipeline": 2, "schedule": schedule, "shard": 2})
    train = TrainConfig.of({"optimizer": "adamw", "accumulate": micro_batches})
    return Step(TINY.override(changes), train, parallel, mesh_sizes(parallel, 4), 1, 16, "fp32")


def test_groups_of_a_pipeline_send_vectors_and_their_gradients() -> None:
    vectors = 4 * 16 * TINY.dim
    first, last = (rehearse(in_pipeline("1f1b", 2), node=2, place=group) for group in (0, 1))
    for numbers in (first, last):
        assert numbers["sent/stages/send/network"] == 2 * vectors  # forward from the first, backward from the last
        assert numbers["sent/update/reduce-scatter/link"] > 0
    assert last["flops"] > first["flops"]  # the head
    # Between four stages: the first group forward twice and backward once.
    assert rehearse(in_pipeline("interleaved", 2), node=4)["sent/stages/send/link"] == 2 * 3 * vectors


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_long_pipelines_are_predicted_from_few_micro_batches(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = in_pipeline(schedule, 8, **{"decoder.depth": 2})
    short = rehearse(step)
    monkeypatch.setattr("heddle.scale.rehearsal.FULL", {schedule: lambda processes: (8, 1)})
    assert short == rehearse(step)


@pytest.mark.thorough
def test_deeper_pipelines_are_predicted_from_shallow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    step = in_pipeline("1f1b", 2, **{"decoder.depth": 20})
    short = rehearse(step, place=1)
    monkeypatch.setattr("heddle.scale.rehearsal.of_stage", lambda config, stages: None)
    assert short == pytest.approx(rehearse(step, place=1), rel=0.001)
