"""Layouts that are proposed, and those that are refused."""

import json
from pathlib import Path

import pytest

from heddle.config import TrainConfig, preset
from heddle.config.parallel import ParallelConfig
from heddle.errors import HeddleError
from heddle.parallel.mesh import mesh_sizes
from heddle.scale import layout
from heddle.scale.devices import DEVICES, GIB, KERNEL, find_row
from heddle.scale.layout import Request, propose
from tests.cli.conftest import Heddle
from tests.cli.conftest import heddle as heddle

H100 = find_row("h100")
TINY = preset("laptop-tiny")


ONE = mesh_sizes(ParallelConfig(), 1)


def request(memory: float, **changes: object) -> Request:
    """16 rows of laptop-tiny on 4 devices with so many MiB."""
    device = H100._replace(memory=int(memory * 2**20))
    whole = Request(TINY, TrainConfig(optimizer="adamw"), ParallelConfig(), 16, 64, "fp32", 4, device)
    return whole.__class__(**{**vars(whole), **changes})


@pytest.mark.thorough
def test_a_smaller_device_gets_more_shards_then_checkpoints() -> None:
    large, small, smaller = (propose(request(memory)) for memory in (100, 24, 18))
    assert (large.sizes, large.accumulate, large.checkpointed) == ({**ONE, "replicate": 4, "shard": 1}, 1, False)
    assert small.sizes["shard"] > 1 or small.accumulate > 1
    assert small.peak <= 0.9 * 24 * 2**20
    assert smaller.peak <= 0.9 * 18 * 2**20
    assert smaller.peak < small.peak < large.peak


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 18}, "batch = 18 cannot be divided among 4 devices: choose a multiple of 4, such as 16"),
        ({"parallel": ParallelConfig(replicate=3)}, "replicate = 3 does not divide"),
        ({"parallel": ParallelConfig(shard=3)}, "shard = 3 is for 3 process"),
        (
            {"parallel": ParallelConfig(pipeline=4), "batch": 18},
            "divided among 1 pipeline of 4 micro-batches or more: choose a multiple of 4, such as 16",
        ),
        ({"parallel": ParallelConfig(pipeline=4, schedule="interleaved")}, "8 stages, but the model has 4 layers"),
        (
            {"parallel": ParallelConfig(pipeline=2), "train": TrainConfig(accumulate=3)},
            "must be a multiple of 2, not 3",
        ),
        (
            {"parallel": ParallelConfig(pipeline=2), "model": preset("t5-small")},
            "an encoder and a decoder cannot be divided",
        ),
    ],
)
def test_what_does_not_divide_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        propose(request(100, **changes))


def test_what_is_too_large_is_named() -> None:
    with pytest.raises(HeddleError, match=r"weights, gradients and adamw's state take .* on each of 4 shards"):
        propose(request(2))
    with pytest.raises(HeddleError, match="one row of 64 tokens saves"):
        propose(request(4.5))


@pytest.mark.thorough
def test_settings_are_kept() -> None:
    fixed = request(100, train=TrainConfig(optimizer="adamw", accumulate=2, checkpoint_activations=True))
    made = propose(fixed)
    assert (made.accumulate, made.checkpointed, made.rows) == (2, True, 2)
    made = propose(request(100, parallel=ParallelConfig(replicate=2)))
    assert made.sizes == {**ONE, "replicate": 2, "shard": 2}


@pytest.mark.thorough
def test_time_is_the_products_and_what_they_do_not_hide() -> None:
    small = propose(request(100, parallel=ParallelConfig(shard=4), share=0.5))
    assert small.compute == KERNEL * small.kernels > small.flops / (0.5 * H100.fp32)
    made = propose(request(100, parallel=ParallelConfig(shard=4), share=0.0005))
    assert (made.compute, made.kernels) == (made.flops / (0.0005 * H100.fp32), 0)
    sent = sum(count for name, count in made.sent.items() if not name.startswith("update/"))
    assert made.communication == pytest.approx(sent / H100.link)
    assert made.tokens_per_second == pytest.approx(16 * 64 / made.seconds)
    made = propose(request(100, parallel=ParallelConfig(tensor=2)))
    assert made.sizes["tensor"] == 2
    assert made.rows * made.accumulate == 16 // 2
    assert made.exchange > 0
    assert made.seconds == max(made.compute, made.communication) + made.exchange + made.update


@pytest.mark.thorough
def test_cores_that_compute_also_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "seconds_of_step", lambda step: 2.0)
    monkeypatch.setattr(layout, "gloo_rate", lambda: 5e8)
    made = propose(request(100, parallel=ParallelConfig(shard=4), device=find_row("cpu")))
    assert (made.compute, made.communication) == (2.0, 0.0)
    assert made.seconds == pytest.approx(2.0 + sum(made.sent.values()) / 5e8)


@pytest.mark.thorough
def test_layers_are_divided_in_every_layout_that_is_tried() -> None:
    """torch caches the groups of a mesh, and each rehearsal ends its groups: the next one needs new ones. So does the next plan."""
    short = TINY.override({"decoder.depth": 1})
    for memory in (2.8, 2.5):  # MiB: one shard and two are too large
        made = propose(request(memory, model=short, world=8, parallel=ParallelConfig(tensor=2)))
        assert made.sizes["tensor"] == 2
        assert made.sizes["shard"] == 4
        assert made.peak <= 0.9 * memory * 2**20


@pytest.mark.thorough
@pytest.mark.parametrize(("schedule", "group", "idle"), [("1f1b", 0, 1 / 8), ("zero-bubble", 1, 1 / 24)])
def test_the_group_of_a_pipeline_that_holds_most(schedule: str, group: int, idle: float) -> None:
    """The first keeps most micro-batches, or the last, which holds the gradients of its inputs too."""
    parallel = ParallelConfig.of({"pipeline": 2, "schedule": schedule})
    made = propose(request(100, parallel=parallel, batch=32))
    assert (made.sizes["pipeline"], made.sizes["replicate"], made.accumulate, made.rows) == (2, 2, 8, 2)
    assert made.group == group
    assert made.idle == pytest.approx(idle * made.compute)
    assert made.seconds == max(made.compute + made.idle, made.communication) + made.exchange + made.update
    assert "stages/send/link" in made.sent


def test_each_device_has_published_figures() -> None:
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    for device in DEVICES:
        assert device.source
        if device.name != "cpu":
            assert device.bf16 is not None
            assert device.fp32 is not None
            assert device.fp32 < device.bf16
            assert device.memory >= 24 * 10**9
            assert device.network is not None
            assert device.link is not None
            assert device.network <= device.link


def test_512_processes_are_checked_here(heddle: Heddle) -> None:
    words = [
        "laptop-tiny",
        "--world",
        "512",
        "--device",
        "a100",
        "batch=512",
        "shard=8",
        "replicate=64",
        "optimizer=adamw",
    ]
    made = heddle("plan", *words, "--json").json
    assert made["sizes"] == {**ONE, "replicate": 64, "shard": 8}
    assert made["peak"] <= 0.9 * made["memory"]
    assert made["device"]["memory"] == 80 * GIB
    assert {"all-gather/link", "reduce-scatter/link", "all-reduce/network"} <= set(made["sent"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "h1000"], "Did you mean 'h100'?"),
        (["--world", "0"], "--world 0: must be at least 1"),
        (["--share", "2"], "--share 2.0: must be above 0"),
        (["--device", "a100", "--measure"], "--measure takes steps here"),
        (["--world", "6", "--device", "a100", "shard=4"], "shard = 4 is for 4 processes"),
        (["--device", "a100", "heads=3"], "heads"),
        (["depht=3"], "Did you mean 'depth'?"),
    ],
)
def test_mistakes_are_one_line(heddle: Heddle, words: list[str], message: str) -> None:
    result = heddle("plan", "laptop-tiny", *words)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_predicted_beside_measured(heddle: Heddle, new_machine: Path) -> None:
    words = ["laptop-tiny", "depth=1", "context=32", "batch=2", "optimizer=adamw", "precision=fp32"]
    result = heddle("plan", *words, "--measure")
    assert "predicted" in result.out
    made = json.loads(heddle("plan", *words, "--measure", "--json").out)
    assert made["peak"] == pytest.approx(made["measured"]["peak"], rel=0.05)
    assert made["measured"]["tokens_per_second"] > 0


@pytest.mark.thorough
def test_a_run_file_and_a_model_file(heddle: Heddle) -> None:
    Path("run.toml").write_text(
        '[model]\ndepth = 1\ndim = 32\n[train]\noptimizer = "sgd"\nbatch = 4\n[parallel]\nshard = 2\n'
    )
    made = heddle("plan", "run.toml", "--world", "4", "--device", "a100", "replicate=2", "--json").json
    assert (made["sizes"], made["batch"]) == ({**ONE, "replicate": 2, "shard": 2}, 4)
    Path("model.json").write_text(json.dumps(TINY.to_dict()))
    assert heddle("plan", "model.json", "--device", "a100", "batch=4", "--json").json["model"] == "model.json batch=4"
    assert "has a model of its own" in heddle("plan", "model.json", "--device", "a100", "depth=2").err


@pytest.mark.thorough
def test_a_run_keeps_its_settings_in_a_plan(heddle: Heddle, tmp_path: Path) -> None:
    """Those that the words do not change: SGD holds one number beside each weight, and the default optimizer more."""
    (tmp_path / "text.txt").write_text("To weave is to think with thread. " * 200)
    sizes = ("depth=1", "dim=16", "heads=2", "context=16", "tokenizer=bytes")
    run = ("steps=1", "batch=4", "optimizer=sgd", "precision=fp32")
    assert heddle("train", "text.txt", *sizes, *run, "--name", "runs/small").code == 0
    words = ("plan", "runs/small", "--world", "2", "--json")
    made, changed = heddle(*words).json, heddle(*words, "batch=8", "tensor=2").json
    assert (made["batch"], made["length"], made["precision"], made["state"]) == (4, 16, "fp32", made["parameters"])
    assert (changed["batch"], changed["sizes"]["tensor"], changed["state"]) == (8, 2, changed["parameters"])
