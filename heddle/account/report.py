"""Everything that can be said of a model before it exists: parameters, FLOPs and memory, as data."""

from dataclasses import asdict, dataclass
from typing import Any

from heddle.account.flops import Flops, flops
from heddle.account.memory import Memory, doublings, memory
from heddle.account.parameters import Parameters, parameters
from heddle.config.model import TransformerConfig
from heddle.config.presets import preset, preset_names
from heddle.errors import HeddleError

FAMILY = "decoder"  # the one family that can be described so far
COUNTABLE = 10**17  # numbers in one tensor of a pass, whose bytes can still be counted in 64 bits
# Counts as the lectures print them; they are rounded, sometimes freely (D-44).
PRINTED = {"gpt2-small": 124e6, "gpt2-xl": 1.5e9}


@dataclass(frozen=True)
class Report:
    """The account of one model.

    Attributes:
        name: what it was called, or empty.
        family: which stacks are present.
        printed: the count that a lecture prints for this preset, or None.
        notes: what a reader should know about these numbers, a sentence each.
    """

    name: str
    family: str
    config: TransformerConfig
    parameters: Parameters
    flops: Flops
    memory: Memory
    printed: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "name": self.name,
            "family": self.family,
            "config": self.config.to_dict(),
            "parameters": asdict(self.parameters),
            "flops": asdict(self.flops),
            "memory": asdict(self.memory),
            "printed": self.printed,
            "notes": list(self.notes),
        }


def count(config: TransformerConfig, batch: int = 1, length: int | None = None, name: str = "") -> Report:
    """Account for a model: nothing is allocated and no weights are needed.

    Args:
        config: the model.
        batch: rows of tokens in a pass.
        length: tokens in each row; the model's context when left out. It may be longer than learned positions reach.
        name: the preset's name, where it is one; known figures are then set beside the count.

    Raises:
        HeddleError: `batch` or `length` is below 1, or together so large that bytes cannot be counted in 64 bits.
    """
    length = config.context if length is None else length
    for word, value in (("batch", batch), ("length", length)):
        if value < 1:
            raise HeddleError(f"{word} = {value}: at least 1 is needed")
    mixer, longest = config.decoder.block.mixer, doublings(length)[-1]
    widths = config.table_rows(), config.decoder.block.ffn.width(config.dim), mixer.heads * mixer.width(config.dim)
    if batch * longest * max(*widths, mixer.heads * longest) > COUNTABLE:
        raise HeddleError(
            f"batch = {batch}, length = {length}: a pass would make more numbers than any machine can hold"
        )
    known = parameters(config)
    return Report(
        name=name,
        family=FAMILY,
        config=config,
        parameters=known,
        flops=flops(config, batch, length),
        memory=memory(config, batch, length),
        printed=PRINTED.get(name),
        notes=tuple(_notes(config, known, length)),
    )


def _notes(config: TransformerConfig, known: Parameters, length: int) -> list[str]:
    notes = []
    if not known.rule_holds:
        notes.append(
            "12Ld² is for four d × d projections and an ungated feed-forward of width 4d; these blocks differ."
        )
    if config.dim % 64:
        notes.append(f"dim = {config.dim} is {config.dim / 64:g} times 64; matrix units prefer whole multiples.")
    if length > config.context and known.parts["positions"]:
        notes.append(
            f"{length} tokens exceed the {config.context} learned positions; the costs are as if more were learned."
        )
    return notes


def preset_table() -> list[dict[str, Any]]:
    """One row for each preset: name, family, exact parameters, 12Ld², and the printed figure or None (L1-57)."""
    rows = []
    for name in preset_names():
        known = parameters(preset(name))
        row = {"name": name, "family": FAMILY, "parameters": known.total, "rule": known.rule}
        rows.append({**row, "printed": PRINTED.get(name)})
    return rows
