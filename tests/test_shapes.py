"""The checks of shapes find what is wrong, with a record of sizes and without."""

import os
import sys
from pathlib import Path

from tests.programs import ROOT, finished

LOOM = """
from dataclasses import dataclass
from jaxtyping import Float
from torch import Tensor

def width(cloth: Float[Tensor, "warp weft"], yarn: Float[Tensor, "warp"]) -> Float[Tensor, "weft"]:
    return cloth[:, 0] if yarn[0] else cloth[0]

def several(cloths: list[Float[Tensor, "2 2"]], name: str = "") -> int:
    return len(cloths)

def count(threads: int) -> str:
    return str(threads) if threads else None

def every(threads: int, cloth: "Cloth | None" = None):
    yield threads

@dataclass
class Cloth:
    yarns: int

    @property
    def wrong(self) -> str:
        return self.yarns

    def cut(self, other: "Cloth", most: Float[Tensor, ""]) -> "Cloth":
        return other if most else 3
"""
TRIED = """
from tests.shapes import check_shapes
check_shapes(["loom"])
import torch
from loom import Cloth, count, every, several, width
cloth, one, three = torch.ones(2, 3), torch.ones(1), torch.ones(3)
assert width(cloth, torch.zeros(2)).shape == (3,) and several([torch.ones(2, 2)]) == 1 and count(3) == "3"
assert list(every(2)) == [2] and Cloth(2).cut(Cloth(3), torch.ones(())) == Cloth(3)
calls = [
    lambda: width(three, three), lambda: width(cloth, three), lambda: width(cloth, torch.ones(2)),
    lambda: width(cloth.int(), torch.zeros(2)),
    lambda: several([three]), lambda: several([], 3), lambda: count("3"), lambda: count(0), lambda: list(every("3")),
    lambda: Cloth("a"), lambda: Cloth(2).wrong, lambda: Cloth(2).cut(3, torch.ones(())),
    lambda: Cloth(2).cut(Cloth(2), one), lambda: Cloth(2).cut(Cloth(2), torch.zeros(())),
]
for number, call in enumerate(calls):
    try:
        call()
    except Exception as error:
        print(number, "violates" in str(error) or "Type-check error" in str(error))
    else:
        print(number, "was not found")
"""


def test_whatever_is_wrong_is_found(tmp_path: Path) -> None:
    """The third call of `width` has a result of another size than its name; arguments, sizes, kinds and plain types are others."""
    (tmp_path / "loom.py").write_text(LOOM)
    (tmp_path / "tried.py").write_text(TRIED)
    done = finished([sys.executable, str(tmp_path / "tried.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{number} True" for number in range(14)]


def test_what_another_run_checked_is_not_checked(tmp_path: Path) -> None:
    """A module that a checked one imports is as it was written, whatever bytecode there is, and the other way round."""
    # Neither needs torch, which takes long to import.
    (tmp_path / "loom.py").write_text("def count(threads: int) -> str:\n    return str(threads) if threads else None\n")
    (tmp_path / "mill.py").write_text("from loom import count\n\ndef lie() -> int:\n    return 'x'\n")
    program = """
import sys
from tests.shapes import check_shapes
check_shapes(sys.argv[1:])
from mill import count, lie
for call in (count, lie):
    try:
        call(0) if call is count else call()
    except Exception as error:
        print("checked", end=" ")
    else:
        print("unchecked", end=" ")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
    for packages, outcome in (
        (("loom", "mill"), "checked checked "),
        (("mill",), "unchecked checked "),
        (("loom", "mill"), "checked checked "),
        ((), "unchecked unchecked "),
        (("loom",), "checked unchecked "),
    ):
        done = finished([sys.executable, "-c", program, *packages], cwd=tmp_path, env=environment)
        assert done.stdout == outcome, (packages, done.stderr)
