"""Published families: each has a two-way table of its config's fields and one of its tensors. `registry` lists them."""

from heddle.convert.families.family import Family as Family
from heddle.convert.families.registry import ALL as ALL
from heddle.convert.families.registry import FAMILIES as FAMILIES

__all__ = ["ALL", "FAMILIES", "Family"]
