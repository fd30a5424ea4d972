"""Attention, a block and a language model as the lectures define them: one function each, of an input and weights.

Each function is a few steps. A fault (`heddle.lessons.faults`) is other code for some of the steps, so that what a known mistake
computes can be compared with what somebody's code computes. Nothing here is fast; `heddle.nn` and `heddle.model` are.

Weights are those of the homework, named and stored as torch's modules do: `q.weight` is Float[D D] and is used as x @ q.weight.T.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
Map = Callable[[Tensor], Tensor]


def linear(x: Float[Tensor, "*n I"], weights: Weights, name: str) -> Float[Tensor, "*n O"]:
    """x W + b."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def below(weights: Weights, name: str) -> Weights:
    """The weights of a part, without its name: those of `blocks.1` for `blocks.1.up.weight` are `up.weight`, ..."""
    return {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}


def seen(scores: Float[Tensor, "*n T S"], diagonal: int = 0) -> Bool[Tensor, "T S"]:
    """Which keys each query sees: those up to its own place, and `diagonal` more (L1-26)."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(diagonal)


def project(x: Float[Tensor, "B T D"], weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values."""
    return linear(x, weights, "q"), linear(x, weights, "k"), linear(x, weights, "v")


def split(x: Float[Tensor, "B T D"], heads: int) -> Float[Tensor, "B H T d"]:
    """Head i takes channels i d to (i + 1) d (L3-20)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def scale(products: Float[Tensor, "B H T S"], width: int, dim: int) -> Float[Tensor, "B H T S"]:
    """Scores: products of queries and keys over √d, where d is the width of a head and `dim` the model's (D-02)."""
    return products / sqrt(width)


def mask(scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Later keys score -inf (L1-32)."""
    return scores.masked_fill(~seen(scores), float("-inf"))


def softmax(scores: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """The weights of each query's keys, which sum to 1."""
    return scores.softmax(dim=-1)


def join(heads: Float[Tensor, "B H T d"]) -> Float[Tensor, "B T D"]:
    """The heads beside each other, as `split` took them."""
    return heads.transpose(1, 2).flatten(2)


def output(joined: Float[Tensor, "B T D"], weights: Weights) -> Float[Tensor, "B T D"]:
    """W_O (L0-47)."""
    return linear(joined, weights, "o")


@dataclass(frozen=True)
class AttentionSteps:
    """The steps of `attention`, each of which a fault may replace."""

    project: Callable[[Tensor, Weights], tuple[Tensor, Tensor, Tensor]] = project
    split: Callable[[Tensor, int], Tensor] = split
    scale: Callable[[Tensor, int, int], Tensor] = scale
    mask: Map = mask
    softmax: Map = softmax
    drop: Map = lambda weights: weights
    join: Map = join
    output: Callable[[Tensor, Weights], Tensor] = output


_RIGHT_ATTENTION = AttentionSteps()


def attention(
    x: Float[Tensor, "B T D"], weights: Weights, heads: int, steps: AttentionSteps = _RIGHT_ATTENTION
) -> Float[Tensor, "B T D"]:
    """Causal self-attention with heads: softmax(QKᵀ/√d + M) V for each head, joined, times W_O (L0-41, L1-26, L3-25)."""
    q, k, v = (steps.split(each, heads) for each in steps.project(x, weights))
    scores = steps.mask(steps.scale(q @ k.mT, q.shape[-1], x.shape[-1]))
    return steps.output(steps.join(steps.drop(steps.softmax(scores)) @ v), weights)


def norm(x: Float[Tensor, "*n D"], gain: Float[Tensor, "D"], shift: Float[Tensor, "D"]) -> Float[Tensor, "*n D"]:
    """LayerNorm: each token's numbers get mean 0 and variance 1, then a gain and a shift (L0-48)."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() * gain + shift


def enter(x: Tensor, normed: Map) -> Tensor:
    """What a branch reads: the normed tensor (L2-36)."""
    return normed(x)


def leave(x: Tensor, inner: Tensor, branch: Tensor, normed: Map) -> Tensor:
    """What a branch returns is added to the tensor before the norm (D-01)."""
    return x + branch


@dataclass(frozen=True)
class BlockSteps:
    """The steps of `block`, each of which a fault may replace."""

    norm: Callable[[Tensor, Tensor, Tensor], Tensor] = norm
    norms: Callable[[Map, Map], tuple[Map, Map]] = lambda first, second: (first, second)
    branches: Callable[[Map, Map], tuple[Map, Map]] = lambda attend, feed: (attend, feed)
    enter_first: Callable[[Tensor, Map], Tensor] = enter
    leave_first: Callable[[Tensor, Tensor, Tensor, Map], Tensor] = leave
    between: Callable[[Tensor, Tensor], Tensor] = lambda x, middle: middle
    enter_second: Callable[[Tensor, Map], Tensor] = enter
    leave_second: Callable[[Tensor, Tensor, Tensor, Map], Tensor] = leave
    end: Callable[[Tensor, Tensor], Tensor] = lambda x, out: out
    activation: Map = F.gelu


@dataclass(frozen=True)
class ModelSteps:
    """The steps of `model` and of `loss`, each of which a fault may replace."""

    embed: Callable[[Tensor, Tensor], Tensor] = lambda tokens, positions: tokens + positions
    first_position: int = 0
    before_block: Callable[[Tensor, Tensor], Tensor] = lambda x, positions: x
    blocks: Callable[[int], tuple[int, ...]] = lambda depth: tuple(range(depth))
    last_norm: Callable[[Tensor, Tensor, Tensor], Tensor] = norm
    logits: Map = lambda logits: logits
    shift: int = 1  # places between an input and its target
    surprise: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy


@dataclass(frozen=True)
class Steps:
    """All steps of a model."""

    attention: AttentionSteps = field(default_factory=AttentionSteps)
    block: BlockSteps = field(default_factory=BlockSteps)
    model: ModelSteps = field(default_factory=ModelSteps)


RIGHT = Steps()


def block(x: Float[Tensor, "B T D"], weights: Weights, heads: int, steps: Steps = RIGHT) -> Float[Tensor, "B T D"]:
    """A pre-norm block: h = x + attention(norm1(x)), then h + mlp(norm2(h)) (L2-36)."""
    own = steps.block

    def normed(name: str) -> Map:
        return lambda x: own.norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def attend(x: Tensor) -> Tensor:
        return attention(x, below(weights, "attention"), heads, steps.attention)

    def feed(x: Tensor) -> Tensor:
        return linear(own.activation(linear(x, weights, "up")), weights, "down")

    first, second = own.branches(attend, feed)
    norm1, norm2 = own.norms(normed("norm1"), normed("norm2"))
    inner = own.enter_first(x, norm1)
    middle = own.leave_first(x, inner, first(inner), norm1)
    inner = own.enter_second(own.between(x, middle), norm2)
    return own.end(x, own.leave_second(middle, inner, second(inner), norm2))


def model(ids: Int[Tensor, "B T"], weights: Weights, heads: int, steps: Steps = RIGHT) -> Float[Tensor, "B T V"]:
    """A language model: tokens and positions, blocks, a last norm, and the token table as the head (L0-73, L2-55)."""
    own, tokens = steps.model, weights["tokens.weight"]
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    places = torch.arange(ids.shape[1], device=ids.device) + own.first_position
    positions = weights["positions.weight"][places]
    x = own.embed(tokens[ids], positions)
    for index in own.blocks(depth):
        x = block(own.before_block(x, positions), below(weights, f"blocks.{index}"), heads, steps)
    return own.logits(own.last_norm(x, weights["norm.weight"], weights["norm.bias"]) @ tokens.T)


def loss(ids: Int[Tensor, "B T"], weights: Weights, heads: int, steps: Steps = RIGHT) -> Float[Tensor, ""]:
    """The mean surprise of each next token, in nats (L0-75)."""
    shift = steps.model.shift
    inputs = ids[:, : ids.shape[1] - max(1, shift)]
    targets = ids[:, shift : shift + inputs.shape[1]]
    return steps.model.surprise(model(inputs, weights, heads, steps).flatten(0, 1), targets.flatten())
