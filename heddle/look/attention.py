"""Attention maps, recomputed from what a kernel was given: any kernel, any mask, any length, a cached step too.

Fast kernels never hold the weights. They are a function of the queries, the keys and the lowered mask, so they are computed
again, row by row, and checked against the kernel's own output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.nn.kernels import Lowered, masked_softmax
from heddle.nn.numeric import capped, wide_dtype

MOST_NUMBERS = 1 << 28  # of one map: 1 GiB in fp32
BLOCK_NUMBERS = 1 << 22  # of one block of rows: 16 MiB in fp32, of which a few are held at once

Rows = Sequence[int] | slice | None
Heads = Sequence[int] | int | None


@displayed()
class Steps(NamedTuple):
    """How one query's weights come about, in one head; each is a vector over the S keys (L3-18, L0-93).

    Attributes:
        products: q · k.
        scaled: the same times the scale (L0-42).
        biased: the same, capped and with the bias of relative positions, if the model has them.
        allowed: which keys the mask allows.
        masked: `biased`, -inf where the mask blocks.
        weights: the softmax of `masked`, beside an attention sink if there is one.
        values: Float[S d], the keys' values.
        output: Float[d], the sum of the values by these weights.
    """

    products: Float[Tensor, " S"]
    scaled: Float[Tensor, " S"]
    biased: Float[Tensor, " S"]
    allowed: Bool[Tensor, " S"]
    masked: Float[Tensor, " S"]
    weights: Float[Tensor, " S"]
    values: Float[Tensor, "S d"]
    output: Float[Tensor, " d"]


@displayed(".weights(heads=0), .allowed(), .steps(…)")
@dataclass(frozen=True, eq=False)
class AttentionPass:
    """One call of an attention kernel: what it was given, and what it returned.

    Attributes:
        q: Float[R H T d], queries as the kernel got them: normed and rotated.
        k: Float[B K S d], keys, those of a cache too.
        v: Float[B K S e].
        output: Float[R H T e], the kernel's own. R is B unless neighbouring rows share their keys (`Cache.share`).
        lowered: the mask and bias of the call.
        scale: the factor on q kᵀ.
        cap: bound of the scores, or None.
    """

    q: Float[Tensor, "R H T d"]
    k: Float[Tensor, "B K S d"]
    v: Float[Tensor, "B K S e"]
    output: Float[Tensor, "R H T e"]
    lowered: Lowered
    scale: float
    cap: float | None = None

    @property
    def heads(self) -> int:
        """H."""
        return self.q.shape[1]

    @property
    def queries(self) -> int:
        """T."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """S."""
        return self.k.shape[2]

    @checked()
    def scores(self, rows: Rows = None, heads: Heads = None, *, masked: bool = True) -> Float[Tensor, "R h t S"]:
        """The scores of some queries and heads, by default of all: capped and biased, -inf where the mask blocks (L0-91).

        Args:
            rows: which queries, as indices or a slice.
            heads: which heads.
            masked: whether to apply the mask.

        Raises:
            HeddleError: there is no such query or head, or these are too many numbers to hold at once.
        """
        row, head = self._rows(rows), self._heads(heads)
        self._check_size(len(row), len(head))
        scores = self._biased(self._products(row, head) * self.scale, row, head)
        return scores.masked_fill(~self._allowed(row), -torch.inf) if masked else scores

    @checked()
    def weights(self, rows: Rows = None, heads: Heads = None, *, masked: bool = True) -> Float[Tensor, "R h t S"]:
        """The attention weights of some queries and heads, by default of all: each row sums to 1, or to less beside
        an attention sink; 0 exactly where masked (L0-92).

        Args:
            rows: which queries, as indices or a slice.
            heads: which heads.
            masked: False: as if every query saw every key (L1-29).

        Raises:
            HeddleError: there is no such query or head, or these are too many numbers to hold at once.
        """
        return self.softmaxed(self.scores(rows, heads, masked=masked), heads)

    def softmaxed(self, scores: Float[Tensor, "R h t S"], heads: Heads = None) -> Float[Tensor, "R h t S"]:
        """The softmax of some heads' masked scores, beside their sinks; a row of only -inf has weights of 0 (D-10)."""
        sinks = None if self.lowered.sinks is None else self.lowered.sinks.detach()[self._heads(heads)]
        return masked_softmax(scores, scores > -torch.inf, sinks=sinks)

    @checked()
    def allowed(self, rows: Rows = None) -> Bool[Tensor, "b 1 t S"]:
        """The mask: which keys some queries may attend to. b is 1 if all rows of the batch share it."""
        return self._allowed(self._rows(rows))

    def steps(self, row: int, head: int, batch: int = 0) -> Steps:
        """One query's way through one head: products, scale, mask, softmax, weighted sum."""
        at, which = self._rows([row]), self._heads(head)
        products = self._products(at, which)
        scaled = products * self.scale
        biased = self._biased(scaled, at, which)
        allowed = self._allowed(at).expand(self.q.shape[0], 1, 1, -1)
        masked = biased.masked_fill(~allowed, -torch.inf)
        weights = self.softmaxed(masked, head)
        values = self._values(which)[batch, 0]
        products, scaled, biased, allowed, masked, weights = (
            each[batch, 0, 0] for each in (products, scaled, biased, allowed, masked, weights)
        )
        return Steps(products, scaled, biased, allowed, masked, weights, values, weights @ values)

    def blocks(self, heads: Heads = None) -> Iterator[tuple[int, int, Float[Tensor, "R h t S"]]]:
        """All weights of some heads, some queries at a time: (first query, one after the last, weights)."""
        head = self._heads(heads)
        rows = max(1, BLOCK_NUMBERS // max(1, self.q.shape[0] * len(head) * self.keys))
        for start in range(0, self.queries, rows):
            stop = min(start + rows, self.queries)
            row = torch.arange(start, stop, device=self.q.device)
            scores = self._biased(self._products(row, head).mul_(self.scale), row, head)
            yield start, stop, self.softmaxed(scores.masked_fill_(~self._allowed(row), -torch.inf), heads)

    def weighted(self, weights: Float[Tensor, "R H T S"]) -> Float[Tensor, "R H T e"]:
        """The values summed by other weights than the kernel's."""
        return weights @ self._values(torch.arange(self.heads, device=self.q.device)).to(weights.dtype)

    def error(self) -> float:
        """The largest difference between the weights times the values and the kernel's output, relative to its largest number."""
        worst, largest = 0.0, max(float(self.output.abs().max()), 1e-30) if self.output.numel() else 1.0
        for head in range(self.heads):
            values = self._values(self._heads(head))
            for start, stop, weights in self.blocks(head):
                given = self.output[:, head : head + 1, start:stop].to(weights.dtype)
                worst = max(worst, float((weights @ values - given).abs().max()))
        return worst / largest

    @cached_property
    def _share(self) -> int:
        """How many neighbouring rows read the keys of one row."""
        return self.q.shape[0] // self.k.shape[0]

    def _rows(self, rows: Rows) -> Int[Tensor, " t"]:
        every = torch.arange(self.queries, device=self.q.device)
        if rows is None or isinstance(rows, slice):
            return every if rows is None else every[rows]
        return _picked(rows, self.queries, "query", every)

    def _heads(self, heads: Heads) -> Int[Tensor, " h"]:
        every = torch.arange(self.heads, device=self.q.device)
        return (
            every if heads is None else _picked([heads] if isinstance(heads, int) else heads, self.heads, "head", every)
        )

    def _check_size(self, rows: int, heads: int) -> None:
        if (numbers := self.q.shape[0] * heads * rows * self.keys) > MOST_NUMBERS:
            raise HeddleError(
                f"{numbers:,} weights do not fit in memory at once: name rows or heads, or go through `blocks()`"
            )

    def _products(self, rows: Tensor, heads: Tensor) -> Float[Tensor, "R h t S"]:
        wide = wide_dtype(self.q.dtype)
        q = self.q[:, heads][:, :, rows].to(wide)
        return q @ self._of_key_head(self.k, heads).to(wide).transpose(-2, -1)

    def _values(self, heads: Tensor) -> Float[Tensor, "R h S e"]:
        return self._of_key_head(self.v, heads).to(wide_dtype(self.q.dtype))

    def _of_key_head(self, tensor: Tensor, heads: Tensor) -> Tensor:
        """The keys or values that these heads read, for every row of the queries."""
        picked = tensor[:, heads // (self.heads // tensor.shape[1])]
        return picked if self._share == 1 else picked.repeat_interleave(self._share, dim=0)

    def _biased(self, scaled: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        if self.lowered.custom_scores is not None:  # which is given all heads at once
            every = torch.arange(self.heads, device=self.q.device)
            scores = self._with_bias(self._products(rows, every) * self.scale, rows, every)
            queries, keys = self.lowered.mask.queries.position, self.lowered.mask.keys.position
            if self._share > 1:  # such rows were one row with more queries
                queries = queries.unflatten(1, (self._share, -1)).flatten(0, 1)
                keys = keys.repeat_interleave(self._share, dim=0)
            return self.lowered.custom_scores(scores, queries[:, rows], keys)[:, heads]
        return self._with_bias(scaled, rows, heads)

    def _with_bias(self, scaled: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        scores = capped(scaled, self.cap)
        if self.lowered.bias is None:
            return scores
        assert self._share == 1  # keys are shared in cross-attention only, which has no relative positions
        return scores + self.lowered.bias[:, heads][:, :, rows]

    def _allowed(self, rows: Tensor) -> Bool[Tensor, "b 1 t S"]:
        mask = self.lowered.mask
        row = torch.arange(mask.rows, device=rows.device)[:, None, None, None]
        key = torch.arange(self.keys, device=rows.device)
        if self._share == 1:
            return mask(row, rows[:, None], key)
        # Rows that share their keys are one row of the mask, one after the other.
        number = torch.arange(self.q.shape[0], device=rows.device)[:, None, None, None]
        row = number // self._share if mask.rows > 1 else torch.zeros_like(number)
        return mask(row, number % self._share * self.queries + rows[:, None], key)


def _picked(wanted: Sequence[int], count: int, what: str, every: Tensor) -> Tensor:
    if odd := [each for each in wanted if not -count <= each < count]:
        raise HeddleError(f"there is no {what} {odd[0]}: they are numbered from 0 to {count - 1}")
    return every[torch.tensor(list(wanted), dtype=torch.long, device=every.device)]
