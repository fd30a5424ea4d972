"""A run that is killed at any moment and resumed ends like one that was not."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_killed_run_loses_nothing() -> None:
    """One kill, inside a save of a process from the command line; `tests/prove/test_kills.py` has others.

    `python benchmarks/kills.py` does the same with twenty and more.
    """
    call = [sys.executable, "benchmarks/kills.py", "--kills", "1", "--inside", "1", "--commands", "1", "--seed", "4"]
    call.append("--json")
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["differences"] == {}
    assert len(result["kills"]) == 1
    assert [kill["during"] for kill in result["kills"]].count("save") == result["inside_saves"] >= 1
    assert [kill["started"] for kill in result["kills"]].count("command") == 1
    assert result["runs"] >= 1
