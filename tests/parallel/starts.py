"""Runs that start on several processes in the tests, and in full by `python -m tests.parallel.full`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from heddle.config import TransformerConfig
from heddle.config.run import RunConfig
from heddle.prove.kills import MinimalTrainer
from heddle.runs import prepare
from heddle.weights.run import read_config
from tests import running
from tests.parallel.cases import launch
from tests.parallel.starting import expect, on_mesh

Case = tuple[str, dict[str, Any]]
NORMS = {"heads": 2, "bias": True, "qk_norm": {"kind": "layer"}}
EXPERTS = {
    "ffn": {"kind": "moe", "experts": 4, "active": 2, "bias_rate": 0.01, "expert": {"kind": "gated", "hidden": 12}}
}
BUCKETS = {"mixer": {"heads": 2, "relative": {"kind": "buckets", "buckets": 8, "furthest": 12}}}
CUSTOM = {"mixer": {"kind": "custom", "target": "tests.model.modules:Keeping"}, "norm": {"kind": "layer"}}
READS_VALUES = {"mixer": {"kind": "custom", "target": "tests.model.modules:Asking"}}
SIZES = {"vocab_size": 257, "dim": 16, "context": 16, "pad_vocab_to": 1}  # 257 rows are not a multiple of any mesh
MODELS: dict[str, dict[str, Any]] = {
    "tied": {"decoder": {"depth": 4, "block": {"mixer": NORMS}}},
    "untied": {
        "decoder": {"depth": 4, "block": {"mixer": {"heads": 2}}, "entry": {"positions": "learned"}},
        "head": {"tied": False, "bias": True},
    },
    "xavier": {"decoder": {"depth": 2, "block": {"mixer": NORMS}}, "initial": {"rule": "xavier"}},
    "experts": {"decoder": {"depth": 2, "block": {"mixer": {"heads": 2}, **EXPERTS}}},
    "distances": {"decoder": {"depth": 4, "block": BUCKETS}},
    "custom": {"decoder": {"depth": 2, "block": CUSTOM}},
    "one matrix twice": {
        "decoder": {"depth": 2, "block": {"mixer": {"kind": "custom", "target": "tests.model.modules:Tied"}}}
    },
    "reads values": {"decoder": {"depth": 2, "block": READS_VALUES}},
}
STARTS: dict[str, dict[str, Any]] = {
    "start": {},
    "adapters": {"lora": {"rank": 2}},
    "continued adapters": {"lora": {"rank": 2}, "steps": 2, "save_every": 1},
    "start, average": {"ema": 0.5},
    "vectors": {"vectors": "words.vec"},
}
SEQUENCE = {"tensor": 2, "sequence": True}
INTERLEAVED, ZERO_BUBBLE = ({"pipeline": 2, "schedule": name} for name in ("interleaved", "zero-bubble"))
# Every model, start and kind of division, for every commit.
SOME: dict[int, list[Case]] = {
    2: [
        *(
            (name, {})
            for name in ("xavier", "one matrix twice", "reads values", "continued adapters", "start, average")
        ),
        ("custom", {"replicate": 2}),
        *((name, {"tensor": 2}) for name in ("untied", "adapters", "start")),
        ("tied", SEQUENCE),
        ("tied", {"context": 2}),
        ("experts", {"expert": 2}),
        *((name, {"pipeline": 2}) for name in ("custom", "start", "vectors", "experts")),
        ("distances", INTERLEAVED),
        ("untied", ZERO_BUBBLE),
    ],
    4: [
        *((name, {"replicate": 2}) for name in ("adapters", "vectors")),
        ("tied", {"tensor": 2}),
        ("tied", {**SEQUENCE, "replicate": 2}),
        ("tied", {"context": 2, "tensor": 2}),
        *(("experts", mesh) for mesh in ({"expert": 2}, {"expert": 2, "replicate": 2})),
        *((name, {"pipeline": 2}) for name in ("distances", "start")),
        ("tied", {"pipeline": 2, "replicate": 2}),
        ("untied", {"pipeline": 4}),
    ],
}
ALL: dict[int, list[Case]] = {
    2: [
        *((name, {}) for name in (*MODELS, *STARTS)),
        *((name, {"replicate": 2}) for name in ("tied", "custom", "adapters")),
        *((name, {"tensor": 2}) for name in ("tied", "untied", "adapters", "start")),
        ("tied", SEQUENCE),
        ("tied", {"context": 2}),
        ("experts", {"expert": 2}),
        *((name, {"pipeline": 2}) for name in ("tied", "untied", "custom", "start", "vectors")),
        ("distances", INTERLEAVED),
        ("distances", {"pipeline": 2}),
        ("experts", {"pipeline": 2}),
        ("untied", ZERO_BUBBLE),
    ],
    4: [
        *((name, {"replicate": 2}) for name in ("tied", "experts", "adapters", "vectors")),
        *((name, {"tensor": 2}) for name in ("tied", "start")),
        ("tied", {**SEQUENCE, "replicate": 2}),
        ("tied", {"context": 2, "tensor": 2}),
        *(("experts", mesh) for mesh in ({"expert": 2}, {"expert": 4}, {"expert": 2, "replicate": 2})),
        *((name, {"pipeline": 2}) for name in ("tied", "distances", "start")),
        ("tied", {"pipeline": 2, "replicate": 2}),
        ("untied", {"pipeline": 4}),
    ],
}


def prepared(place: Path) -> dict[str, Path]:
    """New runs, and what one process holds at their start."""
    corpus, vectors = running.write_corpus(place), place / "words.vec"
    vectors.write_text("\n".join(f"{word} " + " ".join(str(number / 7) for number in range(16)) for word in "taofz"))
    made = {name: place / name for name in (*MODELS, *STARTS)}
    with pytest.MonkeyPatch.context() as patch:
        running.make_quick(patch)
        for name, model in MODELS.items():
            prepare(running.run_config(corpus, batch=16, accumulate=4), made[name])
            config = read_config(made[name])
            changed = config.model_copy(update={"model": TransformerConfig.of({**SIZES, **model})})
            (made[name] / "config.json").write_text(changed.to_json(), encoding="utf-8")
        prepare(running.run_config(corpus, model={"depth": 2}, steps=1), place / "other")
        shutil.copytree(made["one matrix twice"], place / "another")
        for name in ("other", "another"):
            MinimalTrainer(place / name).run()
        for name, settings in STARTS.items():
            train = {**running.TRAIN, "batch": 16, "accumulate": 4, **settings}
            start: dict[str, Any] = {"from": str(place / ("another" if name == "start, average" else "other"))}
            data: dict[str, Any] = {"sources": [str(corpus)]}
            if name == "vectors":
                train["vectors"], data["tokenizer"], start = str(vectors), "bytes", {**running.SIZES, "depth": 2}
            prepare(RunConfig.of({"data": data, "model": start, "train": train}), made[name])
        MinimalTrainer(made["continued adapters"]).run()
        for name in ("checkpoints/step-2", "model.safetensors", "adapter.safetensors", "manifest.json"):
            (made["continued adapters"] / name).rename(place / Path(name).name)
    for run in made.values():
        expect(run)
    return made


def check(processes: int, cases: list[Case], runs: dict[str, Path], place: Path) -> None:
    """Start them on several processes, each of which must hold its parts of what one process holds."""
    each = [on_mesh(runs[name], place / str(number), mesh) for number, (name, mesh) in enumerate(cases)]
    launch(processes, "tests.parallel.starting", "same", *map(str, each))
