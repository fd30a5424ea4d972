"""Comparing whatever a function returns on two devices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


def leaves(result: Any, name: str = "result") -> Iterator[tuple[str, Any]]:
    """All numbers and words in it, by where they are."""
    if isinstance(result, Tensor):
        yield name, result.detach().cpu()
    elif isinstance(result, np.ndarray):
        yield name, torch.from_numpy(result)
    elif is_dataclass(result):
        for each in fields(result):
            yield from leaves(getattr(result, each.name), f"{name}.{each.name}")
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from leaves(value, f"{name}.{key}")
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for number, value in enumerate(result):
            yield from leaves(value, f"{name}.{number}")
    else:
        yield name, result


def assert_same(expected: Any, result: Any, rounding: float = 0.0) -> None:
    """Both have the same parts; numbers differ by at most `rounding` times the largest of their tensor.

    Raises:
        AssertionError: they do not.
    """
    first, second = dict(leaves(expected)), dict(leaves(result))
    assert first.keys() == second.keys(), first.keys() ^ second.keys()
    assert first, "there is nothing to compare"
    for name, value in first.items():
        if isinstance(value, Tensor | float):
            one, two = torch.as_tensor(value), torch.as_tensor(second[name])
            largest = float(one.abs().max()) if one.is_floating_point() and one.numel() else 0.0
            bound = rounding * largest if largest < float("inf") else rounding
            torch.testing.assert_close(
                two, one, rtol=0, atol=bound, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )
        else:
            assert value == second[name], f"{name}: {value!r} on the CPU, {second[name]!r} on the device"


def distance(exact: Any, rounded: Any) -> float:
    """How far the numbers of both are apart at most, as a share of the largest of their tensor."""
    second, furthest = dict(leaves(rounded)), 0.0
    for name, value in leaves(exact):
        if isinstance(value, Tensor | float):
            one, two = torch.as_tensor(value).double(), torch.as_tensor(second[name]).double()
            largest = float(one.abs().max()) if one.numel() else 0.0
            if 0 < largest < float("inf"):
                furthest = max(furthest, float((one - two).abs().max()) / largest)
    return furthest
