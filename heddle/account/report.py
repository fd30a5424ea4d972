"""The account of a model that need not exist yet: parameters, FLOPs and memory, as data."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from typing import Any

from heddle.account.flops import Flops, flops
from heddle.account.formulas import rule
from heddle.account.forward import attentions
from heddle.account.memory import Memory, memory
from heddle.account.parameters import Parameters, Weight, parameter_count, parameters, rule_applies, weights
from heddle.account.quadratic import doublings
from heddle.account.repeats import measured
from heddle.account.tables import contents
from heddle.checks import at_least, checked
from heddle.config.layers import (
    AttentionConfig,
    ConvolutionConfig,
    CustomConfig,
    GatedConfig,
    LinearConfig,
    MLPConfig,
    MoEConfig,
    RecurrentConfig,
)
from heddle.config.model import TransformerConfig
from heddle.config.presets import preset, preset_names, preset_training
from heddle.display import displayed, html_table
from heddle.errors import HeddleError
from heddle.model.build import build

COUNTABLE = 10**17  # numbers in one tensor of a pass whose bytes can still be counted in 64 bits
# Counts as printed in the lectures; they are rounded, sometimes loosely (D-44).
PRINTED = {
    "gpt1": 117e6,
    "gpt2-small": 124e6,
    "gpt2-xl": 1.5e9,
    "gpt3-small": 125e6,
    "gpt3-medium": 350e6,
    "gpt3-large": 760e6,
    "gpt3-xl": 1.3e9,
    "gpt3-xl-as-printed": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13e9,
    "gpt3-13b-as-printed": 13e9,
    "gpt3-175b": 175e9,
    "mistral-7b": 7e9,
    "falcon-40b": 40e9,
}


@displayed()
@dataclass(frozen=True)
class Group:
    """Weights counted as one line: a part outside the blocks, or the layers of a stack with equal weights.

    Attributes:
        name: `token embedding`; or the stack's name, `decoder.blocks`.
        layers: the numbers of the layers; empty outside the blocks.
        each: parameters of one layer, or of the part.
    """

    name: str
    layers: tuple[int, ...]
    each: int

    @property
    def total(self) -> int:
        """Parameters of all of them."""
        return self.each * max(1, len(self.layers))

    def label(self) -> str:
        """The name with its layers abbreviated: `decoder.blocks.0 … 11`, or `decoder.blocks.0, 2 … 10` for every second one."""
        return f"{self.name}.{_folded(self.layers)}" if self.layers else self.name


@displayed(".parameters, .flops, .memory")
@dataclass(frozen=True)
class Accounts:
    """The account of one model.

    Attributes:
        layout: the parameters in the order of the model, equal layers as one group; they sum to the total.
        name: the given name, or empty.
        family: which stacks are present: `encoder`, `decoder` or `encoder-decoder`.
        printed: the count that a lecture prints for this preset, or None.
        notes: remarks about these numbers, one sentence each.
    """

    name: str
    family: str
    config: TransformerConfig
    parameters: Parameters
    layout: tuple[Group, ...]
    flops: Flops
    memory: Memory
    printed: float | None
    notes: tuple[str, ...]

    def _lines(self) -> Iterator[str]:
        yield f"{self.name or 'model'}, {self.family}: {self.parameters.total:,} parameters"
        for part in (self.parameters, self.flops, self.memory):
            yield from (f"  {line}" for line in repr(part).splitlines())
        yield "  more: rich.print(*heddle.account.render(report, full=True)), .to_dict()"

    def _repr_html_(self) -> str:
        parts = contents(self)
        return "".join(f"<p>{escape(part)}</p>" if isinstance(part, str) else html_table(*part) for part in parts)

    def has_foreign_mixer(self) -> bool:
        """Whether a layer has a custom mixer, whose attention pattern is unknown."""
        return any(isinstance(block.mixer, CustomConfig) for block in self.config.last()[1].blocks)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "name": self.name,
            "family": self.family,
            "config": self.config.to_dict(),
            "parameters": asdict(self.parameters),
            "layout": [asdict(group) | {"total": group.total} for group in self.layout],
            "flops": asdict(self.flops),
            "memory": asdict(self.memory),
            "printed": self.printed,
            "notes": list(self.notes),
        }


@checked(batch=at_least(1), length=at_least(1))
def count(config: TransformerConfig, batch: int = 1, length: int | None = None, name: str = "") -> Accounts:
    """Count a model's parameters, FLOPs and memory, without allocating weights.

    Args:
        config: the model.
        batch: rows of tokens in one pass.
        length: tokens in each row; defaults to the model's context. It may exceed the learned positions.
        name: the preset's name, if it is one; the report then includes the printed count.

    Raises:
        HeddleError: `batch` or `length` is below 1, or the pass is so large that its bytes cannot be counted in 64 bits.
    """
    length = config.context if length is None else length
    for argument, value in (("batch", batch), ("length", length)):
        if value < 1:
            raise HeddleError(f"{argument} = {value}: must be at least 1")
    longest = doublings(length)[-1]
    if batch * longest * max(config.table_rows(), *_widths(config, longest)) > COUNTABLE:
        raise HeddleError(f"batch = {batch}, length = {length}: a pass would need more numbers than fit on any machine")
    counts, cost = parameters(config), flops(config, batch, length)
    return Accounts(
        name=name,
        family=family(config),
        config=config,
        parameters=counts,
        layout=layout(weights(build(config, "meta"))),
        flops=cost,
        memory=memory(config, batch, length),
        printed=PRINTED.get(name),
        notes=tuple(_notes(config, counts, cost, length)),
    )


def layout(tensors: Sequence[Weight]) -> tuple[Group, ...]:
    """Weights in groups, in the order of the model; layers of a stack whose tensors have equal names and shapes are one group."""
    blocks: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for weight in tensors:
        if weight.block is not None:
            block = f"{weight.stack}.blocks.{weight.block}"
            blocks.setdefault(block, []).append((weight.name.removeprefix(block), weight.shape))
    sizes: Counter[tuple[Any, ...]] = Counter()
    layers: dict[tuple[Any, ...], list[int]] = {}
    for weight in tensors:
        if weight.block is None:
            key: tuple[Any, ...] = (weight.part,)
        else:
            key = f"{weight.stack}.blocks", *blocks[f"{weight.stack}.blocks.{weight.block}"]
            numbers = layers.setdefault(key, [])
            if weight.block not in numbers:
                numbers.append(weight.block)
        sizes[key] += weight.count
    return tuple(
        Group(key[0], tuple(layers.get(key, ())), size // max(1, len(layers.get(key, ()))))
        for key, size in sizes.items()
    )


def _folded(numbers: Sequence[int]) -> str:
    """Ascending numbers, with runs and even steps abbreviated: `0 … 11`, `0, 2 … 10`, `0 … 4, 6`."""
    if len(numbers) > 3 and len(steps := {b - a for a, b in pairwise(numbers)}) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} … {run[-1]}" for run in runs)


@checked()
def family(config: TransformerConfig) -> str:
    """Which stacks are present: `encoder`, `decoder` or `encoder-decoder`."""
    return "-".join(config.stacks())


def _widths(config: TransformerConfig, length: int) -> Iterator[int]:
    """The largest numbers of values that a layer computes per token in a sequence of `length` tokens."""
    yield config.dim
    for stack in config.stacks().values():
        for block in stack.blocks:
            for attention in attentions(block):
                yield attention.heads * max(attention.width(config.dim), attention.value_dim or 1, length)
            for part in (block.mixer, block.ffn):
                if isinstance(part, MLPConfig | GatedConfig | MoEConfig):
                    yield part.width(config.dim) * (part.active if isinstance(part, MoEConfig) else 1)
                elif isinstance(part, ConvolutionConfig | LinearConfig):
                    yield part.taps * config.dim
                elif isinstance(part, RecurrentConfig):
                    yield 4 * part.width(config.dim)


def _notes(config: TransformerConfig, counts: Parameters, cost: Flops, length: int) -> list[str]:
    notes = []
    if counts.rule is not None and not counts.rule_holds:
        notes.append(
            "12Ld² assumes four d × d projections and an ungated feed-forward of width 4d; these blocks differ."
        )
    if not counts.deck:
        notes.append(
            "The lectures' sums assume one stack of equal layers, each with attention and one feed-forward, and a head that "
            "scores tokens; they are left out here."
        )
    attention_layers = dict.fromkeys(attention for block in config.last()[1].blocks for attention in attentions(block))
    for attention in attention_layers:
        heads, width = attention.heads, attention.width(config.dim)
        if isinstance(attention, AttentionConfig) and heads * width != config.dim:
            notes.append(f"heads · head_dim = {heads} · {width} = {heads * width} is not dim = {config.dim}.")
    if config.dim % 64:
        notes.append(f"dim = {config.dim} is {config.dim / 64:g} times 64; matrix units prefer whole multiples.")
    if length > config.context and counts.parts["positions"]:
        notes.append(
            f"{length} tokens exceed the {config.context} learned positions; the costs assume that more were learned."
        )
    if family(config) == "encoder-decoder":
        notes.append(f"The encoder reads a source as long as the tokens, {length}.")
    if cost.unknown:
        notes.append(
            f"{', '.join(cost.unknown)} cannot run on the meta device: FLOPs and memory of these modules are not counted."
        )
    return notes


def preset_table() -> list[dict[str, Any]]:
    """One row for each preset: name, family, exact parameters, 12Ld² or None, and the printed figure or None (L1-57)."""
    rows = []
    for name in preset_names():
        config = preset(name)
        total = measured(config, lambda short: {"parameters": parameter_count(short)})
        twelve = rule(config.last()[1].depth, config.dim) if rule_applies(config) else None
        row = {"name": name, "family": family(config), **total, "rule": twelve}
        rows.append({**row, "printed": PRINTED.get(name)})
    return rows


@checked()
def training_settings(name: str) -> dict[str, Any]:
    """The training settings of a preset, if any: tokens in a batch, sequences in a batch, peak learning rate.

    A batch holds whole sequences, so `batch_tokens` is the nearest possible number (L1-72, L1-73, D-18).

    Raises:
        HeddleError: the preset does not exist.
    """
    settings = preset_training(name)
    if "batch_tokens" in settings:
        context = preset(name).context
        sequences = max(1, round(settings["batch_tokens"] / context))
        settings |= {"batch_tokens": sequences * context, "sequences": sequences, "context": context}
    return settings
