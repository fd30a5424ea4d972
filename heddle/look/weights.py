"""What the weights alone say: products of projections, neighbours of tokens, tables of positions, activation curves."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.checks import at_least, checked
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.activations import ACTIVATIONS
from heddle.nn.attention import Attention
from heddle.nn.layout import Layout
from heddle.nn.position import Alibi, Buckets, Rotary

Near = list[tuple[int, float]]


@checked()
def head_products(attention: Attention) -> tuple[Float[Tensor, "H D D"], Float[Tensor, "H D D"]]:
    """W_Q^i (W_K^i)ᵀ and W_V^i W_O^i of every head (L0-34, L0-44, D-42).

    The first decides which pairs of vectors score high, x W_Q^i (W_K^i)ᵀ xᵀ, ignoring biases and norms; the second maps what a
    head reads to what it writes. Both are D x D with rank at most d, so storing them as weights would save nothing.
    """

    def columns(linear: nn.Linear, width: int) -> Tensor:
        weight: Tensor = linear.weight  # [h, D, width] below, as the lectures write X W
        split: Tensor = weight.unflatten(0, (-1, width))
        return split.transpose(1, 2)

    q, o = columns(attention.q, attention.head_dim), attention.o.weight.T.unflatten(0, (-1, attention.value_dim))
    k, v = columns(attention.k, attention.head_dim), columns(attention.v, attention.value_dim)
    k, v = (each.repeat_interleave(len(q) // len(k), dim=0) for each in (k, v))
    return q @ k.transpose(1, 2), v @ o


@torch.no_grad()
@checked(count=at_least(1))
def near(model: Transformer, token: int, count: int = 10) -> Near:
    """The tokens whose vectors point most nearly the same way as a token's, with the cosines, highest first.

    Raises:
        HeddleError: there is no such id.
    """
    units = _units(model)
    return _nearest(units[_id(model, token)], units, [token], count)


@torch.no_grad()
@checked(count=at_least(1))
def analogy(model: Transformer, a: int, b: int, c: int, count: int = 10) -> Near:
    """What is to `c` as `b` is to `a`: the tokens nearest to b - a + c of unit vectors, and none of these three.

    Raises:
        HeddleError: there is no such id.
    """
    units = _units(model)
    first, second, third = (units[_id(model, each)] for each in (a, b, c))
    return _nearest(second - first + third, units, [a, b, c], count)


@torch.no_grad()
@checked(length=at_least(1))
def position_tables(model: Transformer, length: int | None = None) -> dict[str, Tensor]:
    """The positions that a model's stacks know, by name.

    `decoder.positions`: Float[T d], the vectors that are added or concatenated (L0-15, L3-31). `decoder.relative.0`: of rotary
    positions the angles, Float[T d/2] in radians; of ALiBi and buckets the bias, Float[H T T]. A model without any has none.

    Args:
        model: any model.
        length: T; None: the context, at most 128.
    """
    found: dict[str, Tensor] = {}
    length = min(model.config.context, 128) if length is None else length
    layout = Layout.whole(1, length, model.device)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        if stack.longest is not None and length > stack.longest:
            raise HeddleError(f"length = {length}: this model has {stack.longest} learned positions")
        if stack.entry.positions is not None:
            found[f"{name}.positions"] = stack.entry.places_of(layout, torch.float32)[0]
        for number, relative in enumerate(stack.relative):
            if isinstance(relative, Alibi | Buckets):
                found[f"{name}.relative.{number}"] = relative(layout, layout)[0]
            elif isinstance(relative, Rotary):
                angles = layout.position[0, :, None] * relative.frequencies(model.device)
                found[f"{name}.relative.{number}"] = angles
    return found


@torch.no_grad()
@checked(points=at_least(2))
def activation_curves(
    names: Sequence[str] = tuple(ACTIVATIONS), low: float = -4.0, high: float = 4.0, points: int = 161
) -> tuple[Float[Tensor, " N"], dict[str, Float[Tensor, " N"]]]:
    """Activations as curves: the points, and the values of each by name (L1-20, L2-36).

    Raises:
        HeddleError: there is no such activation.
    """
    if odd := [name for name in names if name not in ACTIVATIONS]:
        raise HeddleError(f"there is no activation {odd[0]!r}: choose from {', '.join(ACTIVATIONS)}")
    x = torch.linspace(low, high, points)
    return x, {name: ACTIVATIONS[name](x) for name in names}


def _units(model: Transformer) -> Tensor:
    table = model.embedding.weight[: model.vocab_size].float()
    return nn.functional.normalize(table, dim=-1)


def _id(model: Transformer, token: int) -> int:
    if not 0 <= token < model.vocab_size:
        raise HeddleError(f"there is no token {token}: ids go from 0 to {model.vocab_size - 1}")
    return token


def _nearest(goal: Tensor, units: Tensor, without: Sequence[int], count: int) -> Near:
    cosines = units @ nn.functional.normalize(goal, dim=-1)
    cosines[list(without)] = -torch.inf
    values, tokens = cosines.topk(min(count, len(units) - len(set(without))))
    return list(zip(tokens.tolist(), values.tolist(), strict=True))
