"""Load a run's model for inference."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.cli.output import console, phases, pluralize
from heddle.config.decoding import Kind, WeightKind, completed
from heddle.config.saved import SavedConfig
from heddle.errors import HeddleError
from heddle.model.device import move, pick_device
from heddle.model.precision import cast
from heddle.model.quantize import quantize, weight_bytes
from heddle.model.transformer import Transformer
from heddle.predict.precision import predicting_precision
from heddle.text.tokenizer import Tokenizer
from heddle.weights.run import load, read_config


@dataclass(frozen=True)
class Ready:
    """A run's latest model in its inference precision on this machine, with its tokenizer and config."""

    model: Transformer
    tokenizer: Tokenizer | None
    config: SavedConfig
    precision: str


def open_model(run: Path, device: str, weights: WeightKind = "trained", precision: str | None = None) -> Ready:
    """Load a run's model in its training precision, so that inference computes the same function as training.

    If that precision is more than twice as slow as fp32 on this machine, fp32 is used. This, the precision of imported weights, and
    the memory that int8 or int4 weights save, are reported on stderr.

    Args:
        run: its directory.
        device: where to compute.
        weights: what they are quantized to.
        precision: as `--precision` requests it (see `heddle.predict.precision`).
    """
    target, config = pick_device(device), read_config(run)
    used, note = predicting_precision(run, config, target, precision)
    model, tokenizer = load(run, "cpu")
    if note:
        print(note, file=sys.stderr)
    move(cast(model, used), target)  # first cast: a card may hold the model in bf16 only
    if weights != "trained":
        original_bytes = weight_bytes(model)
        quantize(model, weights)
        print(
            f"{weights}: {weight_bytes(model) / 1e6:.1f} MB of weights instead of {original_bytes / 1e6:.1f} MB",
            file=sys.stderr,
        )
    return Ready(model, tokenizer, config, used)


def compile_model(model: Transformer, *batch_sizes: int) -> Transformer:
    """Compile the decoding steps for these batch sizes, and return the model.

    Raises:
        HeddleError: see `heddle.model.compiling` and `heddle.model.compile_steps`.
    """
    with phases(console(as_json=True)) as report:  # the compilers take a second to import
        if model.device.type == "cpu":
            from heddle.model.compile_steps import compile_now

            report("compiling decoding steps: takes about a minute, once for this machine and a model's shape")
            compile_now(model.eval(), batch_sizes)
        else:
            from heddle.model.compiling import compile_steps, warm_up

            report(f"compiling {pluralize(len(batch_sizes), 'decoding step')}: takes about half a minute each")
            warm_up(compile_steps(model), batch_sizes)
    return model


def tokenizer_of(ready: Ready, run: Path) -> Tokenizer:
    """A run's tokenizer.

    Raises:
        HeddleError: the run has none.
    """
    if ready.tokenizer is None:
        raise HeddleError(f"{run} has no tokenizer.json; import the weights with their tokenizer, or copy it there")
    return ready.tokenizer


def check_generates(run: Path, ready: Ready) -> None:
    """Refuse a run that cannot generate text, and suggest the command for its head.

    Raises:
        HeddleError: the model has no decoder, or no language modeling head.
    """
    head = ready.model.config.head.kind
    if ready.model.decoder is None or head != "language":
        command = {"language": "fill", "classifier": "classify"}.get(head, "embed")
        raise HeddleError(f"{run} cannot generate text; use heddle {command}")


def decoding_config(
    ready: Ready, kind: type[Kind], settings: Mapping[str, Any], fallback: Mapping[str, Any] | None = None
) -> Kind:
    """The decoding config: the user's settings, else those of an imported model, which are printed to stderr."""
    defaults = ready.model.config.decoding
    from_files = {} if defaults is None else defaults.missing_from(kind, settings)
    if from_files:
        print(
            "using the model's generation config: "
            + ", ".join(f"{name} = {value}" for name, value in from_files.items()),
            file=sys.stderr,
        )
    return completed(kind, settings, defaults, "settings", fallback)
