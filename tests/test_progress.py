"""Progress of long work: when it speaks, where, and how much time it says is left."""

import io
import time

import pytest
from rich.console import Console

from heddle.progress import LiveLine, Pace, TimeLeft, counting


def set_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that everything here reads."""
    clock = [0.0]
    monkeypatch.setattr("heddle.progress.time.monotonic", lambda: clock[0])
    return clock


def test_a_rate_comes_after_two_seconds_and_then_every_five(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, lines = set_clock(monkeypatch), list[tuple[float, str]]()
    pace, silent = Pace(lambda line: lines.append((clock[0], line))), Pace(None)
    for done in range(13):
        clock[0] = done
        for each in (pace, silent):
            each.report(10 * done, lambda rate: f"{rate:.0f} words/s")
    assert lines == [(2, "10 words/s"), (7, "10 words/s"), (12, "10 words/s")]


def test_a_count_is_told_beside_one_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.progress.EVERY", 0.001)
    lines: list[str] = []
    with counting(lines.append, lambda done: f"{done} of 9") as update:
        update(3, 9)
        while not lines or not lines[-1].startswith("3 of 9"):
            time.sleep(0.001)
    last = len(lines)
    time.sleep(0.01)
    assert len(lines) == last


def test_a_log_gets_a_line_when_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none soon after a line that stays."""
    clock, stream = set_clock(monkeypatch), io.StringIO()
    with LiveLine(Console(file=stream), 2, 10) as line:
        for second in range(30):
            clock[0] = second
            line.update(f"[{second}]")
            if second == 13:
                line.print("[/stays]")
    assert stream.getvalue().split() == ["[2]", "[12]", "[/stays]", "[23]"]


def test_a_terminal_shows_the_newest_line_and_keeps_none() -> None:
    stream = io.StringIO()
    with LiveLine(Console(file=stream, force_terminal=True, width=40, highlight=False), 100, 100) as line:
        line.update("[1]")
        line.update("[2]")
        line.print("[/stays]")
        assert line.live is not None
        assert line.live.get_renderable().plain == "[2]"
    assert not line.live.is_started
    assert "[/stays]" in stream.getvalue()


def test_a_notebook_without_widgets_gets_lines_like_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = set_clock(monkeypatch)
    monkeypatch.setattr("heddle.progress.find_spec", lambda name: None)
    with LiveLine(Console(file=io.StringIO(), force_jupyter=True), 2, 10) as line:
        lines: list[str] = []
        monkeypatch.setattr(line.console, "print", lambda text, **options: lines.append(text))
        for second in range(15):
            clock[0] = second
            line.update(f"[{second}]")
        assert line.live is None
    assert lines == ["[2]", "[12]"]


def test_the_time_left_does_not_count_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may compile for a minute."""
    clock = [0.0]
    monkeypatch.setattr("heddle.progress.time.monotonic", lambda: clock[0])
    time_left, left = TimeLeft(10), []
    for step, took in ((11, 60.0), (12, 2.0), (13, 4.0)):
        clock[0] += took
        left.append(time_left.after(step, 20, took))
    assert left == [None, 2.0 * 8, 3.0 * 7]


def test_the_time_left_counts_pauses_and_no_step_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of another shape compile later, too: here the third, for a minute; an evaluation takes 10 s in 5 steps."""
    clock, left = [0.0], 0.0
    monkeypatch.setattr("heddle.progress.time.monotonic", lambda: clock[0])
    time_left = TimeLeft()
    for step, took, pause in ((1, 60.0, 0), (2, 2.0, 0), (3, 60.0, 0), (4, 2.0, 10), (5, 2.0, 0), (6, 2.0, 0)):
        clock[0] += took + pause
        left = time_left.after(step, 16, took) or 0.0
    assert left == (2.0 + 10 / 5) * 10
