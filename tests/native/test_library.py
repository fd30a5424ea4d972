"""The library does not disturb others that are loaded into the same process."""

import subprocess
import sys

import pytest

from heddle.native.library import operators

VISIBLE = """
import ctypes
from heddle.native.library import library, operators
assert library() and operators()
process = ctypes.CDLL(None)
print([name for name in ("aoti_torch_cpu_few_rows", "heddle_product", "aoti_torch_get_sizes") if hasattr(process, name)])
"""


@pytest.mark.skipif(operators() is None, reason="no C++ compiler")
def test_only_the_operator_is_visible_to_other_libraries() -> None:
    """Symbols of torch bear names of other packages' own: with all of them visible, importing llama.cpp's ends the process."""
    out = subprocess.run([sys.executable, "-c", VISIBLE], capture_output=True, text=True, check=True).stdout
    assert out == "['aoti_torch_cpu_few_rows']\n"
