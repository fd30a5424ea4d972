"""`heddle machine`: what is kept of this machine, shown and removed."""

from pathlib import Path

from heddle.native.measured import Measurements, measured_once

from .conftest import Heddle


def test_measurements_are_shown_and_removed(heddle: Heddle, new_machine: Path) -> None:
    assert "No measurements yet" in heddle("machine").out
    measured_once("speed-of-light", {"medium": "glass"}, lambda: 2.0e8, steady=True)
    measured_once(
        "speed-of-sound", {"medium": "air", "at": [20, "C"]}, lambda: {"dry": 343.2, "humid": 344.0}, steady=True
    )
    shown = heddle("machine").out
    assert all(words in shown for words in ("speed-of-light", "medium glass", "2e+08", "dry 343.2, humid 344"))
    report = heddle("machine", "--json").json
    assert report["folder"] == str(Measurements.for_device().folder)
    assert report["total_memory"] >= report["available_memory"] > 0
    assert [(row["question"], row["about"], row["answer"]) for row in report["measurements"]] == [
        ("speed-of-light", {"medium": "glass"}, 2.0e8),
        ("speed-of-sound", {"medium": "air", "at": [20, "C"]}, {"dry": 343.2, "humid": 344.0}),
    ]
    removed = heddle("machine", "--forget", "--json").json
    assert (removed["removed"], removed["measurements"]) == (2, [])
    assert measured_once("speed-of-light", {"medium": "glass"}, lambda: 1.0, steady=True) == 1.0
