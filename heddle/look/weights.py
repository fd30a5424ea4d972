"""Analyses of the weights alone: QK and OV products, nearest tokens, position tables, activation curves."""

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

    The QK product gives the scores of pairs of vectors, x W_Q^i (W_K^i)ᵀ xᵀ, without biases and norms; the OV product maps what a
    head reads to what it writes. Both are D × D with rank at most d.
    """

    def columns(linear: nn.Linear, width: int) -> Tensor:
        weight: Tensor = linear.weight  # [h, D, width] below, as the lectures write X W
        split: Tensor = weight.unflatten(0, (-1, width))
        return split.transpose(1, 2)

    q, o = columns(attention.q, attention.head_dim), attention.o.weight.T.unflatten(0, (-1, attention.value_dim))
    k, v = columns(attention.k, attention.head_dim), columns(attention.v, attention.value_dim)
    k, v = (projection.repeat_interleave(len(q) // len(k), dim=0) for projection in (k, v))
    return q @ k.transpose(1, 2), v @ o


@torch.no_grad()
@checked(count=at_least(1))
def near(model: Transformer, token: int, count: int = 10) -> Near:
    """The nearest tokens by cosine similarity of embeddings, with their cosines, highest first.

    Raises:
        HeddleError: the id is out of range.
    """
    units = _unit_embeddings(model)
    return _nearest(units[_check_id(model, token)], units, [token], count)


@torch.no_grad()
@checked(count=at_least(1))
def analogy(model: Transformer, a: int, b: int, c: int, count: int = 10) -> Near:
    """Solve the analogy a : b = c : …, by the tokens nearest to b - a + c of unit embeddings, excluding a, b and c.

    Raises:
        HeddleError: an id is out of range.
    """
    units = _unit_embeddings(model)
    first, second, third = (units[_check_id(model, token)] for token in (a, b, c))
    return _nearest(second - first + third, units, [a, b, c], count)


@torch.no_grad()
@checked(length=at_least(1))
def position_tables(model: Transformer, length: int | None = None) -> dict[str, Tensor]:
    """The position encodings of a model's stacks, by name.

    `decoder.positions`: Float[T d], the absolute position vectors (L0-15, L3-31). `decoder.relative.0`: for rotary positions the
    angles, Float[T d/2] in radians; for ALiBi and bucketed positions the bias, Float[H T T].

    Args:
        model: any model.
        length: T; None: the context, at most 128.
    """
    tables: dict[str, Tensor] = {}
    length = min(model.config.context, 128) if length is None else length
    layout = Layout.whole(1, length, model.device)
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        if stack.longest is not None and length > stack.longest:
            raise HeddleError(f"length = {length}: this model has {stack.longest} learned positions")
        if stack.entry.positions is not None:
            tables[f"{name}.positions"] = stack.entry.places_of(layout, torch.float32)[0]
        for number, relative in enumerate(stack.relative):
            if isinstance(relative, Alibi | Buckets):
                tables[f"{name}.relative.{number}"] = relative(layout, layout)[0]
            elif isinstance(relative, Rotary):
                angles = layout.position[0, :, None] * relative.frequencies(model.device)
                tables[f"{name}.relative.{number}"] = angles
    return tables


@torch.no_grad()
@checked(points=at_least(2))
def activation_curves(
    names: Sequence[str] = tuple(ACTIVATIONS), low: float = -4.0, high: float = 4.0, points: int = 161
) -> tuple[Float[Tensor, " N"], dict[str, Float[Tensor, " N"]]]:
    """Activation functions as curves: the points, and the values by name (L1-20, L2-36).

    Raises:
        HeddleError: unknown activation.
    """
    if unknown := [name for name in names if name not in ACTIVATIONS]:
        raise HeddleError(f"unknown activation {unknown[0]!r}: choose from {', '.join(ACTIVATIONS)}")
    x = torch.linspace(low, high, points)
    return x, {name: ACTIVATIONS[name](x) for name in names}


def _unit_embeddings(model: Transformer) -> Tensor:
    table = model.embedding.weight[: model.vocab_size].float()
    return nn.functional.normalize(table, dim=-1)


def _check_id(model: Transformer, token: int) -> int:
    if not 0 <= token < model.vocab_size:
        raise HeddleError(f"id {token} is out of range (vocab size {model.vocab_size})")
    return token


def _nearest(vector: Tensor, units: Tensor, excluded: Sequence[int], count: int) -> Near:
    cosines = units @ nn.functional.normalize(vector, dim=-1)
    cosines[list(excluded)] = -torch.inf
    values, tokens = cosines.topk(min(count, len(units) - len(set(excluded))))
    return list(zip(tokens.tolist(), values.tolist(), strict=True))
