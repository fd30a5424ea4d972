"""A cache of measurements on disk, so that a command decides the same each time, whatever else runs.

A measurement is a question, such as which library multiplies these matrices faster, with an answer. It is made once for a machine
(a processor, its number of cores and a version of torch), and stored as a file in the user's cache directory. If possible, it is
the processor time of one thread, which other programs do not affect. Measurements made while other programs used the cores are
marked: they are used as long as the machine is busy, and then repeated.
"""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from heddle.native.cores import LOOK, CPULoad, cores

Answer = TypeVar("Answer")

VERSION = 1  # of the procedures; measurements of other versions are not used
VARIABLE = "HEDDLE_CACHE"  # sets the directory instead of the user's cache


def directory() -> Path:
    """The directory of measurements: `$HEDDLE_CACHE`, or `heddle` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "heddle"
    return Path(os.path.expanduser("~")) / ".cache" / "heddle"


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name with a digest of its feature flags, or its name from Python."""
    try:
        lines = [line.split(":", 1) for line in info.read_text(errors="replace").splitlines() if ":" in line]
    except OSError:
        lines = []
    fields = {name.strip(): value.strip() for name, value in reversed(lines)}  # of the first core
    name = fields.get("model name") or fields.get("CPU part") or platform.processor() or "processor"
    units = fields.get("flags") or fields.get("Features") or ""
    return f"{name}, {platform.machine()}, {sha256(units.encode()).hexdigest()[:8]}"


def machine(device: str = "cpu") -> dict[str, Any]:
    """The properties that measurements depend on: processor or accelerator, number of cores, version of torch."""
    return {
        "version": VERSION,
        "processor": processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


@dataclass(frozen=True)
class Measurements:
    """The measurements of one machine, a file for each.

    Attributes:
        folder: their directory; it need not exist.
        machine: the properties of the machine.
    """

    folder: Path
    machine: Mapping[str, Any]

    @classmethod
    def for_device(cls, device: str = "cpu") -> "Measurements":
        """The measurements of this machine."""
        properties = machine(device)
        return cls(directory() / f"machine-{_digest(properties)}", properties)

    @property
    def steps(self) -> Path:
        """The directory of compiled parts of decoding steps (see `heddle.model.packages`)."""
        return self.folder / "steps"

    def read(self, name: str) -> dict[str, Any] | None:
        """One measurement: question, properties, answer, and whether the machine was busy. None if it is missing or damaged."""
        try:
            row: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return row if row["machine"] == self.machine and {"answer", "busy"} <= row.keys() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def all(self) -> list[dict[str, Any]]:
        """All measurements, sorted by question."""
        rows = (self.read(file.name) for file in sorted(self.folder.glob("*.json")))
        return [row for row in rows if row is not None]

    def store(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Write one atomically, and return the one to use: that of another process if it has just written one.

        If the directory is not writable, nothing is stored, and the next call measures again.
        """
        row, target = {"machine": dict(self.machine), **row}, self.folder / name
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            number, partial = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".partial")
            try:
                with open(number, "w", encoding="utf-8") as file:
                    json.dump(row, file, indent=1)
                existing = self.read(name)
                if existing is None or existing["busy"]:
                    os.replace(partial, target)
                else:
                    row = existing
            finally:
                Path(partial).unlink(missing_ok=True)
        return row

    def forget(self) -> int:
        """Remove all measurements and compiled steps, so that they are made again; returns the number of measurements.

        Raises:
            OSError: a file cannot be removed.
        """
        files = [*self.folder.glob("*.json"), *self.folder.glob(".*.partial"), *self.steps.glob("*.*")]
        for file in files:
            file.unlink(missing_ok=True)
        return sum(file.suffix == ".json" for file in files)


def measured_once(
    question: str, about: Mapping[str, Any], measure: Callable[[], Answer], device: str = "cpu", steady: bool = False
) -> Answer:
    """The stored answer for this machine; if there is none, call `measure` and store its answer.

    Args:
        question: the name of the measurement, with hyphens.
        about: its subject, as plain data.
        measure: returns the answer, as plain data; a tuple is read back as a list.
        device: the type of the device.
        steady: whether other programs cannot affect the answer, because it compares the processor time of one thread. Other
            answers depend on the number of threads.
    """
    measurements = Measurements.for_device(device)
    about = dict(about) if steady else {**about, "threads": torch.get_num_threads()}
    name = f"{question}-{_digest(about)}.json"
    row = measurements.read(name)
    if row is None or (row["busy"] and not is_busy()):
        before = CPULoad.read()
        answer = measure()
        busy = not steady and _since(before)
        row = measurements.store(name, {"question": question, "about": about, "answer": answer, "busy": busy})
    result: Answer = row["answer"]
    return result


def is_busy() -> bool:
    """Whether other programs are using the cores now."""
    return _since(CPULoad.read())


def _since(before: CPULoad) -> bool:
    """Whether other programs have used the cores since then; wait until the reading is long enough."""
    time.sleep(max(0.0, before.now + LOOK / 2 - time.perf_counter()))
    return CPULoad.read().busy(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on this thread only, so that `time.thread_time` counts the full cost of an operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
