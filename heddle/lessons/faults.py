"""All known mistakes, by name. A new mistake is a new row in the table of its part."""

from heddle.errors import HeddleError, did_you_mean
from heddle.lessons.attention_faults import ATTENTION
from heddle.lessons.block_faults import BLOCK
from heddle.lessons.fault import Fault
from heddle.lessons.model_faults import LOSS, MODEL

FAULTS: dict[str, Fault] = {each.name: each for each in (*ATTENTION, *BLOCK, *MODEL, *LOSS)}


def fault(name: str) -> Fault:
    """The fault of a name.

    Raises:
        HeddleError: there is none.
    """
    if name not in FAULTS:
        raise HeddleError(f"no fault is called {name!r}.{did_you_mean(name, FAULTS)}")
    return FAULTS[name]
