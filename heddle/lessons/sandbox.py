"""Runs submissions in processes of their own, with limits. A submission is code: it runs with the user's rights."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from heddle.errors import HeddleError
from heddle.lessons.cases import Case
from heddle.lessons.child import SECONDS, SECONDS_TO_LEARN
from heddle.lessons.homework import Shape

_ROOT = str(Path(__file__).parents[2])
# Import heddle from where this module lies, not from the current directory.
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from heddle.lessons.child import main; main()"


@dataclass(frozen=True)
class Submission:
    """What a submission is and computed.

    Attributes:
        problem: why it cannot be used, in words; empty if it can.
        missing, extra, misshapen: its parameters, as in `heddle.lessons.homework.Parameters`.
        outputs: by case: what it returned.
        again: the same of a second call.
        training: the same of a call in training.
        joined: what reached W_O, where it has one.
        gradients: by the homework's names, of the case that asks for them.
        errors: by case: what was raised, in a line.
        learned: what came of training it, if it was trained.
        takes_layout: whether its `forward` can be called with a layout, as a mixer's is.
    """

    problem: str = ""
    missing: tuple[str, ...] = ()
    extra: dict[str, Shape] = field(default_factory=dict)
    misshapen: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    again: dict[str, Tensor] = field(default_factory=dict)
    training: dict[str, Tensor] = field(default_factory=dict)
    joined: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)
    takes_layout: bool = True


class Sandbox:
    """A process that has torch in memory and runs one submission after another, each in a child of its own.

    Args:
        learns: whether models are trained too.
        seconds: how long a submission may take; None: 20 s, and 180 s if it is trained.
    """

    def __init__(self, learns: bool = False, seconds: float | None = None) -> None:
        self.learns = learns
        self.seconds = seconds or (SECONDS_TO_LEARN if learns else SECONDS)
        command = [sys.executable, "-c", _START, _ROOT]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, process_group=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._process.wait()
        self._answers.close()

    def run(self, file: Path, part: str, cases: Sequence[Case]) -> Submission:
        """Run one submission on cases."""
        with tempfile.TemporaryDirectory(prefix="heddle-") as place:
            folder = Path(place)
            (folder / "scratch").mkdir()
            request = {
                "file": str(file.resolve()),
                "part": part,
                "folder": place,
                "seconds": self.seconds,
                "learns": self.learns,
            }
            request |= {"cases": _write(cases, folder / "cases.safetensors")}
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            answer = self._answers.readline()
            if not answer:
                raise HeddleError(f"the process that grades ended while it ran {file}; grade that file alone")
            ended = json.loads(answer)["ended"]
            if ended:
                return Submission(problem=ended)
            return _read(json.loads((folder / "result.json").read_text()), folder / "outputs.safetensors", cases)


def _write(cases: Sequence[Case], file: Path) -> list[dict[str, Any]]:
    """Store the cases' tensors, weights that several share once, and return what JSON can tell of them."""
    labels: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    rows = []
    for index, case in enumerate(cases):
        label = labels.setdefault(id(case.weights), f"weights {index}")
        tensors |= {f"input:{index}": case.input} | {f"{label}:{name}": each for name, each in case.weights.items()}
        rows.append({"weights": label, "method": case.method, "gradients": case.gradients})
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file)
    return rows


def _read(result: dict[str, Any], file: Path, cases: Sequence[Case]) -> Submission:
    if "error" in result:
        return Submission(problem=result["error"])
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("output", "again", "training", "joined", "gradient")}
    for key, tensor in load_file(file).items():
        index, name, *rest = key.split(":")
        parts[name][rest[0] if rest else cases[int(index)].name] = tensor
    return Submission(
        missing=tuple(result["missing"]),
        extra={name: tuple(shape) for name, shape in result["extra"].items()},
        misshapen={name: (tuple(own), tuple(right)) for name, (own, right) in result["misshapen"].items()},
        outputs=parts["output"],
        again=parts["again"],
        training=parts["training"],
        joined=parts["joined"],
        gradients=parts["gradient"],
        learned=result.get("learned", {}),
        takes_layout=result["takes_layout"],
        errors={cases[int(index)].name: error for index, error in result["errors"].items()},
    )
