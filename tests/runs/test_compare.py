"""Runs side by side, and their metrics in other programs' formats; csv, matplotlib and protobuf read what was written."""

import csv
import json
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.config.parallel import ParallelConfig
from heddle.errors import HeddleError
from heddle.runs import Trainer, compare_runs, plot_runs, runs_in, write_csv, write_events
from heddle.runs.compare import differences
from heddle.train.curves import smoothed
from heddle.weights.files import Hold
from heddle.weights.run import read_config
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")


def lines_of(rate: float) -> list[dict[str, Any]]:
    """Four steps, of which two are scored; the later score is the worse."""
    steps = [
        {"step": step, "loss": 4.0 - step * rate, "gradient_norm": 1.0 / step, "learning_rate": rate,
         "expert_load/decoder.0": [step, 4 - step]}
        for step in range(1, 5)
    ]  # fmt: skip
    for step, loss in ((4, 3.5), (2, 3.25)):
        steps.insert(step, {"step": step, "validation_loss": loss, "validation_error": 0.125, "bits_per_byte": 2.0})
    return steps


def write_lines(run: Path, lines: list[dict[str, Any]]) -> Path:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two directories with metrics alone."""
    return [write_lines(tmp_path / name, lines_of(rate)) for name, rate in (("slow", 0.25), ("fast", 0.5))]


def test_records_have_the_best_score_and_what_differs(begin: Begin, tmp_path: Path) -> None:
    slow, fast = (begin(name, learning_rate=rate) for name, rate in (("slow", 1e-3), ("fast", 2e-3)))
    deep = begin("deep", learning_rate=1e-3, model={"depth": 2})
    write_lines(slow, lines_of(0.25))
    (slow / "speed.json").write_text('{"tokens": 1000, "seconds": 8.0}')
    divided = read_config(fast).model_copy(update={"parallel": ParallelConfig(tensor=2)})
    (fast / "config.json").write_text(divided.to_json(), encoding="utf-8")
    one, two = compare_runs([slow, fast])
    assert (one["step"], one["steps"], one["state"]) == (4, 8, "begun")
    assert (one["validation_loss"], one["scored"]) == (3.5, "an estimate")
    assert (one["metrics"], one["bits_per_byte"], two["metrics"]) == ({"bits_per_byte": 2.0}, 2.0, None)
    assert (one["best_loss"], one["best_error"], one["best_step"]) == (3.25, 0.125, 2)
    assert (one["tokens_per_second"], one["seconds"]) == (125.0, 8.0)
    assert (two["best_loss"], two["seconds"]) == (None, None)
    assert one["differs"] == {"learning_rate": 1e-3, "parallel.tensor": 1}
    assert two["differs"] == {"learning_rate": 2e-3, "parallel.tensor": 2}
    assert {"decoder.depth"} == compare_runs([slow, deep])[1]["differs"].keys()
    assert compare_runs([slow])[0]["differs"] == {}
    assert runs_in(tmp_path) == [deep, fast, slow]
    assert runs_in(slow) == [slow]


def test_a_run_that_started_from_another_names_it(begin: Begin, tmp_path: Path) -> None:
    """As `from`, by its path and not as a table."""
    first = begin("first", steps=2)
    Trainer(first).run()
    second = begin("second", steps=2)
    table = read_config(second).to_dict()
    table["chosen"]["start"] = {"run": str(first), "sha256": "0" * 64}
    (second / "config.json").write_text(json.dumps(table))
    one, two = compare_runs([first, second])
    assert (one["differs"], two["differs"]) == ({"from": None}, {"from": str(first)})


def test_differences_are_of_values() -> None:
    assert differences([{"a": 1, "b": [1]}, {"a": 1.0, "b": [1]}, {"a": 1}]) == ["a", "b"]
    assert differences([{"a": 1}]) == differences([]) == []


def test_csv_has_every_number(pair: list[Path], tmp_path: Path) -> None:
    assert write_csv(pair, tmp_path / "all.csv") == 8
    with (tmp_path / "all.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["run"], row["step"]) for row in rows] == [
        (str(run), str(step)) for run in pair for step in range(1, 5)
    ]
    assert [float(row["loss"]) for row in rows] == [3.75, 3.5, 3.25, 3.0, 3.5, 3.0, 2.5, 2.0]
    assert [row["validation_loss"] for row in rows[:4]] == ["", "3.25", "", "3.5"]
    assert [row["expert_load/decoder.0/1"] for row in rows[:4]] == ["3", "2", "1", "0"]
    write_csv(pair[:1], tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 5


def events_in(folder: Path) -> dict[tuple[str, int], float]:
    """All values of the event files, read as TensorFlow documents the format: length, its checksum, the event, its checksum."""
    event = pytest.importorskip("tensorboardX.proto.event_pb2").Event
    events: dict[tuple[str, int], float] = {}
    for file in folder.iterdir():
        data, place = file.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            each = event.FromString(data[place + 12 : place + 12 + length])
            events |= {(value.tag, each.step): value.simple_value for value in each.summary.value}
            place += 16 + length
    return events


def test_event_files_have_every_number(pair: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    assert write_events(pair, tmp_path / "events") == 2 * (4 * 5 + 2 * 3)
    events = events_in(tmp_path / "events" / "slow")
    assert len(events) == 26
    assert [events["loss", step] for step in range(1, 5)] == [3.75, 3.5, 3.25, 3.0]
    assert (events["validation_loss", 2], events["expert_load/decoder.0/1", 3]) == (3.25, 1.0)
    with pytest.raises(HeddleError, match="slow already exists: remove it"):
        write_events(pair, tmp_path / "events")


def test_event_files_follow_a_run(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nobody trains it any more, and whatever a resumed run writes again is written once."""
    pytest.importorskip("tensorboardX")
    monkeypatch.setattr("heddle.runs.export.WAIT", 0.02)
    run, lines, hold = pair[0], lines_of(0.25), Hold(pair[0])
    (run / "metrics.jsonl").unlink()

    def train() -> None:
        for count in (0, 2, 4, 1, 4, 6):
            write_lines(run, lines[:count])
            time.sleep(0.1)
        hold.release()

    thread = threading.Thread(target=train)
    thread.start()
    count = write_events([run], tmp_path / "events", follow=True)
    thread.join()
    assert count == len(events_in(tmp_path / "events" / "slow")) == 26


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_plot_is_an_image(pair: list[Path], tmp_path: Path, suffix: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plot.{suffix}"
    plot_runs(pair, file)
    data = file.read_bytes()
    assert data.startswith(start)
    if suffix == "png":
        width, height = struct.unpack(">II", data[16:24])
        assert min(width, height) > 1000
        from matplotlib.image import imread

        assert imread(file).std() > 0.05  # something is drawn
    if suffix == "svg":
        assert b"</svg>" in data


def test_curves_have_the_numbers(pair: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = plot_runs(pair, tmp_path / "plot.svg")
    losses, rates, norms = figure.axes
    labels = [text.get_text() for text in losses.get_legend().get_texts()]
    names = [f"{name}, {part}" for part in ("training", "validation") for name in ("slow", "fast")]
    assert sorted(labels) == sorted(names)
    curves = {line.get_label(): line.get_xydata().tolist() for line in losses.lines}
    assert curves["slow, training"] == [[1, 3.75], [2, 3.5], [3, 3.25], [4, 3.0]]  # so short that nothing is smoothed
    (scored, *_), _ = losses.get_legend_handles_labels()[0][-2:], None
    assert [line.get_xydata().tolist() for line in scored.lines[:1]] == [[[2, 3.25], [4, 3.5]]]
    assert [line.get_ydata().tolist() for line in rates.lines] == [[0.25] * 4, [0.5] * 4]
    assert [line.get_ydata().tolist() for line in norms.lines] == [[1, 1 / 2, 1 / 3, 1 / 4]] * 2
    assert norms.get_yscale() == "log"
    assert all(axis.get_ylabel() for axis in figure.axes)
    assert norms.get_xlabel() == "step"
    shown = {(line.get_color(), line.get_marker()) for line in rates.lines}
    assert len({marker for _, marker in shown}) == 2  # told apart without colour


def test_smoothing_is_a_weighted_mean() -> None:
    """numpy computes the weights of every earlier value."""
    values = np.random.default_rng(0).normal(size=300).tolist()
    keep = 1 - 1 / 6
    averages = smoothed(values)
    for place in (0, 1, 17, 299):
        weights = keep ** np.arange(place, -1, -1)
        assert averages[place] == pytest.approx(float(np.average(values[: place + 1], weights=weights)))
    assert smoothed([]) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda runs, folder: write_csv(runs, folder / "x.csv"),
        lambda runs, folder: plot_runs(runs, folder / "x.png"),
        lambda runs, folder: write_events(runs, folder / "x"),
    ],
)
def test_a_run_without_metrics_is_named(tmp_path: Path, write: Callable[[list[Path], Path], object]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboardX")
    (tmp_path / "mute").mkdir()
    with pytest.raises(HeddleError, match="mute has no metrics yet"):
        write([tmp_path / "mute"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mute"]


def test_what_is_missing_is_one_line(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(HeddleError, match="plots need matplotlib: pip install"):
        plot_runs(pair, tmp_path / "x.png")
    with pytest.raises(HeddleError, match="event files need tensorboardX: pip install"):
        write_events(pair, tmp_path / "x")
    with pytest.raises(HeddleError, match=r"x\.gif: a plot ends in \.png, \.svg, \.pdf"):
        plot_runs(pair, tmp_path / "x.gif")


def test_a_reader_gets_what_is_written(begin: Begin) -> None:
    """The file of a real run holds what was reported, line by line."""
    reports: list[dict[str, Any]] = []
    run = begin(steps=2, evaluate_every=2)
    Trainer(run, [lambda report: reports.append({"step": report.step, **report.values})]).run()
    (record,) = compare_runs([run])
    assert record["state"] == "finished"
    assert record["best_loss"] == reports[-1]["validation_loss"]
    assert record["seconds"] > 0
