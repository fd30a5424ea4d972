"""Parameters, counted by walking a built model; the lectures' sum is then reconciled with what the walk found."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import nn

from heddle.account.formulas import Line, rule
from heddle.config.model import TransformerConfig
from heddle.model.build import build

# The first row whose pattern fits a parameter's name decides its part, in this order of display.
PARTS = [
    (r"^embedding\.weight$", "token embedding"),
    (r"^decoder\.entry\.positions\.", "positions"),
    (r"\.mixer\.q\.weight$", "q"),
    (r"\.mixer\.k\.weight$", "k"),
    (r"\.mixer\.v\.weight$", "v"),
    (r"\.mixer\.o\.weight$", "o"),
    (r"\.ffn\.(up|gate|down)\.weight$", "feed-forward"),
    (r"\.mixer\.[qkvo]\.bias$", "attention biases"),
    (r"\.ffn\.(up|gate|down)\.bias$", "feed-forward biases"),
    (r"\.mixer\.[qk]_norm\.", "query and key norms"),
    (r"_residual\.\w+\.weight$", "norm gains"),
    (r"_residual\.\w+\.bias$", "norm shifts"),
    (r"\.final_norm\.", "final norm"),
    (r"^head\.weight$", "head"),
    (r"", "other"),
]
MATRICES = ("q", "k", "v", "o", "feed-forward")
# What deck 000's sum leaves out, with the closed forms that hold for a GPT-2-like model (D-12).
LEFT_OUT = {
    "attention biases": "4Ld",
    "feed-forward biases": "5Ld",
    "query and key norms": "",
    "norm gains": "2Ld",
    "norm shifts": "2Ld",
    "final norm": "2d",
    "other": "",
}


@dataclass(frozen=True)
class Weight:
    """One parameter tensor of a model and the part it belongs to; `block` is None outside the blocks."""

    name: str
    shape: tuple[int, ...]
    part: str
    block: int | None

    @property
    def count(self) -> int:
        """Numbers in the tensor."""
        return prod(self.shape)


@dataclass(frozen=True)
class Item:
    """One reason why the exact count is not the lecture's sum; `formula` is empty where no closed form holds here."""

    name: str
    formula: str
    count: int


@dataclass(frozen=True)
class Parameters:
    """What a model consists of, in numbers.

    Attributes:
        total: every parameter, as `sum(p.numel())` says.
        parts: part to count, over the whole model; sums to `total`. The head is 0 when it is the token table itself.
        groups: the lecture's three parts and the final norm (L0-78); sums to `total`.
        block: part to count, within the first block.
        untied: the total with a head of its own (L0-76).
        deck: deck 000's sum, line by line (L0-79 … L0-84); its last line is the sum itself.
        difference: from the deck's sum to `total`, item by item.
        rule: 12Ld² (L1-52).
        rule_share: the rule over `total` (L1-57).
        rule_holds: whether the blocks' matrices really are 12Ld² (D-19).
    """

    total: int
    parts: Mapping[str, int]
    groups: Mapping[str, int]
    block: Mapping[str, int]
    untied: int
    deck: tuple[Line, ...]
    difference: tuple[Item, ...]
    rule: int
    rule_share: float
    rule_holds: bool


def weights(model: nn.Module) -> tuple[Weight, ...]:
    """Every parameter of a model with its part, each tensor once."""
    found = []
    for name, parameter in model.named_parameters():
        part = next(part for pattern, part in PARTS if re.search(pattern, name))
        block = re.search(r"\.blocks\.(\d+)\.", name)
        found.append(Weight(name, tuple(parameter.shape), part, int(block[1]) if block else None))
    return tuple(found)


def parameter_count(config: TransformerConfig) -> int:
    """How many numbers a model of this config learns."""
    return sum(weight.count for weight in weights(build(config, "meta")))


def parameters(config: TransformerConfig) -> Parameters:
    """Count the model a config describes, built without memory on the meta device."""
    found = weights(build(config, "meta"))
    parts = _sums(found)
    total = sum(parts.values())
    dim, depth = config.dim, config.decoder.depth
    deck = _deck(config, parts)
    return Parameters(
        total=total,
        parts=parts,
        groups=_groups(found, config.head.tied),
        block=_sums(tuple(weight for weight in found if weight.block == 0)),
        untied=total + parts["token embedding"] if config.head.tied else total,
        deck=deck,
        difference=_difference(config, parts, deck),
        rule=rule(depth, dim),
        rule_share=rule(depth, dim) / total,
        rule_holds=sum(parts[name] for name in MATRICES) == rule(depth, dim),
    )


def _sums(found: tuple[Weight, ...]) -> dict[str, int]:
    """Part to count, all parts named, in the order of display."""
    counts: Counter[str] = Counter()
    for weight in found:
        counts[weight.part] += weight.count
    return {part: counts[part] for _, part in PARTS}


def _groups(found: tuple[Weight, ...], tied: bool) -> dict[str, int]:
    """The lecture's three parts; a shared table counts as the final linear layer, as there (L0-80, L0-81)."""
    parts = _sums(found)
    table = parts["token embedding"]
    blocks = sum(weight.count for weight in found if weight.block is not None)
    norm = parts["final norm"]
    head = table if tied else parts["head"]
    rest = sum(parts.values()) - blocks - norm - head
    return {"transformer blocks": blocks, "final norm": norm, "final linear layer": head, "input matrices": rest}


def _deck(config: TransformerConfig, parts: Mapping[str, int]) -> tuple[Line, ...]:
    """Deck 000's sum at this config's own numbers, each line with what the walk found for it."""
    dim, depth, words = config.dim, config.decoder.depth, config.vocab_size
    qkv = sum(parts[name] for name in "qkv")
    matrices = sum(parts[name] for name in MATRICES)
    table, tied = parts["token embedding"], config.head.tied
    sums = (
        Line("query, key and value of a block", "3d²", 3 * dim**2, qkv // depth),
        Line("attention output of a block", "d²", dim**2, parts["o"] // depth),
        Line("feed-forward of a block", "8d²", 8 * dim**2, parts["feed-forward"] // depth),
        Line("one block", "12d²", 12 * dim**2, matrices // depth),
        Line("all blocks", "12d²·L", rule(depth, dim), matrices),
        Line("final linear layer", "Vd", words * dim, table if tied else parts["head"]),
        Line("token embedding", "0, shared" if tied else "Vd", 0 if tied else words * dim, 0 if tied else table),
        Line("positions", "Td", config.context * dim, parts["positions"]),
    )
    added = sums[4:]
    formula = " + ".join(("12d²·L", "Vd", "Td") if tied else ("12d²·L", "2Vd", "Td"))
    whole = Line("sum", formula, sum(line.value for line in added), sum(line.walked for line in added))
    return (*sums, whole)


def _difference(config: TransformerConfig, parts: Mapping[str, int], deck: tuple[Line, ...]) -> tuple[Item, ...]:
    """What leads from the deck's sum to the exact count; items of 0 are left out."""
    dim, depth = config.dim, config.decoder.depth
    lines = {line.name: line for line in deck}
    square = depth * dim**2
    items = [Item(f"{name} not d × d", "", parts[name] - square) for name in "qkvo"]
    items.append(Item("feed-forward not 8d²", "", parts["feed-forward"] - 8 * square))
    padding = lines["final linear layer"].difference + lines["token embedding"].difference
    rows = config.table_rows() - config.vocab_size
    items.append(Item("padded vocabulary rows", f"{rows}·d" if config.head.tied else f"2·{rows}·d", padding))
    items.append(Item("positions not learned", "-Td", lines["positions"].difference))
    numbers = {"": None, "2d": 2 * dim, **{f"{k}Ld": k * depth * dim for k in (2, 4, 5)}}
    for name, formula in LEFT_OUT.items():
        items.append(Item(name, formula if numbers[formula] == parts[name] else "", parts[name]))
    return tuple(item for item in items if item.count)
