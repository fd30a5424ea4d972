"""What a run reports on disk: an append-only file of metrics, its samples, its speed."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from heddle.errors import HeddleError
from heddle.train.report import Report
from heddle.weights.files import WriteError, write_file

SPEED = "speed.json"
SPEEDS = "speed.jsonl"
SAMPLES = "samples.jsonl"


class Speed(NamedTuple):
    """The tokens that a run's steps have trained on, the seconds that they took, and how many of these they waited for data."""

    tokens: float = 0.0
    seconds: float = 0.0
    data_seconds: float = 0.0

    def after(self, report: Report) -> "Speed":
        """With what a report adds."""
        seconds, waited = (report.speed.get(name, 0.0) for name in ("seconds", "data_seconds"))
        tokens = seconds * report.speed.get("tokens_per_second", 0.0)
        return Speed(self.tokens + tokens, self.seconds + seconds, self.data_seconds + waited)


class Metrics:
    """`metrics.jsonl` in a run directory: one line per report, without wall times.

    Beside it, `speed.jsonl` has what depends on the machine, `speed.json` the `Speed` of all training steps up to the last `sync`,
    and `samples.jsonl` the texts that the model generated.

    Args:
        path: the file.
        keep: on opening, lines after this step are dropped; the resumed run writes them again, bit for bit.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.speed = read_speed(path.parent) if keep else Speed()
        earlier = [line for line in read_lines(path) if line["step"] <= keep]
        write_file(path, "".join(_line(line) for line in earlier).encode(), replace=True)
        self._file = path.open("a", encoding="utf-8")
        speeds = path.with_name(SPEEDS)
        earlier = [line for line in _whole_lines(speeds) if line["step"] <= keep]
        write_file(speeds, "".join(_line(line) for line in earlier).encode(), replace=True)
        self._speeds = speeds.open("a", encoding="utf-8")
        self._samples = path.with_name(SAMPLES)
        if self._samples.exists():
            samples = [sample for sample in read_samples(path.parent) if sample[0] <= keep]
            write_file(self._samples, "".join(_sample(*each) for each in samples).encode(), replace=True)

    def __call__(self, report: Report) -> None:
        """Write one line, and count the step's time.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        self.speed = self.speed.after(report)
        if report.speed:
            with self._reported():
                values = {name: float(f"{value:.6g}") for name, value in report.speed.items()}
                self._speeds.write(_line({"step": report.step, **values}))
                self._speeds.flush()
        if report.values:
            with self._reported():
                loads = {f"expert_load/{layer}": load for layer, load in report.loads.items()}
                self._file.write(_line({"step": report.step, **report.values, **loads}))
                self._file.flush()
        if report.sample is not None:
            with self._reported(), self._samples.open("a", encoding="utf-8") as file:
                file.write(_sample(report.step, report.sample))

    def sync(self) -> None:
        """Flush to disk, so that what was written survives a crash of the machine.

        Raises:
            WriteError: the disk is full or cannot be written.
        """
        with self._reported():
            os.fsync(self._file.fileno())
        speed = self.speed._replace(tokens=round(self.speed.tokens))._asdict()
        write_file(Path(self._file.name).with_name(SPEED), json.dumps(speed).encode(), replace=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(f"cannot write {self._file.name}: {error.strerror}; the checkpoints stay") from error

    def close(self) -> None:
        """Close the file. Errors of a full disk were raised when writing."""
        for file in (self._file, self._speeds):
            with suppress(OSError):
                file.close()


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


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are whole; it may have lost some in a crash."""
    lines = []
    with suppress(OSError):
        for text in path.read_bytes().split(b"\n")[:-1]:
            with suppress(ValueError, TypeError, KeyError):
                line = json.loads(text)
                lines.append({**line, "step": int(line["step"])})
    return lines


def read_samples(run: Path) -> list[tuple[int, str]]:
    """The texts that the model generated while training, each with its step; those of incomplete lines are skipped."""
    return [(line["step"], str(line["sample"])) for line in _whole_lines(run / SAMPLES) if "sample" in line]


def read_speed(run: Path) -> Speed:
    """The speed of a run's steps so far; zeros if that is not known."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        speed = json.loads((run / SPEED).read_bytes())
        return Speed(float(speed["tokens"]), float(speed["seconds"]), float(speed.get("data_seconds", 0.0)))
    return Speed()


def _sample(step: int, text: str) -> str:
    return _line({"step": step, "sample": text})


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values) + "\n"
