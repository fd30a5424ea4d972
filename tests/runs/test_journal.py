"""The files of metrics: what a resumed run keeps, and what a crash may leave."""

import json
from pathlib import Path

from heddle.runs.journal import Metrics
from heddle.train import Report


def test_a_resumed_run_keeps_the_speed_of_the_steps_before_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    speeds = path.with_name("speed.jsonl")

    def report(step: int) -> Report:
        return Report(step, 9, {"loss": 1.0}, {"seconds": 0.123456789, "tokens_per_second": 1e5, "memory": 2**30})

    metrics = Metrics(path, keep=0)
    for step in (1, 2, 3):
        metrics(report(step))
    metrics.close()
    speeds.write_text(speeds.read_text() + '{"step": 4, "sec')  # the machine crashed
    metrics = Metrics(path, keep=2)
    metrics(report(3))
    metrics.close()
    rows = [json.loads(line) for line in speeds.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0] == {"step": 1, "seconds": 0.123457, "tokens_per_second": 1e5, "memory": 1.07374e9}
    assert "seconds" not in path.read_text()
