"""A run's model, ready to predict."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.account.machine import available_memory, usable_precision
from heddle.cli.output import console, phases, pluralize
from heddle.config.decoding import Kind, WeightKind, completed
from heddle.config.saved import SavedConfig
from heddle.errors import HeddleError
from heddle.model.precision import cast
from heddle.model.quantize import quantize, weight_bytes
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.weights.run import load, read_config


@dataclass(frozen=True)
class Ready:
    """A run's newest model, in the precision it computes in on this machine, with its tokenizer and config."""

    model: Transformer
    tokenizer: Tokenizer | None
    config: SavedConfig
    precision: str


def open_model(run: Path, device: str, weights: WeightKind = "trained") -> Ready:
    """Load a run's model in the precision of its training, since the function that predicts is the function that was trained.

    If that precision is over twice as slow as fp32, fp32 is used, and a line on stderr says so. Another line says how much
    smaller the weights are if they are rounded to int8 or int4.
    """
    model, tokenizer = load(run, device)
    config = read_config(run)
    trained = config.chosen.precision if config.chosen else "fp32"
    precision = usable_precision(trained, model.device)
    if precision != trained:
        print(
            f"{run} was trained in {trained}, which is over twice as slow as {precision} here: {precision} is used",
            file=sys.stderr,
        )
    cast(model, precision)
    if weights != "trained":
        before = weight_bytes(model)
        quantize(model, weights)
        print(
            f"{weights}: {weight_bytes(model) / 1e6:.1f} MB of weights instead of {before / 1e6:.1f} MB",
            file=sys.stderr,
        )
    return Ready(model, tokenizer, config, precision)


def compile_model(model: Transformer, *rows: int) -> Transformer:
    """Compile the decoding steps of so many rows where that makes them faster here, say so on stderr, and return the model.

    Raises:
        HeddleError: see `heddle.model.compiling`.
    """
    from heddle.model.step_rates import OWN, compile_faster_steps  # the compiler takes a second to import

    with phases(console(as_json=True)) as tell:
        tell(f"compiling {pluralize(len(rows), 'decoding step')}: about half a minute each")
        begin = time.perf_counter()
        reports = compile_faster_steps(model, rows, available_memory(model.device) // 2)
        for report in reports:
            if report.best == OWN:
                texts = "several texts at once" if report.several else "one text"
                rates = ", ".join(f"{rate:,.0f} tokens/s {way}" for way, rate in report.rates.items())
                tell(f"steps of {texts} are not compiled, which is faster on this machine: {rates}")
        if model.steps is not None:
            tell(f"compiled in {time.perf_counter() - begin:.0f} s")
    return model


def tokenizer_of(ready: Ready, run: Path) -> Tokenizer:
    """A run's tokenizer, where texts are read or written.

    Raises:
        HeddleError: the run has none.
    """
    if ready.tokenizer is None:
        raise HeddleError(f"{run} has no tokenizer.json; import the weights with their tokenizer, or copy one there")
    return ready.tokenizer


def check_writes(run: Path, ready: Ready) -> None:
    """Refuse a run that cannot continue a text, and name the command for what its head does.

    Raises:
        HeddleError: it has no decoder, or another head than a language model's.
    """
    head = ready.model.config.head.kind
    if ready.model.decoder is None or head != "language":
        command = {"language": "fill", "classifier": "classify"}.get(head, "embed")
        raise HeddleError(f"{run} is no model that writes text; use heddle {command}")


def strategy(ready: Ready, kind: type[Kind], said: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> Kind:
    """How to generate: as the user says, else as an imported model's files say, which a line on stderr repeats."""
    defaults = ready.model.config.decoding
    used = {} if defaults is None else defaults.missing_from(kind, said)
    if used:
        print("as its files say: " + ", ".join(f"{name} = {value}" for name, value in used.items()), file=sys.stderr)
    return completed(kind, said, defaults, "settings", usual)
