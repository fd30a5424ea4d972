"""What a run reports: one event type, an append-only file of metrics, and any number of readers."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError
from heddle.weights.files import WriteError, write_file


@dataclass(frozen=True)
class Report:
    """The numbers of one step or of one evaluation.

    Attributes:
        step: optimizer steps done.
        steps: optimizer steps in all.
        values: written to `metrics.jsonl`: functions of config and data alone, so that two equal runs write equal files.
        speed: values that depend on the clock: tokens per second, share of the measured peak, seconds left.
        sample: text that the model generated, or None.
    """

    step: int
    steps: int
    values: Mapping[str, float]
    speed: Mapping[str, float]
    sample: str | None = None


class Metrics:
    """`metrics.jsonl` in a run directory: one line per report, without wall times.

    Args:
        path: the file.
        keep: on opening, lines after this step are dropped; the resumed run writes them again, bit for bit.
    """

    def __init__(self, path: Path, keep: int) -> None:
        kept = [line for line in read_lines(path) if line["step"] <= keep]
        write_file(path, "".join(_line(line) for line in kept).encode(), replace=True)
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, report: Report) -> None:
        """Write one line.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        if report.values:
            with self._reported():
                self._file.write(_line({"step": report.step, **report.values}))
                self._file.flush()

    def sync(self) -> None:
        """Flush to disk, so that what was written survives a crash of the machine.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        with self._reported():
            os.fsync(self._file.fileno())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(f"cannot write {self._file.name}: {error.strerror}; the checkpoints stay") from error

    def close(self) -> None:
        """Close the file. Errors of a full disk were raised when writing."""
        with suppress(OSError):
            self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; an incomplete last line, from a killed run, is skipped.

    Raises:
        HeddleError: another line is damaged.
    """
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            lines.append({**line, "step": int(line["step"])})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise HeddleError(
                f"{path}:{number}: damaged, not a line of metrics; fix that line or delete the file"
            ) from None
    return lines


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values) + "\n"
