"""What a reader writes in a lesson, and how it is compared with the definition and with known mistakes."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.errors import article, pluralize

Function = Callable[..., Any]
Cases = Mapping[str, tuple[Any, ...]]  # arguments, by what they try
EXACT, SINGLE = 1e-9, 2e-6  # errors of float64 and of float32 that are rounding, relative to the largest number


@dataclass(frozen=True)
class Exercise:
    """A function that a reader writes.

    Attributes:
        name: what `check` is called with.
        lesson: the number of the lesson that has it.
        right: the definition.
        cases: makes the arguments of each call, by what the call tries. Known traps are among them.
        mistakes: wrong functions, by what is wrong with them, in a sentence.
        rows: rows of the lectures that the function settles.
    """

    name: str
    lesson: int
    right: Function
    cases: Callable[[], Cases]
    mistakes: Mapping[str, Function]
    rows: tuple[str, ...] = ()

    def judge(self, function: Function) -> str | None:
        """What is wrong with a function, in one line, or None if it is right."""
        cases = self.cases()
        results = {name: _call(function, case) for name, case in cases.items()}
        expected = {name: _call(self.right, case) for name, case in cases.items()}
        wrong = [name for name in cases if not same(results[name], expected[name])]
        if not wrong:
            return None
        if results[wrong[0]] is None or results[wrong[0]] is ...:
            return "it returns nothing: write its body, and end it with `return`."
        for sentence, mistake in self.mistakes.items():
            if all(same(results[name], _call(mistake, case)) for name, case in cases.items()):
                return sentence
        return f"{wrong[0]}: {difference(results[wrong[0]], expected[wrong[0]])}."

    def report(self, function: Function) -> str:
        """The line that a reader sees."""
        problem = self.judge(function)
        return (
            f"{self.name}: right in {pluralize(len(self.cases()), 'case')}"
            if problem is None
            else f"{self.name}: {problem}"
        )


@dataclass(frozen=True)
class Raised:
    """What a function raised."""

    kind: str
    message: str


def _call(function: Function, arguments: tuple[Any, ...]) -> Any:
    """What a function returns for copies of the arguments, or what it raises."""
    try:
        return function(*copy.deepcopy(arguments))
    except Exception as error:  # whatever a reader's code does
        return Raised(type(error).__name__, str(error))


def same(result: Any, expected: Any) -> bool:
    """Whether two results are equal, numbers up to rounding."""
    if isinstance(result, Raised) or isinstance(expected, Raised):
        return isinstance(result, Raised) and isinstance(expected, Raised) and result.kind == expected.kind
    if isinstance(expected, Tensor):
        return isinstance(result, Tensor) and result.shape == expected.shape and bool(_close(result, expected).all())
    if isinstance(expected, list | tuple):
        return isinstance(result, list | tuple) and len(result) == len(expected) and all(map(same, result, expected))
    if isinstance(expected, float):
        return isinstance(result, int | float | Tensor) and same(torch.as_tensor(result), torch.as_tensor(expected))
    return bool(result == expected)


def _close(result: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors of one shape are equal up to rounding."""
    rounding = SINGLE if result.dtype == torch.float32 else EXACT
    one, other = result.detach().double(), expected.double()
    largest = other.nan_to_num(0, 0, 0).abs().max().item() if other.numel() else 0.0
    return torch.isclose(one, other, rtol=0, atol=rounding * largest, equal_nan=True)


def difference(result: Any, expected: Any) -> str:
    """Where two results differ, in words."""
    if isinstance(result, Raised):
        return f"it raises {result.kind}: {result.message.splitlines()[0] if result.message else 'without a message'}"
    if isinstance(expected, Tensor):
        if not isinstance(result, Tensor):
            return f"it returns {article(type(result).__name__)}, not a tensor"
        if result.shape != expected.shape:
            return f"the shape is {list(result.shape)}, not {list(expected.shape)}"
        place = (~_close(result, expected)).nonzero()[0].tolist()
        return f"the number at {place} is {result[*place].item():.6g}, not {expected[*place].item():.6g}"
    if isinstance(expected, tuple) and isinstance(result, list | tuple) and len(result) == len(expected):
        part = next(part for part in range(len(expected)) if not same(result[part], expected[part]))
        return f"of what it returns, part {part}: {difference(result[part], expected[part])}"
    return f"it returns {result!r}, not {expected!r}"
