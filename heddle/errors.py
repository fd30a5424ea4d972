"""The one error a user can cause. The command line prints it as a single line and exits with 2."""

import difflib
from collections.abc import Iterable


class HeddleError(Exception):
    """Bad input, said in one line: what is wrong, where, and what to do about it."""


def counted(number: int, thing: str) -> str:
    """A number of things: `1 document`, `2,000 documents`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'depth'?"`` for the nearest known name, or an empty string when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
