"""How often a step waits for the device and how many kernels it launches, and the table that these numbers may not exceed.

    python -m tests.device.lower        measure, and lower what has fallen in budgets.toml; new cases are added

A model of twelve layers takes a training step whose loss is in 48 chunks and whose norms would be cut into 48 parts, as a batch of
65,536 tokens is; or it decodes one token. Sizes are small, since they change no count.
"""

import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.config import EngineConfig, NextTokenConfig, SamplingConfig, TransformerConfig
from heddle.config.train import TrainConfig
from heddle.generate import Engine
from heddle.model import Transformer, build
from heddle.tasks import DataSpec, make_task
from heddle.train.optimizer import Optimizer
from heddle.train.training import Training
from tests.device.imitation import Imitation, Place
from tests.device.trainings import store_of
from tests.prove.tasks import TOKENIZER
from tests.toys import LLAMA, TOYS

TABLE = Path(__file__).with_suffix(".toml")
ROWS, CONTEXT, DEPTH = 48, 64, 12
Counts = tuple[int, int]
"""Syncs and launches."""

MOE = TOYS["moe"]["decoder"]["block"]
GPT2 = {"mixer": {"kind": "attention", "heads": 4}, "ffn": {"kind": "mlp", "activation": "gelu_tanh"}}
STACKS: dict[str, dict[str, Any]] = {
    "gpt2": {"block": GPT2, "entry": {"positions": "learned"}},
    "llama": {"block": LLAMA},
    "moe": {"block": MOE},
}
TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "train: gpt2, bf16, adamw": ("gpt2", "bf16", {"optimizer": "adamw"}),
    "train: gpt2, fp32, muon": ("gpt2", "fp32", {"optimizer": "muon"}),
    "train: llama, bf16, adamw": ("llama", "bf16", {"optimizer": "adamw"}),
    "train: llama, bf16, muon, two micro-batches": ("llama", "bf16", {"optimizer": "muon", "accumulate": 2}),
    "train: moe, fp32, adamw": ("moe", "fp32", {"optimizer": "adamw"}),
}
GREEDY = SamplingConfig(temperature=0, max_tokens=20)
SAMPLED = SamplingConfig(temperature=0.8, top_k=9, top_p=0.9, max_tokens=20, seed=3)
DECODINGS: dict[str, tuple[str, SamplingConfig, int]] = {
    "decode: gpt2, greedy": ("gpt2", GREEDY, 1),
    "decode: llama, greedy": ("llama", GREEDY, 1),
    "decode: llama, greedy, in a graph": ("llama", GREEDY.model_copy(update={"max_tokens": 40}), 1),
    "decode: llama, sampled": ("llama", SAMPLED, 1),
    "decode: llama, four rows": ("llama", SAMPLED, 4),
    "decode: moe, greedy": ("moe", GREEDY, 1),
}
CASES = [*TRAININGS, *DECODINGS]


def model_of(name: str) -> Transformer:
    stack = {"depth": DEPTH, **STACKS[name]}
    sizes = {"vocab_size": TOKENIZER.vocab_size, "dim": 32, "context": CONTEXT}
    return build(TransformerConfig.of({**sizes, "decoder": stack}), seed=1).to("cuda")


def train(name: str, precision: str, settings: dict[str, Any]) -> Callable[[], Any]:
    """A training step, after the first."""
    model = model_of(name)
    spec = DataSpec(store_of("next token, rotary").corpus, model.config, ROWS, seed=5, tokenizer=TOKENIZER)
    task = make_task(NextTokenConfig(), spec)
    config = TrainConfig.of({"precision": precision, "compile": "off", "threads": 1, "steps": 9, **settings})
    optimizer, eager = Optimizer(model, config, 1e-3, precision), task.minimised(model, config)
    training = Training(
        train=config,
        model=model,
        optimizer=optimizer,
        task=task,
        eager=eager,
        objective=eager,
        learning_rate=1e-3,
        warmup=1,
        steps=9,
    )
    training.advance()
    return training.advance


def decode(name: str, sampling: SamplingConfig, rows: int) -> Callable[[], Any]:
    """A decoded token of every row, after some."""
    engine = Engine(model_of(name).eval(), config=EngineConfig())
    for row in range(rows):
        engine.submit([5 + row, 7, 9][: row + 1], sampling, seed=row)
    for _ in range(3):
        engine.step()
    return engine.step


def measure(case: str) -> Imitation:
    """The device after one step of a case."""
    with pytest.MonkeyPatch.context() as patch, Imitation() as gpu:
        patch.setattr("heddle.model.device.GPU_LOGITS_BYTES", 1)
        patch.setattr("heddle.nn.norm.IN_CACHE", 1)
        step = train(*TRAININGS[case]) if case in TRAININGS else decode(*DECODINGS[case])
        gpu.reset()
        step()
        return gpu


def by_function(gpu: Imitation) -> dict[str, Counts]:
    """Syncs and launches in all, and of each function of heddle."""
    syncs, launches = Counter[str](), Counter[str]()
    for (place, _), number in gpu.syncs.items():
        syncs[name_of(place)] += number
    for place, number in gpu.launches.items():
        launches[name_of(place)] += number
    counts = {name: (syncs[name], launches[name]) for name in sorted(syncs | launches)}
    return {"all": (syncs.total(), launches.total()), **counts}


def name_of(place: Place) -> str:
    """A function by its file; what is defined inside belongs to it."""
    return f"{place.file}:{place.function.partition('.<locals>')[0]}" if place.function else place.file


def read() -> dict[str, dict[str, Counts]]:
    """The table."""
    cases = tomllib.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    return {case: {name: tuple(each) for name, each in counts.items()} for case, counts in cases.items()}


def excess(limits: dict[str, Counts], gpu: Imitation) -> str:
    """What exceeds the limits in all, and where there are more than before; empty: nothing does."""
    counts, lines = by_function(gpu), []
    for number, what in enumerate(("syncs", "launches")):
        if counts["all"][number] <= limits["all"][number]:
            continue
        lines.append(f"{counts['all'][number]} {what} instead of {limits['all'][number]}, more of them at:")
        for name, each in counts.items():
            before = limits.get(name, (0, 0))[number]
            if name != "all" and each[number] > before:
                lines.append(f"  {name}: {each[number]} instead of {before}, in line {lines_of(name, gpu, what)}")
    return "\n".join(lines)


def lines_of(name: str, gpu: Imitation, what: str) -> str:
    """The lines of a function, and why they wait."""
    if what == "launches":
        places = {f"{place.line}" for place in gpu.launches if name_of(place) == name}
    else:
        places = {f"{place.line} ({reason})" for place, reason in gpu.syncs if name_of(place) == name}
    return ", ".join(sorted(places))


def write(cases: dict[str, dict[str, Counts]]) -> None:
    """The table, one line for each function."""
    lines = ["# [syncs, launches] of one step, in all and by function (budgets.py). `all` may only fall."]
    for case, counts in cases.items():
        lines += ["", f'["{case}"]', *[f'"{name}" = {list(each)}' for name, each in counts.items()]]
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def lower() -> None:
    """Measure, and write what has fallen.

    Raises:
        SystemExit: something has risen.
    """
    table = read()
    for case in CASES:
        gpu = measure(case)
        if case in table and (text := excess(table[case], gpu)):
            raise SystemExit(f"{case}: {text}")
        table[case] = by_function(gpu)
        print(case, *table[case]["all"])
    write({case: table[case] for case in CASES})
