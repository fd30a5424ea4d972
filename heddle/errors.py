"""The one error a user can cause. The command line prints it as a single line and exits with 2."""

import difflib
from collections.abc import Iterable

_LONGER = 3  # suggested names when a word is a prefix of several


class HeddleError(Exception):
    """Bad input. The message is one line: what is wrong, where, and what to do about it."""


def pluralize(number: int, thing: str) -> str:
    """A count with its noun: `1 document`, `2,000 documents`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


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
