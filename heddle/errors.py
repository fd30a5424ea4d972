"""The one error a user can cause. The command line prints it as a single line and exits with 2."""

import difflib
import re
from collections.abc import Iterable

_LONGER = 3  # suggested names when a word is a prefix of several
_CONTROLS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")  # what would end the line, or move what a terminal shows
_LONG = re.compile(r"(\S{200})\S{200,}(?=\S{20})")  # what was given in place of a name


class HeddleError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it.

    A control character in it, such as a line break in a file's name, stands as Python writes it. A word of more than 400 characters
    is cut.
    """

    def __init__(self, message: str) -> None:
        line = _CONTROLS.sub(lambda sign: repr(sign.group())[1:-1], message)
        super().__init__(_LONG.sub(r"\1…", line))


class TextError(HeddleError):
    """A fault of one of several texts, whose place the caller may know.

    Args:
        what: what the text is called without a place, such as `source`.
        number: which of the texts, from 0.
        fault: what is wrong with it and what to do, to follow its name.
    """

    def __init__(self, what: str, number: int, fault: str) -> None:
        super().__init__(f"{what} {number} {fault}")
        self.what, self.number, self.fault = what, number, fault

    def at(self, place: str) -> HeddleError:
        """The same fault with the place that the user knows, such as `source.txt:3`."""
        return HeddleError(f"{place} {self.fault}")


def pluralize(number: int, thing: str) -> str:
    """A count with its noun: `1 document`, `2,000 documents`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def article(noun: str) -> str:
    """A noun with its indefinite article: `a list`, `an int`."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'depth'?"`` for the nearest known name, or an empty string if none is near.

    Names that start with the word come first: `gpt2` suggests `gpt2-small` before `gpt1`.
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not (near and near[0].startswith(word)):
        longer = (name for name in names if len(word) > 2 and name.startswith(word))
        near = sorted(longer, key=len)[:_LONGER] or near
    said = [repr(name) for name in near]
    return f" Did you mean {' or '.join([', '.join(said[:-1]), said[-1]] if said[1:] else said)}?" if said else ""
