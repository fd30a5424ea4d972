"""What the presets' parameters are: several tests look at them, and a deep preset takes a second to count."""

from functools import cache

from heddle.account import Parameters, parameters
from heddle.config import preset


@cache
def parameters_of(name: str) -> Parameters:
    """The parameters of a preset, counted once."""
    return parameters(preset(name))
