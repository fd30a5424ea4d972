"""What each parameter is for an optimizer: an ordered table over names."""

import re

# Pattern of a parameter's name -> what it is. The first row that fits decides; Muon takes `matrix` rows, AdamW all others.
ROLES = [
    (r"^(embedding|source_embedding|head)\.weight$", "table"),
    (r"\.(positions|types|relative\.\d+)\.weight$", "table"),
    (r"\.router\.weight$", "table"),
    (r"\.blocks\.\d+\.(mixer|cross|ffn)\..*(weight|\.up|\.gate|\.down)$", "matrix"),
    (r"^head\.", "table"),
    (r"", "vector"),  # norms, biases, and anything of one dimension
]
STACKS = re.compile(r"\.ffn\.experts\.(up|gate|down)$")  # of matrices, [E m n]: each is updated as if it were alone


def role(name: str, dimensions: int) -> str:
    """What a parameter is for the optimizer: `table`, `matrix` (or a stack of them) or `vector`."""
    if dimensions < 2:
        return "vector"
    found = next(kind for pattern, kind in ROLES if re.search(pattern, name))
    if dimensions > 2 and found == "matrix" and not STACKS.search(name):
        return "table"  # not known to be a stack of matrices: a convolution's weight or a user's own
    return found
