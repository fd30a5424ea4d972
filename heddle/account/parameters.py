"""Parameters of a built model by component, and the difference between their number and the lectures' sum."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from heddle.account.formulas import Line, rule
from heddle.checks import checked
from heddle.config.layers import AttentionConfig, GatedConfig, MLPConfig
from heddle.config.model import BlockConfig, LanguageHeadConfig, TransformerConfig
from heddle.display import displayed, largest
from heddle.model.build import build
from heddle.model.roles import COMPONENTS, row_of
from heddle.model.transformer import Transformer
from heddle.nn.moe import MoE

USUAL = (
    *("token embedding", "positions", "q", "k", "v", "o", "feed-forward", "attention biases", "feed-forward biases"),
    *("query and key norms", "norm gains", "norm shifts", "final norm", "head", "other"),
)
HEADS = ("head", "head bias", "pooler", "classifier", "head transform")
MATRICES = ("q", "k", "v", "o", "feed-forward")
# Parts that deck 000's sum leaves out, with their closed forms in a GPT-2-like model (D-12).
LEFT_OUT = {
    "attention biases": "4Ld",
    "feed-forward biases": "5Ld",
    "query and key norms": "",
    "attention sinks": "",
    "norm gains": "2Ld",
    "norm shifts": "2Ld",
    "final norm": "2d",
    **dict.fromkeys(
        ("token types", "entry projection", "relative positions", "entry norm", "head bias", "head transform", "other"),
        "",
    ),
}


@displayed()
@dataclass(frozen=True)
class Weight:
    """One parameter tensor of a model and the part it belongs to; `stack` and `block` are None outside the blocks."""

    name: str
    shape: tuple[int, ...]
    part: str
    stack: str | None
    block: int | None
    trained: bool = True

    @property
    def count(self) -> int:
        """Numbers in the tensor."""
        return prod(self.shape)


@displayed()
@dataclass(frozen=True)
class Item:
    """One reason why the exact count differs from the lecture's sum; `formula` is empty if no closed form applies."""

    name: str
    formula: str
    count: int


@displayed(".parts, .groups, .block, .deck, .difference")
@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a model, in total and by component.

    Attributes:
        total: every parameter: `sum(p.numel())`.
        active: parameters that one token uses; of routed experts, only the chosen ones (L2-68, C-16).
        parts: count by component; sums to `total`. The head is 0 if it is tied to the token table.
        groups: the lecture's three parts and the final norm (L0-78); sums to `total`.
        block: count by component in the first block of the stack under the head.
        untied: the total with a head of its own (L0-76).
        deck: deck 000's sum, line by line (L0-79 … L0-84); the last line is the sum itself. Empty if it does not apply.
        difference: from the deck's sum to `total`, item by item; empty without a sum.
        rule: 12Ld² (L1-52); None unless the model is one stack of attention layers.
        rule_share: the rule over `total` (L1-57), or None.
        rule_holds: whether the blocks' matrices have exactly 12Ld² numbers (D-19).
    """

    total: int
    active: int
    parts: Mapping[str, int]
    groups: Mapping[str, int]
    block: Mapping[str, int]
    untied: int
    deck: tuple[Line, ...]
    difference: tuple[Item, ...]
    rule: int | None
    rule_share: float | None
    rule_holds: bool

    def _lines(self) -> Iterator[str]:
        active = "" if self.active == self.total else f", {self.active:,} active for each token"
        yield f"Parameters: {self.total:,}{active}"
        yield from (f"  {number:>22,}  {part}" for part, number in largest(self.parts, 6))


@checked()
def weights(model: Transformer) -> tuple[Weight, ...]:
    """Every parameter of a model with its part, each tensor once."""
    return tuple(_weight(name, parameter) for name, parameter in model.named_parameters())


def _weight(name: str, parameter: nn.Parameter) -> Weight:
    part = row_of(name, parameter.dim()).component
    match = re.match(r"(encoder|decoder)\.blocks\.(\d+)\.", name)
    stack, block = (match[1], int(match[2])) if match else (None, None)
    return Weight(name, tuple(parameter.shape), part, stack, block, parameter.requires_grad)


@checked()
def parameter_count(config: TransformerConfig) -> int:
    """The number of parameters of the model that a config describes."""
    return sum(weight.count for weight in weights(build(config, "meta")))


@checked()
def parameters(config: TransformerConfig) -> Parameters:
    """Count the parameters of the model that a config describes, built on the meta device."""
    model = build(config, "meta")
    tensors = weights(model)
    parts = _sums(tensors)
    total = sum(parts.values())
    deck = _deck(config, tensors) if deck_applies(config) else ()
    twelve = rule(config.last()[1].depth, config.dim) if rule_applies(config) else None
    last = config.last()[0]
    return Parameters(
        total=total,
        active=total - _idle(model),
        parts=parts,
        groups=_groups(tensors, _tied(config)),
        block=_sums(tuple(weight for weight in tensors if (weight.stack, weight.block) == (last, 0))),
        untied=total + parts["token embedding"] if _tied(config) else total,
        deck=deck,
        difference=_difference(config, parts, deck) if deck else (),
        rule=twelve,
        rule_share=None if twelve is None else twelve / total,
        rule_holds=sum(parts[name] for name in MATRICES) == twelve,
    )


def rule_applies(config: TransformerConfig) -> bool:
    """Whether 12Ld² applies to a model: one stack, with attention in every layer."""
    return len(config.stacks()) == 1 and all(isinstance(b.mixer, AttentionConfig) for b in config.last()[1].blocks)


def deck_applies(config: TransformerConfig) -> bool:
    """Whether the lectures' sums apply: equal layers of attention and one feed-forward, and a language head.

    Layers may differ in settings without weights, such as windows.
    """
    stack = config.last()[1]
    if (
        not rule_applies(config)
        or not isinstance(config.head, LanguageHeadConfig)
        or stack.entry.tokens_dim(config.dim) != config.dim
    ):
        return False
    sizes = {_sizes(block, config.dim) for block in stack.blocks}
    return len(sizes) == 1 and None not in sizes


def _sizes(block: BlockConfig, dim: int) -> tuple[Any, ...] | None:
    """The settings that determine the sizes of a layer's matrices; None for a layer outside the lectures' sums."""
    mixer, ffn = block.mixer, block.ffn
    if not isinstance(mixer, AttentionConfig) or not isinstance(ffn, MLPConfig | GatedConfig):
        return None
    width = mixer.width(dim)
    return mixer.heads, mixer.key_heads(), width, mixer.value_dim or width, ffn.kind, ffn.width(dim)


def _tied(config: TransformerConfig) -> bool:
    """Whether the head uses the token table."""
    return isinstance(config.head, LanguageHeadConfig) and config.head.tied


def _idle(model: Transformer) -> int:
    """Parameters of routed experts that one token does not use."""
    idle = 0
    for module in model.modules():
        if isinstance(module, MoE):
            experts = module.experts.up.shape[0]
            per_expert = sum(parameter.numel() for parameter in module.experts.parameters()) // experts
            idle += (experts - module.router.active) * per_expert
    return idle


def _sums(tensors: tuple[Weight, ...]) -> dict[str, int]:
    """Count by component, in the order of display; unusual components only if there are any."""
    counts: Counter[str] = Counter()
    for weight in tensors:
        counts[weight.part] += weight.count
    return {part: counts[part] for part in COMPONENTS if part in USUAL or counts[part]}


def _groups(tensors: tuple[Weight, ...], tied: bool) -> dict[str, int]:
    """The lecture's three parts; a shared table counts as the final linear layer, as there (L0-80, L0-81).

    Relative positions, which layers share, count as part of the blocks.
    """
    parts = _sums(tensors)
    table = parts["token embedding"]
    blocks = sum(weight.count for weight in tensors if weight.block is not None) + parts.get("relative positions", 0)
    norm = parts["final norm"]
    head = sum(parts.get(name, 0) for name in HEADS) + (table if tied else 0)
    inputs = sum(parts.values()) - blocks - norm - head
    return {"transformer blocks": blocks, "final norm": norm, "final linear layer": head, "input matrices": inputs}


def _deck(config: TransformerConfig, tensors: tuple[Weight, ...]) -> tuple[Line, ...]:
    """Deck 000's sum with this config's numbers, each line next to the model's own count."""
    parts = _sums(tensors)
    dim, depth, words = config.dim, config.last()[1].depth, config.vocab_size
    qkv = sum(parts[name] for name in "qkv")
    matrices = sum(parts[name] for name in MATRICES)
    table, tied = parts["token embedding"], _tied(config)
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
    total = Line("sum", formula, sum(line.value for line in added), sum(line.walked for line in added))
    return (*sums, total)


def _difference(config: TransformerConfig, parts: Mapping[str, int], deck: tuple[Line, ...]) -> tuple[Item, ...]:
    """The items that add up to the exact count minus the deck's sum; items of 0 are left out."""
    dim, depth = config.dim, config.last()[1].depth
    lines = {line.name: line for line in deck}
    square = depth * dim**2
    items = [Item(f"{name} not d × d", "", parts[name] - square) for name in "qkvo"]
    items.append(Item("feed-forward not 8d²", "", parts["feed-forward"] - 8 * square))
    padding = lines["final linear layer"].difference + lines["token embedding"].difference
    rows = config.table_rows() - config.vocab_size
    items.append(Item("padded vocabulary rows", f"{rows}·d" if _tied(config) else f"2·{rows}·d", padding))
    if parts["positions"]:
        items.append(
            Item("rows before the first position", f"{config.last()[1].entry.offset}·d", lines["positions"].difference)
        )
    else:
        items.append(Item("positions not learned", "-Td", lines["positions"].difference))
    numbers = {"": None, "2d": 2 * dim, **{f"{k}Ld": k * depth * dim for k in (2, 4, 5)}}
    for name, formula in LEFT_OUT.items():
        count = parts.get(name, 0)
        items.append(Item(name, formula if numbers[formula] == count else "", count))
    return tuple(item for item in items if item.count)
