"""Guard a number of a lesson: what was computed is what the text says."""

from collections.abc import Sequence

import torch

from heddle.display import COLUMNS
from heddle.errors import HeddleError

Value = float | int | bool | str | torch.Tensor | Sequence[float]


def _text_of(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _numbers(value: Value) -> list[float]:
    if isinstance(value, int | float):
        return [value]
    return torch.as_tensor(value).flatten().tolist()


def expect(name: str, value: Value, expected: float | int | bool | str | Sequence[float], within: float = 0.0) -> None:
    """Print a number beside what the text says of it.

    Args:
        name: what it is, in a few words; unique in its lesson.
        value: what was computed: a number, several, a tensor or a word.
        expected: what the text says.
        within: the largest difference that is allowed: three times the spread over seeds.

    Raises:
        HeddleError: they differ by more.
    """
    if isinstance(expected, str | bool):
        computed, text, is_equal = str(value), f"{name}: {value}", value == expected
    else:
        numbers, numbers_expected = _numbers(value), _numbers(expected)
        is_equal = len(numbers) == len(numbers_expected) and all(
            abs(one - other) <= within for one, other in zip(numbers, numbers_expected, strict=True)
        )
        computed, words = " ".join(map(_text_of, numbers)), " ".join(map(_text_of, numbers_expected))
        text, stated = f"{name}: {computed}", f"({words} ± {within:g})" if within else f"({words})"
        text += f" {stated}" if len(text) + len(stated) < COLUMNS else f"\n  {stated}"
    if not is_equal:
        raise HeddleError(f"{name} is {computed}, where the text says {expected} within {within:g}")
    print(text)
