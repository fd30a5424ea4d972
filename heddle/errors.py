"""The error for bad input. The command line prints it as a single line and exits with 2."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import clear_frames
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_LONGER = 3  # maximum number of suggestions when a word is a prefix of several names
# What torch says, whose class depends on the device, and whose words on the system.
_OUT_OF_MEMORY = re.compile("out of memory|allocate memory|not enough memory|ALLOC_FAILED")
# Where nobody knows what was too large.
OUT_OF_MEMORY = "out of memory: use a smaller model, a smaller batch, or a shorter context"
_CONTROLS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")  # line breaks and terminal control characters
_LONG = re.compile(r"(\S{200})\S{200,}(?=\S{20})")  # very long words, such as data in place of a name


class HeddleError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it.

    Several problems are numbered: `(1) no such file (2) no such run`. Control characters, such as a line break in a file's name,
    are escaped. Words of more than 400 characters are cut.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        line = _CONTROLS.sub(lambda sign: repr(sign.group())[1:-1], listed(self.problems))
        super().__init__(_LONG.sub(r"\1…", line))


class OutOfMemory(HeddleError):
    """Something did not fit into memory.

    Args:
        problem: what, and what to lower.
        left: what is left of it.
    """

    def __init__(self, problem: str, left: str = "") -> None:
        super().__init__("; ".join(filter(None, (problem, left))))
        self.problem = problem


def ran_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, MemoryError | OutOfMemory) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


@contextmanager
def room_for(what: str | Callable[[], str], lower: str) -> Iterator[None]:
    """Inside the `with` block, an allocation that fails becomes one line: what did not fit, and what to lower.

    What the block has computed is freed, although the error remembers where it failed.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)
        raise OutOfMemory(f"out of memory with {what if isinstance(what, str) else what()}: {lower}") from error


class TextError(HeddleError):
    """A fault in one of several texts. The caller may know its location and call `at`.

    Args:
        name: the kind of text, such as `source`, for messages without a location.
        number: the index of the text, from 0.
        fault: the problem and what to do, to follow the name.
    """

    def __init__(self, name: str, number: int, fault: str) -> None:
        super().__init__(f"{name} {number} {fault}")
        self.name, self.number, self.fault = name, number, fault

    def at(self, location: str) -> HeddleError:
        """The same fault with a location, such as `source.txt:3`."""
        return HeddleError(f"{location} {self.fault}")


def listed(problems: Sequence[str]) -> str:
    """One problem as it is, several with numbers."""
    numbered = (f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
    return problems[0] if len(problems) == 1 else " ".join(numbered)


def for_each(function: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
    """The outcome of a function for each item.

    Raises:
        HeddleError: the function refused some of the items; the error has all of these problems.
    """
    outcomes, errors = [], []
    for item in items:
        try:
            outcomes.append(function(item))
        except HeddleError as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else HeddleError(*(line for error in errors for line in error.problems))
    return outcomes


def problems_of(call: Callable[[], object]) -> tuple[str, ...]:
    """The problems for which a call is refused, if it is."""
    try:
        call()
    except HeddleError as error:
        return error.problems
    return ()


def together(problems: Sequence[str], call: Callable[[], Outcome]) -> Outcome:
    """The outcome of a call.

    Raises:
        HeddleError: there are problems already, or the call was refused; the error has all of these problems.
    """
    try:
        outcome = call()
    except HeddleError as error:
        if not problems:
            raise
        raise HeddleError(*problems, *error.problems) from None
    if problems:
        raise HeddleError(*problems)
    return outcome


def pluralize(number: int, thing: str) -> str:
    """A count with its noun: `1 document`, `2,000 documents`, `3 processes`."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{ending}"


def article(noun: str) -> str:
    """A noun with its indefinite article: `a list`, `an int`."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def did_you_mean(word: str, choices: Iterable[str], before: str = "") -> str:
    """Return ``" Did you mean 'depth'?"`` for the nearest choice, or an empty string if none is near.

    Names that start with the word come first: `gpt2` suggests `gpt2-small` before `gpt1`.

    Args:
        word: what was written.
        choices: the names.
        before: what to write before each of them, such as a table's name and a dot.
    """
    names = list(choices)
    similar = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not (similar and similar[0].startswith(word)):
        longer = (name for name in names if len(word) > 2 and name.startswith(word))
        similar = sorted(longer, key=len)[:_LONGER] or similar
    if not similar:
        return ""
    *quoted, last = [repr(before + name) for name in similar]
    return f" Did you mean {', '.join(quoted)} or {last}?" if quoted else f" Did you mean {last}?"
