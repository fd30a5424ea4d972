"""Who may see whom: rules over positions, and a mask as a rule bound to two layouts. Users never build masks.

    Causal() & Window(4)          a rule, comparable and frozen
    Mask(rule, queries, keys)     the same rule for these tokens: same segment, no padding, and the rule holds

What `Mask.__call__` answers for one pair of slots by index is what `dense` answers for all pairs by broadcasting, so the
two cannot disagree.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from heddle.nn.layout import Layout


class Rule(ABC):
    """Which positions a query position may look at, within one sequence."""

    @abstractmethod
    def __call__(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """True where the query may see the key; the two broadcast against each other."""

    def __and__(self, other: "Rule") -> "Rule":
        """The rule that holds where both hold."""
        return Both(self, other)


@dataclass(frozen=True)
class Everything(Rule):
    """Every position sees every position: encoders and cross-attention."""

    def __call__(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=query.device)


@dataclass(frozen=True)
class Causal(Rule):
    """A position sees itself and what came before: the lower triangle with its diagonal (L0-90, L1-31)."""

    def __call__(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return key <= query


@dataclass(frozen=True)
class Both(Rule):
    """Two rules at once."""

    first: Rule
    second: Rule

    def __call__(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return self.first(query, key) & self.second(query, key)


@dataclass(frozen=True)
class Mask:
    """A rule bound to the layouts of the queries and of the keys."""

    rule: Rule
    queries: Layout
    keys: Layout

    def __call__(
        self, row: Int[Tensor, "..."], query: Int[Tensor, "..."], key: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        """Whether slot `query` of `row` may see slot `key`; the three broadcast against each other."""
        segment = self.queries.segment[row, query]
        same = (segment == self.keys.segment[row, key]) & (segment >= 0)
        return same & self.rule(self.queries.position[row, query], self.keys.position[row, key])

    def dense(self) -> Bool[Tensor, "b 1 T S"]:
        """The whole mask; b is 1 when all rows share it, else B. Broadcast over heads, never copied (L1-35)."""
        rows = 1 if self.queries.form in ("plain", "uniform") and self.keys.form == "plain" else self.queries.rows
        device = self.queries.position.device
        row = torch.arange(rows, device=device)[:, None, None, None]
        query = torch.arange(self.queries.width, device=device)[:, None]
        return self(row, query, torch.arange(self.keys.width, device=device))

    def is_causal(self) -> bool:
        """Whether, for every token that is not padding, this is exactly the lower triangle of a square."""
        # Padding after the end is out of sight only of queries that are themselves before it: the same layout, not just its form.
        same = self.keys.form == "plain" or self.keys is self.queries
        in_order = self.queries.form in ("plain", "padded") and same
        return self.rule == Causal() and in_order and self.queries.width == self.keys.width

    def is_open(self) -> bool:
        """Whether everything is seen, so that no mask is needed at all."""
        whole = self.queries.form == self.keys.form == "plain"
        return whole and (self.rule == Everything() or (self.is_causal() and self.queries.width == 1))
