"""Attention pattern scores of heads: entropy, previous token, induction, stripes and others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import SEED, at_least, checked
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize
from heddle.look.attention import AttentionPass
from heddle.look.sites import kernels
from heddle.look.trace import trace
from heddle.model.transformer import Transformer

NAME_THRESHOLD = 0.4
"""The smallest share of attention for which a head is named after a pattern."""


@displayed(".entropy and so on, .names()")
@dataclass(frozen=True, eq=False)
class HeadScores:
    """Pattern scores of one attention layer's heads, Float[H] each: means over the queries that have such a key.

    Attributes:
        diagonal: attention to the token itself (L1-37).
        previous: attention to the previous token.
        following: attention to the next token; 0 in a decoder.
        first: attention to the first token from later queries.
        stripe: attention received by the most attended token, from queries that may attend to it (L1-39).
        induction: attention to the token after the previous occurrence of the query's token; 0 without repeated tokens.
        duplicate: attention to the previous occurrence of the query's token; 0 without repeated tokens.
        entropy: of the weights, normalized: 0 is a single key, 1 is uniform.
        asymmetry: ‖A - Aᵀ‖ / ‖A‖ (L1-36); NaN if queries and keys differ, or the text is too long.
    """

    diagonal: Float[Tensor, " H"]
    previous: Float[Tensor, " H"]
    following: Float[Tensor, " H"]
    first: Float[Tensor, " H"]
    stripe: Float[Tensor, " H"]
    induction: Float[Tensor, " H"]
    duplicate: Float[Tensor, " H"]
    entropy: Float[Tensor, " H"]
    asymmetry: Float[Tensor, " H"]

    def _lines(self) -> Iterator[str]:
        columns = FIELDS[:-1]  # without asymmetry
        yield f"HeadScores of {pluralize(len(self.entropy), 'head')}"
        yield "  head" + "".join(f"{name[:9]:>10}" for name in columns) + "  is"
        for head, name in enumerate(self.names()):
            yield (
                f"  {head:>4}"
                + "".join(f"{float(getattr(self, column)[head]):>10.3f}" for column in columns)
                + f"  {name}"
            )

    def names(self) -> list[str]:
        """The pattern of each head with the largest score, if that is at least `NAME_THRESHOLD`; else `spread` or `mixed`."""
        result = []
        for head in range(len(self.entropy)):
            shares = {name: float(getattr(self, name)[head]) for name in PATTERNS}
            best = max(shares, key=lambda name: (shares[name], -PATTERNS.index(name)))
            fallback = "spread" if float(self.entropy[head]) > 0.9 else "mixed"
            result.append(best if shares[best] >= NAME_THRESHOLD else fallback)
        return result


PATTERNS = (
    "induction",
    "duplicate",
    "previous",
    "diagonal",
    "following",
    "first",
    "stripe",
)  # ties go to the earliest
FIELDS = tuple(field.name for field in fields(HeadScores))
MAX_TOKENS = 4096  # of texts for which the asymmetry is computed


@torch.no_grad()
@checked()
def score_heads(attention: AttentionPass, tokens: Int[Tensor, "B T"] | None = None) -> HeadScores:
    """Score the heads of one attention layer, in blocks of queries.

    Args:
        attention: the layer's recorded call, from `trace(..., attention=...)`.
        tokens: ids of the text, for induction and duplicate scores; None, or for cross-attention: these stay 0.
    """
    sums = {name: torch.zeros(attention.heads, dtype=torch.float64) for name in FIELDS}
    counts = dict.fromkeys(FIELDS, 0)
    received_weight, visible = _zeros(attention), _zeros(attention)
    keys = attention.lowered.mask.keys
    previous_places = None if tokens is None or tokens.shape[1] != attention.keys else previous_occurrences(tokens)
    for start, stop, weights in attention.blocks():
        allowed = attention.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1)[:, 0]
        received_weight += weights.sum((0, 2)).cpu().double()
        visible += allowed.sum((0, 1)).cpu().double()
        position = attention.lowered.mask.queries.position[:, start:stop]
        slots = keys.position[:, None, :]
        for name, distance in (("diagonal", 0), ("previous", 1), ("following", -1)):
            _add(sums, counts, name, weights, (slots == position[..., None] - distance) & allowed)
        _add(sums, counts, "first", weights, ((slots == 0) & (position[..., None] > 0) & allowed))
        if previous_places is not None:
            key = torch.arange(attention.keys, device=previous_places.device)
            previous_place = previous_places[:, start:stop, None]
            _add(sums, counts, "duplicate", weights, (key == previous_place) & (previous_place >= 0) & allowed)
            _add(
                sums,
                counts,
                "induction",
                weights,
                (key == previous_place + 1)
                & (previous_place >= 0)
                & (previous_place + 1 < position[..., None])
                & allowed,
            )
        allowed_count = allowed.sum(-1)
        has_choice = allowed_count > 1
        entropy = -torch.special.xlogy(weights, weights).sum(-1) / allowed_count.clamp(min=2).log()[:, None]
        sums["entropy"] += (entropy * has_choice[:, None]).sum((0, 2)).cpu().double()
        counts["entropy"] += int(has_choice.sum())
    means = {name: (sums[name] / max(counts[name], 1)).float() for name in FIELDS}
    means["stripe"] = (
        (received_weight / visible.clamp(min=1))
        .masked_fill(visible < max(1, attention.queries // 4), 0)
        .amax(-1)
        .float()
    )
    means["asymmetry"] = _asymmetry(attention)
    return HeadScores(**means)


@checked()
def received(attention: AttentionPass) -> Float[Tensor, "H S"]:
    """The mean attention that each key receives, over the queries that may attend to it (L1-39, L1-40)."""
    total, visible = _zeros(attention), _zeros(attention)
    for start, stop, weights in attention.blocks():
        total += weights.sum((0, 2)).cpu().double()
        visible += attention.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1).sum((0, 2)).cpu().double()
    return (total / visible.clamp(min=1)).float()


@checked(count=at_least(1))
def strongest(attention: AttentionPass, head: int, count: int = 10, batch: int = 0) -> list[tuple[int, int, float]]:
    """The (query, key, weight) triples of one head with the largest off-diagonal weights, largest first (L1-38)."""
    if not -len(attention.q) <= batch < len(attention.q):
        raise HeddleError(f"batch = {batch} is out of range: the pass had {pluralize(len(attention.q), 'row')}")
    pairs: list[tuple[int, int, float]] = []
    for start, _, weights in attention.blocks(head):
        block = weights[batch, 0].clone()
        query = torch.arange(start, start + len(block), device=block.device)
        if attention.queries == attention.keys:
            block[query - start, query] = -1
        values, places = block.flatten().topk(min(count, block.numel()))
        rows, columns = places // block.shape[1] + start, places % block.shape[1]
        pairs += [
            (row, column, value)
            for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
            if value > 0
        ]
        pairs = sorted(pairs, key=lambda pair: -pair[2])[:count]
    return pairs


@torch.no_grad()
@checked(length=at_least(2), repeats=at_least(2), rows=at_least(1), seed=SEED)
def find_heads(
    model: Transformer,
    length: int = 25,
    repeats: int = 2,
    rows: int = 4,
    seed: int = 0,
    ids: Sequence[int] | None = None,
) -> dict[str, HeadScores]:
    """Score all self-attention heads on repeated random tokens, which only induction heads can predict.

    Olsson et al. 2022, "In-context Learning and Induction Heads": rows of random ids, each repeated.

    Args:
        model: any model.
        length: random ids before the first repetition.
        repeats: number of repetitions.
        rows: number of texts.
        seed: of the random ids.
        ids: ids to sample from; None: all but special ones.

    Raises:
        HeddleError: the model has no self-attention, or the rows do not fit its positions.
    """
    special = set() if model.config.ids is None else model.config.ids.every()
    pool = [id for id in (range(model.vocab_size) if ids is None else ids) if ids is not None or id not in special]
    generator = torch.Generator().manual_seed(seed)
    if invalid := [id for id in pool if not 0 <= id < model.vocab_size]:
        raise HeddleError(f"id {invalid[0]} is out of range (vocab size {model.vocab_size})")
    if not pool:
        raise HeddleError("ids = []: give at least one id")
    sampled = torch.tensor(pool)[torch.randint(len(pool), (rows, length), generator=generator)]
    tokens = sampled.repeat(1, repeats).to(model.device)
    stack = "encoder" if model.decoder is None else "decoder"
    inputs: dict[str, Any] = {}
    if model.encoder is not None and model.decoder is not None:
        inputs["source"] = tokens % (model.config.source_vocab_size or model.vocab_size)
    layers = [name for name in kernels(model) if name.startswith(stack) and name.endswith(".mixer")]
    if not layers:
        raise HeddleError("this model has no self-attention heads")
    attention = trace(model, tokens, attention=layers, **inputs).attention
    return {name: score_heads(id, tokens) for name, id in attention.items()}


def previous_occurrences(tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The position of each token's previous occurrence, or -1."""
    previous = torch.full_like(tokens, -1)
    for row, row_tokens in enumerate(tokens.tolist()):
        last_place: dict[int, int] = {}
        for position, token in enumerate(row_tokens):
            previous[row, position] = last_place.get(token, -1)
            last_place[token] = position
    return previous


def _zeros(attention: AttentionPass) -> Tensor:
    return torch.zeros(attention.heads, attention.keys, dtype=torch.float64)


def _add(sums: dict[str, Tensor], counts: dict[str, int], name: str, weights: Tensor, pairs: Tensor) -> None:
    """Accumulate the weights of the selected (query, key) pairs."""
    sums[name] += (weights * pairs[:, None]).sum((0, 2, 3)).cpu().double()
    counts[name] += int(pairs.any(-1).sum())


def _asymmetry(attention: AttentionPass) -> Tensor:
    if attention.queries != attention.keys or attention.keys > MAX_TOKENS:
        return torch.full((attention.heads,), torch.nan)
    values = []
    for head in range(attention.heads):
        weights = attention.weights(heads=head)[:, 0]
        values.append((weights - weights.transpose(1, 2)).norm() / weights.norm().clamp(min=1e-30))
    return torch.stack(values).float().cpu()
