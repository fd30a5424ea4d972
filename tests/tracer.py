"""A program: torch and heddle imported once, for programs that trace or compile (`tests/forks.py`)."""

from torch._inductor import compile_fx  # noqa: F401  for those that fork off
from torch.nn import parallel  # noqa: F401

from heddle import generate, train  # noqa: F401
from heddle.model import compiling  # noqa: F401
from tests import forks, graphs, models  # noqa: F401

if __name__ == "__main__":
    forks.serve()
