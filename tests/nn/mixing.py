"""One mixer by itself, without a block around it: whole sequences, and the steps of a cache."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heddle.nn import Cache, Layout
from heddle.nn.state import BlockState

DIM = 6


def filled(mixer: nn.Module) -> Any:
    """In float64, every parameter random, also those that would start at zero."""
    mixer.double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, DIM, dtype=torch.float64)


def whole(mixer: Any, x: Tensor, at: Layout | None = None) -> Tensor:
    at = Layout.whole(x.shape[0], x.shape[1]) if at is None else at
    return mixer(x, mixer.pattern.scope(at))


def cache_for(mixer: Any, rows: int) -> Cache:
    return Cache([BlockState(mixer.new_state())], rows)


def keys_for(mixer: Any, cache: Cache) -> Layout:
    assert cache.keys is not None
    return cache.keys[mixer.pattern.reach]


def step(mixer: Any, cache: Cache, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    queries = cache.advance([x.shape[1]] * x.shape[0] if counts is None else counts)
    return mixer(x, mixer.pattern.scope(queries, keys_for(mixer, cache)), cache.states[0].mixer)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
