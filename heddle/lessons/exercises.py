"""The exercises of all lessons, by name. A new one is a row in the table of its part of the lectures.

    check("attention", attention)

prints one line: that the reader's function is right, or what is wrong with it.
"""

from heddle.errors import HeddleError, did_you_mean
from heddle.lessons.early_exercises import EARLY
from heddle.lessons.exercise import Exercise, Function
from heddle.lessons.late_exercises import LATE

EXERCISES: dict[str, Exercise] = {each.name: each for each in (*EARLY, *LATE)}


def exercise(name: str) -> Exercise:
    """The exercise of a name.

    Raises:
        HeddleError: there is none.
    """
    if name not in EXERCISES:
        raise HeddleError(f"no exercise is called {name!r}.{did_you_mean(name, EXERCISES)}")
    return EXERCISES[name]


def check(name: str, function: Function) -> None:
    """Print whether a reader's function is right, in one line; if it makes a known mistake, which.

    Raises:
        HeddleError: no exercise has this name.
    """
    print(exercise(name).report(function))
