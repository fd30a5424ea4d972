"""What attention heads do, as numbers: how sharply they look, and whether at the token before, at what came after the same token
last time, or at the same few tokens from everywhere.
"""

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

NAMED = 0.4
"""The least share of attention by which a head gets the name of a pattern."""


@displayed(".entropy and so on, .names()")
@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of the heads of one attention layer on some text; each Float[H], a mean over queries that have such a key.

    Attributes:
        diagonal: attention to the token itself (L1-37).
        previous: attention to the token before.
        following: attention to the token after; 0 in a decoder.
        first: attention to the first token, by queries after it.
        stripe: attention received by the token that receives most, by queries that may see it (L1-39).
        induction: attention to what came after the last occurrence of the same token; 0 if no token occurs twice.
        duplicate: attention to the last occurrence of the same token; 0 if no token occurs twice.
        entropy: of the weights, divided by that of even weights: 0 is one key, 1 all keys alike.
        asymmetry: ‖A - Aᵀ‖ / ‖A‖ (L1-36); NaN if queries and keys are not the same tokens, or are too many.
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
        shown = FIELDS[:-1]  # without asymmetry
        yield f"HeadScores of {pluralize(len(self.entropy), 'head')}"
        yield "  head" + "".join(f"{name[:9]:>10}" for name in shown) + "  is"
        for head, name in enumerate(self.names()):
            yield f"  {head:>4}" + "".join(f"{float(getattr(self, each)[head]):>10.3f}" for each in shown) + f"  {name}"

    def names(self) -> list[str]:
        """The pattern of each head with the largest share, if that is at least `NAMED`; else `spread` or `mixed`."""
        found = []
        for head in range(len(self.entropy)):
            shares = {name: float(getattr(self, name)[head]) for name in PATTERNS}
            best = max(shares, key=lambda name: (shares[name], -PATTERNS.index(name)))
            spread = "spread" if float(self.entropy[head]) > 0.9 else "mixed"
            found.append(best if shares[best] >= NAMED else spread)
        return found


PATTERNS = (
    "induction",
    "duplicate",
    "previous",
    "diagonal",
    "following",
    "first",
    "stripe",
)  # of equal shares, the earliest
FIELDS = tuple(field.name for field in fields(HeadScores))
MOST = 4096  # tokens up to which a map is compared with its transpose


@torch.no_grad()
@checked()
def score_heads(attention: AttentionPass, tokens: Int[Tensor, "B T"] | None = None) -> HeadScores:
    """Score the heads of one attention layer, some queries at a time, at any length.

    Args:
        attention: the layer's call, of `trace(..., attention=...)`.
        tokens: the ids of the text, to find repeated ones; None, or for cross-attention: none are looked for.
    """
    sums = {name: torch.zeros(attention.heads, dtype=torch.float64) for name in FIELDS}
    counts = dict.fromkeys(FIELDS, 0)
    received, seen = _zeros(attention), _zeros(attention)
    keys = attention.lowered.mask.keys
    last = None if tokens is None or tokens.shape[1] != attention.keys else last_seen(tokens)
    for start, stop, weights in attention.blocks():
        allowed = attention.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1)[:, 0]
        received += weights.sum((0, 2)).double().cpu()
        seen += allowed.sum((0, 1)).double().cpu()
        position = attention.lowered.mask.queries.position[:, start:stop]
        slots = keys.position[:, None, :]
        for name, distance in (("diagonal", 0), ("previous", 1), ("following", -1)):
            _add(sums, counts, name, weights, (slots == position[..., None] - distance) & allowed)
        _add(sums, counts, "first", weights, ((slots == 0) & (position[..., None] > 0) & allowed))
        if last is not None:
            at = torch.arange(attention.keys, device=last.device)
            found = last[:, start:stop, None]
            _add(sums, counts, "duplicate", weights, (at == found) & (found >= 0) & allowed)
            _add(
                sums,
                counts,
                "induction",
                weights,
                (at == found + 1) & (found >= 0) & (found + 1 < position[..., None]) & allowed,
            )
        even = allowed.sum(-1)
        many = even > 1
        entropy = -torch.special.xlogy(weights, weights).sum(-1) / even.clamp(min=2).log()[:, None]
        sums["entropy"] += (entropy * many[:, None]).sum((0, 2)).double().cpu()
        counts["entropy"] += int(many.sum())
    means = {name: (sums[name] / max(counts[name], 1)).float() for name in FIELDS}
    means["stripe"] = (
        (received / seen.clamp(min=1)).masked_fill(seen < max(1, attention.queries // 4), 0).amax(-1).float()
    )
    means["asymmetry"] = _asymmetry(attention)
    return HeadScores(**means)


@checked()
def received(attention: AttentionPass) -> Float[Tensor, "H S"]:
    """The attention that each key receives: the mean over the queries that may see it (L1-39, L1-40)."""
    total, seen = _zeros(attention), _zeros(attention)
    for start, stop, weights in attention.blocks():
        total += weights.sum((0, 2)).double().cpu()
        seen += attention.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1).sum((0, 2)).double().cpu()
    return (total / seen.clamp(min=1)).float()


@checked(count=at_least(1))
def strongest(attention: AttentionPass, head: int, count: int = 10, batch: int = 0) -> list[tuple[int, int, float]]:
    """The pairs (query, key, weight) of one head with the largest weights off the diagonal, largest first (L1-38)."""
    if not -len(attention.q) <= batch < len(attention.q):
        raise HeddleError(f"batch = {batch}: the pass had {pluralize(len(attention.q), 'row')}")
    best: list[tuple[int, int, float]] = []
    for start, _, weights in attention.blocks(head):
        block = weights[batch, 0].clone()
        query = torch.arange(start, start + len(block), device=block.device)
        if attention.queries == attention.keys:
            block[query - start, query] = -1
        values, places = block.flatten().topk(min(count, block.numel()))
        rows, columns = places // block.shape[1] + start, places % block.shape[1]
        best += [
            (row, column, value)
            for row, column, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True)
            if value > 0
        ]
        best = sorted(best, key=lambda pair: -pair[2])[:count]
    return best


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
    """Score all self-attention heads on random tokens that repeat, where only an induction head knows what comes next.

    Olsson et al. 2022, "In-context Learning and Induction Heads": rows of random ids, each repeated.

    Args:
        model: any model.
        length: random ids in a row, before they repeat.
        repeats: how often they occur.
        rows: texts to average over.
        seed: of the random ids.
        ids: which ids to draw; None: all but special ones.

    Raises:
        HeddleError: the model has no self-attention, or the rows do not fit its positions.
    """
    special = set() if model.config.ids is None else model.config.ids.every()
    pool = [
        each for each in (range(model.vocab_size) if ids is None else ids) if ids is not None or each not in special
    ]
    draw = torch.Generator().manual_seed(seed)
    if odd := [each for each in pool if not 0 <= each < model.vocab_size]:
        raise HeddleError(f"ids contain {odd[0]}: they go from 0 to {model.vocab_size - 1}")
    if not pool:
        raise HeddleError("ids = []: name at least one to draw")
    chosen = torch.tensor(pool)[torch.randint(len(pool), (rows, length), generator=draw)]
    tokens = chosen.repeat(1, repeats).to(model.device)
    stack = "encoder" if model.decoder is None else "decoder"
    more: dict[str, Any] = {}
    if model.encoder is not None and model.decoder is not None:
        more["source"] = tokens % (model.config.source_vocab_size or model.vocab_size)
    layers = [name for name in kernels(model) if name.startswith(stack) and name.endswith(".mixer")]
    if not layers:
        raise HeddleError("this model has no self-attention, so it has no heads")
    found = trace(model, tokens, attention=layers, **more).attention
    return {name: score_heads(each, tokens) for name, each in found.items()}


def last_seen(tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The position where each token occurred last before, -1 if it did not."""
    found = torch.full_like(tokens, -1)
    for row, each in enumerate(tokens.tolist()):
        places: dict[int, int] = {}
        for place, token in enumerate(each):
            found[row, place] = places.get(token, -1)
            places[token] = place
    return found


def _zeros(attention: AttentionPass) -> Tensor:
    return torch.zeros(attention.heads, attention.keys, dtype=torch.float64)


def _add(sums: dict[str, Tensor], counts: dict[str, int], name: str, weights: Tensor, pairs: Tensor) -> None:
    """Add the weights of these pairs of query and key."""
    sums[name] += (weights * pairs[:, None]).sum((0, 2, 3)).double().cpu()
    counts[name] += int(pairs.any(-1).sum())


def _asymmetry(attention: AttentionPass) -> Tensor:
    if attention.queries != attention.keys or attention.keys > MOST:
        return torch.full((attention.heads,), torch.nan)
    found = []
    for head in range(attention.heads):
        whole = attention.weights(heads=head)[:, 0]
        found.append((whole - whole.transpose(1, 2)).norm() / whole.norm().clamp(min=1e-30))
    return torch.stack(found).float().cpu()
