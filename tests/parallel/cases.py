"""What several processes train in the tests, and in full by `python -m tests.parallel.full`."""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from heddle.account.machine import has_bf16
from heddle.config.layers import MoEConfig
from heddle.parallel.ranks import Ranks
from tests import programs
from tests.parallel import engines
from tests.prove import tasks

Case = dict[str, Any]
FAMILIES = ("next token, rotary", "next token, experts", "translation, both", "classes, encoder", "masked, experts")
DENSE = ("next token, rotary", "next token, learned positions", "masked, learned positions", "classes, encoder")
# Tasks whose targets are tokens, for models with one stack; mixtures of experts have terms that count whole documents.
BY_TOKEN = (
    "next token, rotary",
    "next token, packed",
    "masked, learned positions",
    "prefix, rotary",
    "chat",
    "tags, decoder",
    "next token, experts",
    "masked, experts",
    "chat, packed, experts",
    "prefix, distances, experts",
)
EXPERTS = ("next token, experts", "masked, experts", "translation, both, experts", "translation, packed, experts")
# Each rank cuts its rows to its own longest text, so its products have other shapes than those of one process.
CUT = ("translation, decoder", "chat", "classes", "tags", "contrast", "labels", "numbers")
OPTIMIZERS = ("adamw", "muon", "sgd")
SEQUENCE = {"tensor": 2, "sequence": True}
PIPELINE: dict[str, Any] = {"pipeline": 2}
INTERLEAVED, ZERO_BUBBLE = {**PIPELINE, "schedule": "interleaved"}, {**PIPELINE, "schedule": "zero-bubble"}
FIRST_STAGE_FROZEN = [{"parameters": name, "frozen": True} for name in ("embedding.*", "decoder.blocks.0.*")]
# Models with one stack: tied tables, several kinds of heads, terms of routers, and tables that all layers share.
WITHOUT_TABLES = (
    *DENSE,
    "next token, experts",
    "next token, packed",
    "masked, experts",
    "chat, packed",
    "labels, decoder",
)
UNEVEN = WITHOUT_TABLES[:1] + WITHOUT_TABLES[4:5]  # in stages of unequal depth
CUT_BY_LAYERS = (*WITHOUT_TABLES, "prefix, distances, experts")
# The largest difference from one process, in fp32; in bf16 with products of the same shapes too, where there are units for it.
# Without them, two processes may round a sum in another order.
LOSS, WEIGHT, BF16_WITHOUT_UNITS = 2e-5, 2e-5, 1e-3
TABLES = 1e-12  # of divided tables, in fp64


def case(
    run: str,
    mesh: dict[str, Any] | None = None,
    precision: str = "fp32",
    depth: int | None = None,
    model: dict[str, Any] | None = None,
    **train: Any,
) -> Case:
    settings = {"optimizer": "adamw", **train}
    return {
        "run": run,
        "mesh": mesh or {},
        "precision": precision,
        "depth": depth,
        "model": model or {},
        "train": settings,
    }


def dropping(run: str, rate: float = 0.1, **others: Any) -> dict[str, Any]:
    """Changes of a run's model: dropout in all places, by kernels that take a mask, and four heads for as many processes."""
    changes: dict[str, Any] = {}
    for stack, config in tasks.config_of(run).stacks().items():
        block = config.block
        places = ["entry", "block", "block.mixer", *(["block.cross"] if block.cross else [])]
        places += [] if isinstance(block.ffn, MoEConfig) else ["block.ffn"]
        changes |= {f"{stack}.{place}.dropout": rate for place in places}
        for attention in places[2:]:
            if attention != "block.ffn":
                changes |= {f"{stack}.{attention}.heads": 4, f"{stack}.{attention}.kernel": "auto"}
    return {**changes, **others}


def dropped(meshes: list[dict[str, Any]]) -> list[Case]:
    """Runs with dropout in all places on every mesh. Where rows share masks, the gradients of rare tokens are only rounding."""
    shared = {"dropout.style": "classic", "dropout.mask": "batch"}
    return [
        each
        for mesh in meshes
        for each in (
            *(case(run, mesh, model=dropping(run)) for run in (*DENSE, "translation, both", "next token, experts", "chat")),
            case("next token, rotary", mesh, model=dropping("next token, rotary"), optimizer="muon", accumulate=2,
                 checkpoint_activations=True),
            case("next token, rotary", mesh, model=dropping("next token, rotary"), lora={"rank": 4, "dropout": 0.1}),
            case("next token, rotary", mesh, model=dropping("next token, rotary", **shared), optimizer="sgd"),
        )
    ]  # fmt: skip


def across(runs: tuple[str, ...], meshes: list[dict[str, Any]], **train: Any) -> list[Case]:
    """Every run on every mesh with every optimizer."""
    return [case(run, mesh, optimizer=each, **train) for mesh in meshes for run in runs for each in OPTIMIZERS]


# Every kind of division, task, optimizer and precision, for every commit.
SOME = {
    2: [
        case("next token, experts", precision="bf16", optimizer="muon", checkpoint_activations=True),
        case("next token, rotary", precision="bf16", optimizer="sgd"),
        case("next token, experts", optimizer="muon", accumulate=2),
        case("translation, both", {"replicate": 2}, optimizer="muon", ema=0.5),
        case("masked, learned positions", lora={"rank": 2}),
        case("classes, encoder", {"tensor": 2}, model=dropping("classes, encoder"), optimizer="sgd"),
        case("next token, experts", SEQUENCE, optimizer="muon", label_smoothing=0.1, z_loss=0.01),
        case("translation, both", SEQUENCE, model=dropping("translation, both"), optimizer="muon"),
        case("chat", {"context": 2}, optimizer="muon"),
        case("next token, experts", {"context": 2}),
        case("next token, experts", PIPELINE, accumulate=2, ema=0.5),
        case("next token, rotary", PIPELINE, accumulate=2, groups=FIRST_STAGE_FROZEN),
        case("masked, experts", ZERO_BUBBLE, accumulate=2, lora={"rank": 2}),
        case("next token, experts", INTERLEAVED, depth=5, optimizer="sgd", accumulate=2, ema=0.5),
        case("classes, encoder", ZERO_BUBBLE, depth=3, accumulate=4),
        case("next token, rotary", ZERO_BUBBLE, precision="bf16", optimizer="sgd", accumulate=4),
    ],
    4: [
        case("next token, rotary", {"replicate": 2}, optimizer="muon", ema=0.5),
        case("next token, rotary", SEQUENCE, optimizer="muon"),
        case("next token, rotary", {"tensor": 4, "sequence": True}, model=dropping("next token, rotary"), accumulate=2),
        case("next token, rotary", {"context": 2, "tensor": 2}),
        case("next token, experts", {"expert": 2, "replicate": 2}, optimizer="muon"),
        case("next token, experts", ZERO_BUBBLE, optimizer="muon", accumulate=2, ema=0.5),
        case("prefix, distances, experts", {"pipeline": 4}, depth=6, accumulate=4),
        case("next token, experts", {**PIPELINE, **SEQUENCE}, accumulate=2, ema=0.5),
    ],
}  # fmt: skip
ALL = {
    2: [
        *(case(name, optimizer=optimizer) for name in tasks.RUNS for optimizer in OPTIMIZERS),
        *(case(name, precision="bf16", optimizer="sgd") for name in tasks.RUNS if not name.startswith(CUT)),
        *across(FAMILIES, [{"replicate": 2}], accumulate=2),
        *across(FAMILIES, [{}], ema=0.5),
        *(case(name, lora={"rank": 2}) for name in FAMILIES),
        *(case(name, precision="bf16", optimizer="muon", checkpoint_activations=True) for name in FAMILIES[:3]),
        *across((*DENSE, "translation, both", "next token, experts", "chat"), [{"tensor": 2}, SEQUENCE]),
        *dropped([{"tensor": 2}, SEQUENCE]),
        *across(BY_TOKEN, [{"context": 2}]),
        *across(EXPERTS, [{"expert": 2}]),
        *(case(name, PIPELINE, accumulate=2) for name, run in tasks.RUNS.items() if len(run.stacks) == 1),
        *across(CUT_BY_LAYERS, [PIPELINE, INTERLEAVED], depth=4, accumulate=4, ema=0.5),
        *across(WITHOUT_TABLES, [ZERO_BUBBLE], depth=4, accumulate=4, ema=0.5),
        *(
            case(name, mesh, depth=4, accumulate=2, lora={"rank": 2})
            for mesh in (PIPELINE, INTERLEAVED, ZERO_BUBBLE)
            for name in WITHOUT_TABLES
        ),
        *across(UNEVEN, [PIPELINE, INTERLEAVED, ZERO_BUBBLE], depth=5, accumulate=2, ema=0.5),
        *(
            case(name, mesh, "bf16", depth=4, optimizer="sgd", accumulate=2)
            for mesh in (PIPELINE, INTERLEAVED, ZERO_BUBBLE)
            for name in WITHOUT_TABLES
            if not name.startswith(CUT)
        ),
    ],
    4: [
        *across(FAMILIES, [{}, {"replicate": 2}, {"replicate": 4}], ema=0.5),
        *across((*DENSE, "translation, both"), [{"tensor": 2}, SEQUENCE, {**SEQUENCE, "replicate": 2}]),
        *dropped([{"tensor": 4}, {"tensor": 4, "sequence": True}]),
        *across(BY_TOKEN, [{"context": 2}, {"context": 4}]),
        *across(tuple(run for run in BY_TOKEN if "distances" not in run), [{**SEQUENCE, "context": 2}]),
        *across(("next token, experts", "chat, packed, experts"), [{"context": 2, "expert": 4}]),
        *across(EXPERTS, [{"expert": 2}, {"expert": 4}, {"expert": 2, "replicate": 2}, {**SEQUENCE, "expert": 2}]),
        *across(CUT_BY_LAYERS, [PIPELINE, INTERLEAVED, {**PIPELINE, "replicate": 2}], depth=4, accumulate=2),
        *across(WITHOUT_TABLES, [ZERO_BUBBLE], depth=4, accumulate=2),
        *across(CUT_BY_LAYERS, [{"pipeline": 4}], depth=4, accumulate=4),
        *across(WITHOUT_TABLES, [{**ZERO_BUBBLE, "pipeline": 4}], depth=4, accumulate=4),
        *across(DENSE[:2], [{**INTERLEAVED, "pipeline": 4}], depth=8, accumulate=4),
        *across(
            (*DENSE, "next token, experts", "chat"),
            [{**PIPELINE, "tensor": 2}, {**PIPELINE, **SEQUENCE}],
            accumulate=2,
            ema=0.5,
        ),
        *across(
            (*DENSE[:3], "next token, experts"),
            [{**ZERO_BUBBLE, **SEQUENCE}, {**INTERLEAVED, **SEQUENCE}],
            depth=4,
            accumulate=2,
        ),
        *across(UNEVEN, [{"pipeline": 4}, {**ZERO_BUBBLE, "pipeline": 4}], depth=6, accumulate=4),
        *across(UNEVEN, [{**INTERLEAVED, "pipeline": 4}], depth=9, accumulate=4),
        *across(UNEVEN, [{**PIPELINE, "replicate": 2}], depth=3, accumulate=2),
    ],
}


@dataclass(frozen=True)
class Gap:
    """How far a case is from one process: losses, norms and weights of each step, and the score."""

    loss: float
    norm: float
    weight: float
    score: float
    names: bool  # whether the weights have the same names
    limit: float = 1.0  # times those of fp32

    @property
    def problem(self) -> str:
        """What is too far; empty if nothing is."""
        limits = {"loss": LOSS, "norm": 2 * LOSS, "weight": WEIGHT, "score": 2 * LOSS}
        far = [
            f"{name} {getattr(self, name):.1e}"
            for name, limit in limits.items()
            if not getattr(self, name) <= self.limit * limit
        ]
        return ", ".join([*far, *([] if self.names else ["other names"])])


def launch(processes: int, *command: str, **more: str) -> str:
    """What a program prints on several processes, forks of one that has imported what it needs; `more` is in their environment."""
    return programs.forked("parallel.imported", "parallel.together", processes, *command, **more)


def gaps(processes: int, cases: list[Case], folder: Path) -> list[Gap]:
    """Train the cases on several processes, and compare each with one process."""
    (folder / "cases.json").write_text(json.dumps(cases))
    launch(processes, "tests.parallel.engines", str(folder))
    collected = []
    for number, each in enumerate(cases):
        result = json.loads((folder / f"{number}.json").read_text())
        limit = BF16_WITHOUT_UNITS / LOSS if each["precision"] == "bf16" and has_bf16() is False else 1.0
        measured = gap(result, load_file(folder / f"{number}.safetensors"), *alone(each, processes))
        collected.append(replace(measured, limit=limit))
    return collected


def alone(each: Case, processes: int) -> tuple[Any, Any]:
    """The same on one process; in bf16, in as many micro-batches, so that its products have the same shapes."""
    train = each["train"]
    if each["precision"] == "bf16":
        apart = processes // each["mesh"].get("pipeline", 1)
        train = {**train, "accumulate": apart * train.get("accumulate", 1)}
    return _alone(json.dumps({**each, "mesh": {}, "train": train}, sort_keys=True))


@cache
def _alone(text: str) -> tuple[Any, Any]:
    return engines.trained(json.loads(text), Ranks())


def gap(result: Any, weights: Any, expected: Any, expected_weights: Any) -> Gap:
    """How far results are from those expected.

    A key's bias without positions gets a gradient of rounding alone, since it adds the same number to all scores of a query. Adam
    and Muon make full steps of it, so it is not compared.
    """

    def furthest(name: str) -> float:
        pairs = zip(result["reports"], expected["reports"], strict=True)
        return max(abs(report[name] - other[name]) / max(1.0, abs(other[name])) for report, other in pairs)

    common = [name for name in expected_weights if name in weights and not name.endswith(".k.bias")]
    weight = max(float((weights[name] - expected_weights[name]).abs().max()) for name in common)
    score = max(
        abs(value - expected["score"][name]) if math.isfinite(value) else 0.0
        for name, value in result["score"].items()
        if isinstance(value, float) and name in ("loss", "accuracy", "share")
    )
    return Gap(furthest("loss"), furthest("gradient_norm"), weight, score, weights.keys() == expected_weights.keys())
