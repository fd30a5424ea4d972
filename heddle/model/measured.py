"""What was measured on this machine, kept on disk, so that a command decides the same each time, whatever else is running.

A measurement is a question, such as which library multiplies these matrices faster, with an answer. It is made once for a machine
(a processor, its number of cores and a version of torch), and kept as a file in the user's cache directory. Where it can be, it is
the processor time of one thread, which other programs do not change. What was measured while they had the cores is kept as such: it
serves as long as the machine is busy, and is then measured again.
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

from heddle.model.cores import LOOK, CPULoad, cores

Answer = TypeVar("Answer")

VERSION = 1  # of how things are measured; what another version measured is not used
VARIABLE = "HEDDLE_CACHE"  # names another directory than the user's cache


def directory() -> Path:
    """Where measurements are kept: `$HEDDLE_CACHE`, or `heddle` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "heddle"
    return Path(os.path.expanduser("~")) / ".cache" / "heddle"


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name and a digest of what it can do, or what Python knows of it."""
    try:
        lines = [line.split(":", 1) for line in info.read_text(errors="replace").splitlines() if ":" in line]
    except OSError:
        lines = []
    said = {name.strip(): value.strip() for name, value in reversed(lines)}  # of the first core
    name = said.get("model name") or said.get("CPU part") or platform.processor() or "processor"
    units = said.get("flags") or said.get("Features") or ""
    return f"{name}, {platform.machine()}, {sha256(units.encode()).hexdigest()[:8]}"


def machine(device: str = "cpu") -> dict[str, Any]:
    """What measurements hold for: this processor or accelerator, as many cores, this torch."""
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
        folder: where they are; it need not exist.
        machine: what they hold for.
    """

    folder: Path
    machine: Mapping[str, Any]

    @classmethod
    def here(cls, device: str = "cpu") -> "Measurements":
        """Those of this machine."""
        known = machine(device)
        return cls(directory() / f"machine-{_digest(known)}", known)

    def read(self, name: str) -> dict[str, Any] | None:
        """One of them: its question, what it was about, the answer, and whether the machine was busy. None: missing or damaged."""
        try:
            row: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return row if row["machine"] == self.machine and {"answer", "busy"} <= row.keys() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def all(self) -> list[dict[str, Any]]:
        """All of them, by their questions."""
        rows = (self.read(file.name) for file in sorted(self.folder.glob("*.json")))
        return [row for row in rows if row is not None]

    def keep(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Write one completely or not at all, and return the one to use: what another process has just written comes first.

        Where the directory cannot be written, nothing is kept, and it is measured again next time.
        """
        row, goal = {"machine": dict(self.machine), **row}, self.folder / name
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            number, partial = tempfile.mkstemp(dir=self.folder, prefix=".", suffix=".partial")
            try:
                with open(number, "w", encoding="utf-8") as file:
                    json.dump(row, file, indent=1)
                there = self.read(name)
                if there is None or there["busy"]:
                    os.replace(partial, goal)
                else:
                    row = there
            finally:
                Path(partial).unlink(missing_ok=True)
        return row

    def forget(self) -> int:
        """Remove all of them, so that everything is measured anew; returns how many there were.

        Raises:
            OSError: one cannot be removed.
        """
        files = [*self.folder.glob("*.json"), *self.folder.glob(".*.partial")]
        for file in files:
            file.unlink(missing_ok=True)
        return sum(file.suffix == ".json" for file in files)


def measured_once(
    question: str, about: Mapping[str, Any], measure: Callable[[], Answer], device: str = "cpu", steady: bool = False
) -> Answer:
    """The answer that is kept for this machine or, if there is none, the one that `measure` gives, which is then kept.

    Args:
        question: what is measured, in a word or a few with hyphens.
        about: what it is measured of; plain data.
        measure: measures it; its answer is plain data, which for a tuple comes back as a list.
        device: the type of the device that it is measured on.
        steady: whether other programs cannot change the answer, because it compares the processor time of one thread. Other
            answers hold for as many threads as there are now.
    """
    kept = Measurements.here(device)
    about = dict(about) if steady else {**about, "threads": torch.get_num_threads()}
    name = f"{question}-{_digest(about)}.json"
    row = kept.read(name)
    if row is None or (row["busy"] and not is_busy()):
        before = CPULoad.read()
        answer = measure()
        busy = not steady and _since(before)
        row = kept.keep(name, {"question": question, "about": about, "answer": answer, "busy": busy})
    found: Answer = row["answer"]
    return found


def is_busy() -> bool:
    """Whether other programs have the cores now."""
    return _since(CPULoad.read())


def _since(before: CPULoad) -> bool:
    """Whether other programs have had the cores since then, by watching long enough."""
    time.sleep(max(0.0, before.now + LOOK / 2 - time.perf_counter()))
    return CPULoad.read().busy(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside the `with` block this thread computes alone, so that `time.thread_time` counts all that an operation takes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _digest(data: Mapping[str, Any]) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
