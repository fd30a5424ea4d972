"""Attention masks: rules over positions, and a mask as a rule bound to two layouts. Users never build masks.

    Causal() & Window(4)          a rule, frozen and comparable: a token sees itself and the three before it
    Mask(rule, queries, keys)     the rule for these tokens: the rule holds, the segment is the same, neither is padding

`Mask.__call__` decides for one pair of slots. `dense` and `tile` call it with broadcast indices and `blocks` passes it to
FlexAttention, so these agree; kernels that build a triangle of their own ask `is_causal` and `window`, and laws compare them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from heddle.nn.layout import EVEN, Layout

Places = Int[Tensor, "..."]  # slots or positions of tokens


class Rule(ABC):
    """Which key positions a query position may see within one sequence."""

    @abstractmethod
    def __call__(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """True where the query may see the key; the two broadcast against each other."""

    def __and__(self, other: "Rule") -> "Rule":
        """The rule that holds where both rules hold."""
        return Both(self, other)


@dataclass(frozen=True)
class Everything(Rule):
    """Every position sees every position: encoders and cross-attention."""

    def __call__(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=query.device)


@dataclass(frozen=True)
class Causal(Rule):
    """A position sees itself and those before it: the lower triangle with its diagonal (L0-90, L1-31).

    A token of a prefix has the prefix's last position as its own (`Layout.sees_to`), and so sees the whole prefix.
    """

    def __call__(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        return key <= query


@dataclass(frozen=True)
class Window(Rule):
    """A position sees those less than `size` away on either side (Beltagy et al. 2020, 3.1).

    `Causal() & Window(4)` is a sliding window: a token sees itself and the three before it.
    """

    size: int

    def __call__(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        return (query - key).abs() < self.size


@dataclass(frozen=True)
class Both(Rule):
    """Two rules at once."""

    first: Rule
    second: Rule

    def __call__(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        return self.first(query, key) & self.second(query, key)


@dataclass(frozen=True, eq=False)  # equal by identity: torch 2.11's compiler hashes it before it has its fields
class Mask:
    """A rule bound to the layouts of the queries and of the keys."""

    rule: Rule
    queries: Layout
    keys: Layout

    def __call__(self, row: Places, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Whether slot `query` of `row` may see slot `key`; the three broadcast against each other."""
        segment = self.queries.segment[row, query]
        same = (segment == self.keys.segment[row, key]) & (segment >= 0)
        return same & self.rule(self.queries.sees_to[row, query], self.keys.position[row, key])

    @property
    def rows(self) -> int:
        """Number of distinct masks in the batch: 1 if all rows share one, else B."""
        alike = self.queries.form in EVEN and self.keys.form == "whole" and self.queries.horizon is None
        return 1 if alike else self.queries.rows

    def dense(self) -> Bool[Tensor, "b 1 T S"]:
        """The whole mask; b is `rows`. Broadcast over heads, never copied (L1-35)."""
        return self.tile(0, self.queries.width, 0, self.keys.width)

    def tile(self, start: int, stop: int, first: int, last: int) -> Bool[Tensor, "b 1 t s"]:
        """The mask of queries start … stop - 1 and keys first … last - 1, computed without the rest of `dense`."""
        device = self.queries.position.device
        row = torch.arange(self.rows, device=device)[:, None, None, None]
        query = torch.arange(start, stop, device=device)[:, None]
        return self(row, query, torch.arange(first, last, device=device))

    def blocks(self) -> BlockMask:
        """The mask for torch's FlexAttention: which tiles are empty, which are full, and this rule for the others."""
        rows, queries, keys, device = self.rows, self.queries.width, self.keys.width, self.queries.position.device
        return create_block_mask(lambda row, head, query, key: self(row, query, key), rows, None, queries, keys, device)

    def is_causal(self) -> bool:
        """Whether, ignoring padding, this is exactly the lower triangle of a square."""
        return self.rule == Causal() and self._in_order()

    def window(self) -> int | None:
        """The n of `Causal() & Window(n)` if the mask is exactly a band below the diagonal of a square, else None.

        A window as long as the sequence still counts as a window: the answer depends on the rule alone.
        """
        match self.rule:
            case Both(Causal(), Window(size)) | Both(Window(size), Causal()) if self._in_order():
                return size
        return None

    def _in_order(self) -> bool:
        """Whether queries and keys form a square without prefixes, where, ignoring padding, slot and position are the same."""
        # Causality hides padding after the end only if queries and keys have the same layout, not just the same form.
        same = (self.keys.form == "whole" or self.keys is self.queries) and self.queries.width == self.keys.width
        return self.queries.form in ("whole", "padded") and same and self.queries.horizon is None

    def is_open(self) -> bool:
        """Whether every query sees every key, so that no mask is needed."""
        if self.keys.form != "whole" or self.rule not in (Everything(), Causal()):
            return False
        if self.queries.form == "newest":
            return True
        return self.queries.form == "whole" and (
            self.rule == Everything() or (self.is_causal() and self.queries.width == 1)
        )
