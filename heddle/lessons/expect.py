"""Guard a number of a lesson: what was computed is what the text says."""

from collections.abc import Sequence

import torch

from heddle.errors import HeddleError

Value = float | int | bool | str | torch.Tensor | Sequence[float]


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def _numbers(value: Value) -> list[float]:
    if isinstance(value, int | float):
        return [value]
    return torch.as_tensor(value).flatten().tolist()


def expect(name: str, value: Value, wanted: float | int | bool | str | Sequence[float], within: float = 0.0) -> None:
    """Print a number beside what the text says of it.

    Args:
        name: what it is, in a few words; unique in its lesson.
        value: what was computed: a number, several, a tensor or a word.
        wanted: what the text says.
        within: the largest difference that is no error: three times the spread over seeds.

    Raises:
        HeddleError: they differ by more.
    """
    if isinstance(wanted, str | bool):
        computed, text, is_equal = str(value), f"{name}: {value}", value == wanted
    else:
        numbers, numbers_wanted = _numbers(value), _numbers(wanted)
        is_equal = len(numbers) == len(numbers_wanted) and all(
            abs(one - other) <= within for one, other in zip(numbers, numbers_wanted, strict=True)
        )
        computed, words = " ".join(map(_shown, numbers)), " ".join(map(_shown, numbers_wanted))
        text = f"{name}: {computed} ({words} ± {within:g})" if within else f"{name}: {computed} ({words})"
    if not is_equal:
        raise HeddleError(f"{name} is {computed}, where the text says {wanted} within {within:g}")
    print(text)
