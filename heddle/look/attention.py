"""Attention maps for any kernel, mask and length, including cached steps.

Fast kernels never materialize the attention weights. They are recomputed row by row from the queries, the keys and the lowered
mask, and `AttentionPass.error` checks them against the kernel's output.
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
from heddle.look.thumbnails import maps_html
from heddle.nn.kernels import Lowered, masked_softmax
from heddle.nn.numeric import capped, wide_dtype

MAX_WEIGHTS = 1 << 28  # in one result: 1 GiB in fp32
BLOCK_WEIGHTS = 1 << 22  # in one block of rows: 16 MiB in fp32, a few of which are alive at once

Rows = Sequence[int] | slice | None
Heads = Sequence[int] | int | None


@displayed()
class Steps(NamedTuple):
    """The steps of one query's attention in one head; each is a vector over the S keys (L3-18, L0-93).

    Attributes:
        products: q · k.
        scaled: products times the scale (L0-42).
        biased: scaled scores after the soft cap and the relative position bias, if any.
        allowed: which keys the mask allows.
        masked: `biased`, -inf where the mask blocks.
        weights: the softmax of `masked`, including an attention sink if there is one.
        values: Float[S d], the keys' values.
        output: Float[d], the weighted sum of the values.
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
    """The inputs and output of one attention kernel call.

    Attributes:
        q: Float[R H T d], queries, after norm and rotary positions.
        k: Float[B K S d], keys, including cached ones.
        v: Float[B K S e].
        output: Float[R H T e], the kernel's output. R is B unless neighbouring rows share their keys (`Cache.share`).
        lowered: the mask and bias of the call.
        scale: the factor on q kᵀ.
        cap: soft cap of the scores, or None.
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
        """The attention scores of some queries and heads, by default all: capped, biased, -inf where masked (L0-91).

        Args:
            rows: which queries, as indices or a slice.
            heads: which heads.
            masked: whether to apply the mask.

        Raises:
            HeddleError: a query or head is out of range, or the result is too large.
        """
        row, head = self._rows(rows), self._heads(heads)
        self._check_size(len(row), len(head))
        scores = self._biased(self._products(row, head) * self.scale, row, head)
        return scores.masked_fill(~self._allowed(row), -torch.inf) if masked else scores

    @checked()
    def weights(self, rows: Rows = None, heads: Heads = None, *, masked: bool = True) -> Float[Tensor, "R h t S"]:
        """The attention weights of some queries and heads, by default all (L0-92).

        Each row sums to 1, or to less with an attention sink. Masked weights are exactly 0.

        Args:
            rows: which queries, as indices or a slice.
            heads: which heads.
            masked: False computes the weights without a mask (L1-29).

        Raises:
            HeddleError: a query or head is out of range, or the result is too large.
        """
        return self.softmaxed(self.scores(rows, heads, masked=masked), heads)

    def softmaxed(self, scores: Float[Tensor, "R h t S"], heads: Heads = None) -> Float[Tensor, "R h t S"]:
        """The softmax of masked scores, including attention sinks; a row of only -inf gets weights of 0 (D-10)."""
        sinks = None if self.lowered.sinks is None else self.lowered.sinks.detach()[self._heads(heads)]
        return masked_softmax(scores, scores > -torch.inf, sinks=sinks)

    @checked()
    def allowed(self, rows: Rows = None) -> Bool[Tensor, "b 1 t S"]:
        """The attention mask of some queries. b is 1 if all rows of the batch share it."""
        return self._allowed(self._rows(rows))

    def steps(self, row: int, head: int, batch: int = 0) -> Steps:
        """The attention of one query in one head, step by step."""
        row_index, head_index = self._rows([row]), self._heads(head)
        products = self._products(row_index, head_index)
        scaled = products * self.scale
        biased = self._biased(scaled, row_index, head_index)
        allowed = self._allowed(row_index).expand(self.q.shape[0], 1, 1, -1)
        masked = biased.masked_fill(~allowed, -torch.inf)
        weights = self.softmaxed(masked, head)
        values = self._values(head_index)[batch, 0]
        products, scaled, biased, allowed, masked, weights = (
            tensor[batch, 0, 0] for tensor in (products, scaled, biased, allowed, masked, weights)
        )
        return Steps(products, scaled, biased, allowed, masked, weights, values, weights @ values)

    def blocks(self, heads: Heads = None) -> Iterator[tuple[int, int, Float[Tensor, "R h t S"]]]:
        """Iterate over the weights of some heads in blocks of queries: (first query, end, weights)."""
        head = self._heads(heads)
        rows = max(1, BLOCK_WEIGHTS // max(1, self.q.shape[0] * len(head) * self.keys))
        for start in range(0, self.queries, rows):
            stop = min(start + rows, self.queries)
            row = torch.arange(start, stop, device=self.q.device)
            scores = self._biased(self._products(row, head).mul_(self.scale), row, head)
            yield start, stop, self.softmaxed(scores.masked_fill_(~self._allowed(row), -torch.inf), heads)

    def weighted(self, weights: Float[Tensor, "R H T S"]) -> Float[Tensor, "R H T e"]:
        """The weighted sum of the values for the given weights."""
        return weights @ self._values(torch.arange(self.heads, device=self.q.device)).to(weights.dtype)

    def error(self) -> float:
        """The largest difference between weights · values and the kernel's output, relative to the largest output."""
        difference, largest = 0.0, max(float(self.output.abs().max()), 1e-30) if self.output.numel() else 1.0
        for head in range(self.heads):
            values = self._values(self._heads(head))
            for start, stop, weights in self.blocks(head):
                kernel_output = self.output[:, head : head + 1, start:stop].to(weights.dtype)
                difference = max(difference, float((weights @ values - kernel_output).abs().max()))
        return difference / largest

    def _repr_html_(self) -> str:
        return maps_html(self)

    @cached_property
    def _group_size(self) -> int:
        """The number of neighbouring rows that share the keys of one row."""
        return self.q.shape[0] // self.k.shape[0]

    def _rows(self, rows: Rows) -> Int[Tensor, " t"]:
        all_rows = torch.arange(self.queries, device=self.q.device)
        if rows is None or isinstance(rows, slice):
            return all_rows if rows is None else all_rows[rows]
        return _select(rows, self.queries, "query", all_rows)

    def _heads(self, heads: Heads) -> Int[Tensor, " h"]:
        all_heads = torch.arange(self.heads, device=self.q.device)
        return (
            all_heads
            if heads is None
            else _select([heads] if isinstance(heads, int) else heads, self.heads, "head", all_heads)
        )

    def _check_size(self, rows: int, heads: int) -> None:
        if (numbers := self.q.shape[0] * heads * rows * self.keys) > MAX_WEIGHTS:
            raise HeddleError(
                f"{numbers:,} attention weights are too many for one tensor: select rows or heads, or iterate over `blocks()`"
            )

    def _products(self, rows: Tensor, heads: Tensor) -> Float[Tensor, "R h t S"]:
        wide = wide_dtype(self.q.dtype)
        q = self.q[:, heads][:, :, rows].to(wide)
        return q @ self._repeat_kv(self.k, heads).to(wide).transpose(-2, -1)

    def _values(self, heads: Tensor) -> Float[Tensor, "R h S e"]:
        return self._repeat_kv(self.v, heads).to(wide_dtype(self.q.dtype))

    def _repeat_kv(self, tensor: Tensor, heads: Tensor) -> Tensor:
        """Repeat keys or values for these query heads and for every query row."""
        selected = tensor[:, heads // (self.heads // tensor.shape[1])]
        return selected if self._group_size == 1 else selected.repeat_interleave(self._group_size, dim=0)

    def _biased(self, scaled: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        if self.lowered.custom_scores is not None:  # a score function takes all heads at once
            all_heads = torch.arange(self.heads, device=self.q.device)
            scores = self._with_bias(self._products(rows, all_heads) * self.scale, rows, all_heads)
            queries, keys = self.lowered.mask.queries.position, self.lowered.mask.keys.position
            if self._group_size > 1:  # these rows were one row with more queries
                queries = queries.unflatten(1, (self._group_size, -1)).flatten(0, 1)
                keys = keys.repeat_interleave(self._group_size, dim=0)
            return self.lowered.custom_scores(scores, queries[:, rows], keys)[:, heads]
        return self._with_bias(scaled, rows, heads)

    def _with_bias(self, scaled: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        scores = capped(scaled, self.cap)
        if self.lowered.bias is None:
            return scores
        assert self._group_size == 1  # keys are shared only in cross-attention, which has no relative positions
        return scores + self.lowered.bias[:, heads][:, :, rows]

    def _allowed(self, rows: Tensor) -> Bool[Tensor, "b 1 t S"]:
        mask = self.lowered.mask
        row = torch.arange(mask.rows, device=rows.device)[:, None, None, None]
        key = torch.arange(self.keys, device=rows.device)
        if self._group_size == 1:
            return mask(row, rows[:, None], key)
        # Rows that share their keys are consecutive queries of one row of the mask.
        number = torch.arange(self.q.shape[0], device=rows.device)[:, None, None, None]
        row = number // self._group_size if mask.rows > 1 else torch.zeros_like(number)
        return mask(row, number % self._group_size * self.queries + rows[:, None], key)


def _select(indices: Sequence[int], count: int, kind: str, all_indices: Tensor) -> Tensor:
    if invalid := [index for index in indices if not -count <= index < count]:
        raise HeddleError(f"{kind} {invalid[0]} is out of range ({count} in total)")
    return all_indices[torch.tensor(list(indices), dtype=torch.long, device=all_indices.device)]
