"""Known mistakes in attention. Some are made in several ways with different numbers: the variants of a row."""

from functools import partial
from math import sqrt
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from heddle.lessons import definition
from heddle.lessons.definition import Weights, linear, seen
from heddle.lessons.fault import DROPPED, Changes, Fault


def _times_mask(scores: Tensor) -> Tensor:
    return scores * seen(scores)


def _zeros_blocked(scores: Tensor) -> Tensor:
    masked = _times_mask(scores)
    return masked.masked_fill(masked == 0, float("-inf"))


def _upside_down(scores: Tensor, diagonal: int, fill: float) -> Tensor:
    return scores.masked_fill(seen(scores, diagonal), fill)


def _shifted(scores: Tensor, diagonal: int, fill: float = float("-inf")) -> Tensor:
    return scores.masked_fill(~seen(scores, diagonal), fill)


def _softmax_or_nothing(scores: Tensor) -> Tensor:
    """A query without a key gets no value at all."""
    return scores.softmax(-1).nan_to_num(0.0)


def _masked_after(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * seen(scores)


def _plain_softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def _exchanged(x: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = definition.project(x, weights)
    return k, q, v


def _raw_values(x: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    q, k, _ = definition.project(x, weights)
    return q, k, x


def _keys_as_values(x: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    q, k, _ = definition.project(x, weights)
    return q, k, k


def _without_bias(x: Tensor, weights: Weights, names: str) -> Any:
    """Maps q, k and v, those in `names` without their bias."""
    return tuple(x @ weights[f"{name}.weight"].T if name in names else linear(x, weights, name) for name in "qkv")


def _output_without_bias(joined: Tensor, weights: Weights) -> Tensor:
    return joined @ weights["o.weight"].T


def _interleaved(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], -1, heads).movedim(-1, 1)


def _viewed(x: Tensor, heads: int) -> Tensor:
    batch, length, dim = x.shape
    return x.reshape(batch, heads, length, dim // heads)


def _joined_by_view(heads: Tensor) -> Tensor:
    batch, count, length, width = heads.shape
    return heads.reshape(batch, length, count * width)


def _split_batch(x: Tensor, heads: int) -> Tensor:
    return definition.split(x.transpose(0, 1), heads)


def _join_batch(heads: Tensor) -> Tensor:
    return definition.join(heads).transpose(0, 1)


NO_MASK: Changes = {"attention.mask": lambda scores: scores}
INFINITE, LARGE = float("-inf"), -1e9

ATTENTION = (
    Fault(
        "no mask", "attention", (NO_MASK,),
        "No key is masked: each token reads the tokens after it, and the next token is its own answer.",
        "Set the scores of later keys to -inf before the softmax.", 5, ("L0-87", "L1-25"),
    ),
    Fault(
        "mask upside down", "attention",
        tuple(
            {"attention.mask": partial(_upside_down, diagonal=diagonal, fill=fill)}
            for diagonal in (-1, 0) for fill in (INFINITE, LARGE)
        ),
        "The mask is upside down: earlier keys are masked, and later ones are seen.",
        "Keep the lower triangle: query i sees the keys 0 to i.", 5, ("L0-90",),
    ),
    Fault(
        "mask multiplied", "attention", ({"attention.mask": _times_mask},),
        "The mask is multiplied with the scores: a later key scores 0, and e⁰ = 1 is a weight.",
        "Do not multiply: set the scores of later keys to -inf.", 5, ("L0-91", "L1-32"),
    ),
    Fault(
        "zeros masked", "attention", ({"attention.mask": _zeros_blocked},),
        "Scores that are 0 are set to -inf after the mask was multiplied: a key that is seen and scores exactly 0 is lost.",
        "Choose by place, not by value: scores.masked_fill(later, -inf).", 5, ("L1-33", "D-08"),
    ),
    Fault(
        "mask after the softmax", "attention",
        ({"attention.mask": lambda scores: scores, "attention.softmax": _masked_after},),
        "The mask comes after the softmax: what is missing from a token's weights went to later tokens.",
        "Set the scores to -inf before the softmax, not the weights to 0 after it.", 5, ("L1-26", "D-09"),
    ),
    Fault(
        "one token too many", "attention", ({"attention.mask": partial(_shifted, diagonal=1)},),
        "Each token sees one token too many: the next one, which is its own answer.",
        "The diagonal is the last place that a query sees: tril(diagonal=0).", 5, ("L0-90",),
    ),
    Fault(
        "blind to itself", "attention",
        (
            {"attention.mask": partial(_shifted, diagonal=-1), "attention.softmax": _softmax_or_nothing},
            {"attention.mask": partial(_shifted, diagonal=-1)},
            {"attention.mask": partial(_shifted, diagonal=-1, fill=LARGE)},
        ),
        "No token sees itself, and the first sees nothing at all.",
        "The diagonal belongs to what a query sees: tril(diagonal=0).", 5, ("L0-90",),
    ),
    Fault(
        "softmax over the queries", "attention", ({"attention.softmax": lambda scores: scores.softmax(-2)},),
        "The softmax runs over the queries: the weights of a key sum to 1, not those of a query.",
        "Use softmax(dim=-1): the last dimension holds the keys.", 3, ("L0-36",),
    ),
    Fault(
        "softmax that overflows", "attention", ({"attention.softmax": _plain_softmax},),
        "The softmax is exp(score) over its sum: exp of a score above 709 is infinite, and infinite over infinite is nan.",
        "Subtract each query's largest score first, or use torch.softmax, which does.", 3, ("L0-36",),
    ),
    Fault(
        "scale √D", "attention", ({"attention.scale": lambda products, width, dim: products / sqrt(dim)},),
        "The scores are divided by √D, the model's width: they are too small by √heads.",
        "Divide by √d, where d = D / heads is the width of a head.", 4, ("L3-17", "D-02"),
    ),
    Fault(
        "no scale", "attention", ({"attention.scale": lambda products, width, dim: products},),
        "The scores are not divided by √d, so the softmax is too sharp.",
        "Divide the scores by √d, where d = D / heads is the width of a head.", 3, ("L2-03",),
    ),
    Fault(
        "scale upside down", "attention", ({"attention.scale": lambda products, width, dim: products * sqrt(width)},),
        "The scores are multiplied by √d where they should be divided by it.",
        "Divide the scores by √d.", 3, ("L2-03",),
    ),
    Fault(
        "no W_O", "attention", ({"attention.output": lambda joined, weights: joined},),
        "W_O is left out: the joined heads are returned as they are.",
        "Pass the joined heads through the output map `o`.", 4, ("L0-47", "L3-24"),
    ),
    Fault(
        "heads interleaved", "attention",
        (
            {"attention.split": _interleaved},
            {"attention.split": _interleaved, "attention.join": lambda heads: heads.movedim(1, -1).flatten(2)},
        ),
        "The heads are interleaved: head 0 takes channels 0, h, 2h, ... instead of the first D / h.",
        "Split the channels as (heads, d), in this order: x.view(B, T, heads, d).transpose(1, 2).", 4, ("L3-20",),
    ),
    Fault(
        "heads by view", "attention",
        ({"attention.split": _viewed}, {"attention.split": _viewed, "attention.join": _joined_by_view}),
        "view(B, heads, T, d) does not split heads: it cuts the text itself into pieces.",
        "First view(B, T, heads, d), then transpose(1, 2).", 4, ("L3-20",),
    ),
    Fault(
        "heads joined by view", "attention", ({"attention.join": _joined_by_view},),
        "The heads are joined without transposing back: channels of different tokens are mixed.",
        "First transpose(1, 2), then reshape to (B, T, D).", 4, ("L3-23",),
    ),
    Fault(
        "values not projected", "attention", ({"attention.project": _raw_values},),
        "The values are the input itself: W_V is not used.",
        "Pass the input through `v` as well.", 3, ("L0-33", "L0-37"),
    ),
    Fault(
        "queries and keys exchanged", "attention", ({"attention.project": _exchanged},),
        "Queries and keys are exchanged: token i asks with its key.",
        "The rows of the scores belong to queries, the columns to keys: q @ k.transpose(-2, -1).", 3, ("L3-16",),
    ),
    Fault(
        "keys as values", "attention", ({"attention.project": _keys_as_values},),
        "The keys are used as values.",
        "Weight the values: weights @ v.", 3, ("L0-38",),
    ),
    Fault(
        "bias left out", "attention",
        (
            {"attention.output": _output_without_bias},
            *({"attention.project": partial(_without_bias, names=names)} for names in ("q", "v", "qv", "qkv")),
            {"attention.project": partial(_without_bias, names="qkv"), "attention.output": _output_without_bias},
        ),
        "A bias is not added.",
        "Call the modules: self.q(x) adds the bias, x @ self.q.weight.T does not.", 4, ("D-27",),
    ),
    Fault(
        "dropout in evaluation", "attention",
        ({"attention.drop": partial(F.dropout, p=DROPPED, training=True)},),
        "Two calls of the model in evaluation differ: dropout is on.",
        "Pass training=self.training to F.dropout, or use nn.Dropout.", 7, ("L0-61", "L0-63"), is_random=True,
    ),
    Fault(
        "batch and length exchanged", "attention",
        ({"attention.split": _split_batch, "attention.join": _join_batch},),
        "Batch and length are exchanged: the first dimension is taken for the tokens, so the texts of a batch are mixed.",
        "The input is [B, T, D]: attend along dimension 1.", 4, ("L1-15",),
    ),
)  # fmt: skip
