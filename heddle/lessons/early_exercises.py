"""Exercises of the lessons 0 to 6: targets, merges of pieces, sinusoids, attention."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.lessons.exercise import Cases, Exercise
from heddle.lessons.tasks import NOT_SCORED

Pair = tuple[str, str]


def targets(ids: Int[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Int[Tensor, "B T"]:
    """Each token's target is the next; a text's last token has none, and neither has padding (L0-89, L0-19)."""
    next_ids = torch.full_like(ids, NOT_SCORED)
    next_ids[:, :-1] = ids[:, 1:]
    places = torch.arange(ids.shape[1])
    return next_ids.masked_fill(places + 1 >= lengths[:, None], NOT_SCORED)


def _shifted(ids: Tensor, lengths: Tensor, by: int, scored: int = 0) -> Tensor:
    """The token `by` places ahead; places from `lengths + scored - 1` on are not scored."""
    places = torch.arange(ids.shape[1])
    return ids.roll(-by, 1).masked_fill(places + 1 >= lengths[:, None] + scored, NOT_SCORED)


def _rolled(ids: Tensor, lengths: Tensor) -> Tensor:
    return ids.roll(-1, 1)


def _padding_scored(ids: Tensor, lengths: Tensor) -> Tensor:
    return targets(ids, torch.full_like(lengths, ids.shape[1]))


def _by_id(ids: Tensor, lengths: Tensor) -> Tensor:
    result = _padding_scored(ids, lengths)
    return result.masked_fill(result == 0, NOT_SCORED)


def _target_cases() -> Cases:
    return {
        "one text": (torch.tensor([[1, 3, 0]]), torch.tensor([3])),
        "a text after <start>, which is 4": (torch.tensor([[4, 1, 3, 0]]), torch.tensor([4])),
        "two texts, one padded with 0": (torch.tensor([[1, 3, 2, 0, 0], [2, 0, 1, 3, 1]]), torch.tensor([3, 5])),
    }


def merge_step(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    """Join the pair that was learned first, wherever it stands, from left to right; without a known pair, change nothing."""
    pair = _first_learned(pieces, merges)
    return pieces if pair is None else _joined(pieces, pair)


def _first_learned(pieces: list[str], merges: Sequence[Pair]) -> Pair | None:
    return next((pair for pair in merges if pair in pairwise(pieces)), None)


def _joined(pieces: list[str], pair: Pair, most: int = 1_000_000) -> list[str]:
    """The pieces with a pair joined, at most some times."""
    result: list[str] = []
    at = 0
    while at < len(pieces):
        if most and tuple(pieces[at : at + 2]) == pair:
            result.append(pieces[at] + pieces[at + 1])
            at, most = at + 2, most - 1
        else:
            result.append(pieces[at])
            at += 1
    return result


def _leftmost(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    pair = next((each for each in pairwise(pieces) if each in merges), None)
    return pieces if pair is None else _joined(pieces, pair)


def _last_learned(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    return merge_step(pieces, list(merges)[::-1])


def _once(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    pair = _first_learned(pieces, merges)
    return pieces if pair is None else _joined(pieces, pair, most=1)


def _to_the_end(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    while (longer := merge_step(pieces, merges)) != pieces:
        pieces = longer
    return pieces


def _overlapping(pieces: list[str], merges: Sequence[Pair]) -> list[str]:
    """A piece is joined with its right neighbour even if its left one has joined it."""
    pair = _first_learned(pieces, merges)
    starts = {at for at, each in enumerate(pairwise(pieces)) if each == pair}
    return [
        piece + pieces[at + 1] if at in starts else piece
        for at, piece in enumerate(pieces)
        if at in starts or at - 1 not in starts
    ]


GOLDEN_MERGES: list[Pair] = [
    ("i", "n"), ("in", "g"), ("u", "n"), ("a", "b"), ("l", "e"), ("ab", "le"), ("b", "e"), ("l", "i"), ("be", "li"),
    ("e", "v"), ("beli", "ev"), ("r", "a"), ("ra", "in"),
]  # fmt: skip


def _merge_cases() -> Cases:
    return {
        "raining": (list("raining"), GOLDEN_MERGES),
        "unbelievable": (list("unbelievable"), GOLDEN_MERGES),
        "un, b, e, l, i, e, v, able": (["un", *"believ", "able"], GOLDEN_MERGES),
        "aaaab, where a a overlaps": (list("aaaab"), [("a", "a"), ("a", "b")]),
        "aaab, where three a's meet": (list("aaab"), [("a", "a"), ("a", "b")]),
        "a word without a known pair": (["un", "believ", "able"], GOLDEN_MERGES),
        "one letter": (["a"], GOLDEN_MERGES),
    }


def sinusoids(length: int, dim: int) -> Float[Tensor, "T D"]:
    """Row t: sin and cos of t / 10000^(2i / D), in columns 2i and 2i + 1 (L3-11)."""
    return _sinusoids(length, dim)


def _sinusoids(length: int, dim: int, first: int = 0, base: float = 10_000.0, step: int = 2) -> Tensor:
    places = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    angles = places / base ** (torch.arange(0, dim // 2, dtype=torch.float64) * step / dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def _pairs(length: int, dim: int) -> Tensor:
    return _sinusoids(length, dim).reshape(length, dim // 2, 2)


def _halves(length: int, dim: int) -> Tensor:
    return _pairs(length, dim).mT.flatten(1)


def _exchanged(length: int, dim: int) -> Tensor:
    return _pairs(length, dim).flip(-1).flatten(1)


def _one_angle_per_column(length: int, dim: int) -> Tensor:
    columns = torch.arange(dim, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000.0 ** (columns / dim)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


def _multiplied(length: int, dim: int) -> Tensor:
    return _sinusoids(length, dim, base=1e-4)


def _sinusoid_cases() -> Cases:
    return {"3 places of width 4": (3, 4), "10 places of width 64": (10, 64), "1 place of width 2": (1, 2)}


def attention(
    q: Float[Tensor, "*n T d"], k: Float[Tensor, "*n S d"], v: Float[Tensor, "*n S e"]
) -> Float[Tensor, "*n T e"]:
    """softmax(QKᵀ/√d) V, without a mask (L2-03, L3-15)."""
    return (q @ k.mT / sqrt(q.shape[-1])).softmax(dim=-1) @ v


def _plain_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT / sqrt(q.shape[-1])).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def _attention_cases() -> Cases:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    keys = [[1.0, 1.0], [0.0, 1.0], [-1.0, 0.5], [2.0, 0.0], [0.0, 0.0]]
    values = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0], [0.5, 0.5]]
    five = tuple(torch.tensor(each, dtype=torch.float64) for each in ([[1.0, 0.0], [0.5, -1.0]], keys, values))
    return {
        "two queries, five keys": five,
        "three tokens of width 4": (random(3, 4), random(3, 4), random(3, 4)),
        "scores of 10,000": (1e4 * random(3, 4), random(3, 4), random(3, 4)),
        "values of another width": (random(4, 8), random(6, 8), random(6, 3)),
        "a batch of two with three heads": (random(2, 3, 4, 8), random(2, 3, 5, 8), random(2, 3, 5, 8)),
    }


def _scaled_by(scale: Any) -> Any:
    return lambda q, k, v: (q @ k.mT * scale(q, k)).softmax(-1) @ v


EARLY = (
    Exercise(
        "targets", 0, targets, _target_cases,
        {
            "the target is the input itself: a model learns to copy what it reads. Each token's target is the next.":
                lambda ids, lengths: ids,
            "the target is the input itself, apart from padding. Each token's target is the next.":
                lambda ids, lengths: _shifted(ids, lengths, 0, 1),
            "the target is two tokens ahead.": lambda ids, lengths: _shifted(ids, lengths - 1, 2),
            "the target is the token before. Shift the other way.": lambda ids, lengths: ids.roll(1, 1),
            "the last token's target is the first: `roll` goes round. It has no target: -100.": _rolled,
            "padding is scored. A place whose next token is padding has no target: -100.": _padding_scored,
            "a text's last token gets the first padding as its target: it has no target, -100.":
                lambda ids, lengths: _shifted(ids, lengths, 1, 1),
            "tokens are left out by their id: 0 is padding in one text and a token in the other. Go by the lengths.": _by_id,
        },
        ("L0-89", "L1-24", "L0-19"),
    ),
    Exercise(
        "merge step", 1, merge_step, _merge_cases,
        {
            "the leftmost known pair is joined. The pair that was learned first goes first, wherever it stands.": _leftmost,
            "the pair that was learned last is joined. The first in the list goes first.": _last_learned,
            "the pair is joined once. Join every occurrence.": _once,
            "all merges are done. One step joins one pair.": _to_the_end,
            "a piece is used twice where pairs overlap. After a join, go on behind it.": _overlapping,
        },
        ("L2-47", "L2-48"),
    ),
    Exercise(
        "sinusoids", 2, sinusoids, _sinusoid_cases,
        {
            "the sines come first, then the cosines. They alternate: sin, cos, sin, cos, ...": _halves,
            "sines and cosines are exchanged: even columns are sines.": _exchanged,
            "positions start at 1. The first is 0: its row is 0, 1, 0, 1, ...":
                lambda length, dim: _sinusoids(length, dim, first=1),
            "each column has an angle of its own. The columns 2i and 2i + 1 share one: t / 10000^(2i / D).":
                _one_angle_per_column,
            "the exponent is i / D. It is 2i / D, where i counts pairs of columns.":
                lambda length, dim: _sinusoids(length, dim, step=1),
            "the position is multiplied by 10000^(2i / D). It is divided by it.": _multiplied,
            "the table is the wrong way round: a row is a place, a column a channel.":
                lambda length, dim: _sinusoids(length, dim).T,
        },
        ("L3-11", "L3-13"),
    ),
    Exercise(
        "attention", 3, attention, _attention_cases,
        {
            "the scores are not divided by √d.": _scaled_by(lambda q, k: 1.0),
            "the scores are divided by d, not by its root.": _scaled_by(lambda q, k: 1 / q.shape[-1]),
            "the scores are multiplied by √d. Divide them.": _scaled_by(lambda q, k: sqrt(q.shape[-1])),
            "the scores are divided by the root of the number of keys. d is the width of a key.":
                _scaled_by(lambda q, k: 1 / sqrt(k.shape[-2])),
            "the softmax runs over the queries. Each query's weights sum to 1: softmax(dim=-1).":
                lambda q, k, v: (q @ k.mT / sqrt(q.shape[-1])).softmax(-2) @ v,
            "exp of a large score is infinite, and infinite over infinite is nan. "
            "Subtract each query's largest score first, as torch.softmax does.": _plain_softmax,
            "the keys are averaged, not the values: weights @ v.":
                lambda q, k, v: (q @ k.mT / sqrt(q.shape[-1])).softmax(-1) @ k,
            "the softmax is left out: the weights of a query do not sum to 1.":
                lambda q, k, v: q @ k.mT / sqrt(q.shape[-1]) @ v,
        },
        ("L2-03", "L3-15", "L3-16", "L3-17", "L0-36"),
    ),
)  # fmt: skip
