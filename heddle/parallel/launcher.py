"""What a launcher such as torchrun says in the environment."""

import os

from heddle.errors import HeddleError


def process_count() -> int:
    """How many processes torchrun started; without torchrun, 1."""
    return number("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def follows() -> bool:
    """Whether this is one of several processes, and not the first, which speaks for all."""
    return process_count() > 1 and number("RANK") > 0


def number(name: str, otherwise: int | None = None) -> int:
    """What the launcher says in a variable of the environment.

    Raises:
        HeddleError: it is missing, or not a number.
    """
    text = os.environ.get(name, None if otherwise is None else str(otherwise))
    if text is None or not text.isascii() or not text.isdigit():
        problem = "is not set" if text is None else f"= {text!r} is not a number"
        raise HeddleError(
            f"{name} {problem}: several processes need RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from torchrun"
        )
    return int(text)
