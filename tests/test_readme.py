"""What the README promises runs as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.cli.main import make_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_code_of_the_readme_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 11
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", done.stdout).groups())
    assert last < first / 3
    assert " lifts the threads it owns." in done.stdout
    assert (tmp_path / "runs/first/model.safetensors").is_file()


def test_every_command_of_the_readme_exists() -> None:
    known = {name for name in make_app() if not name.startswith("-")}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    shell = "".join(body for language, body in blocks if not language)
    named = set(re.findall(r"^heddle (\w+)", shell, re.MULTILINE))
    assert named
    assert named <= known
    assert known <= named, "a command that the README does not show"


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/benchmarks.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    file = ROOT / page
    for link in re.findall(r"\]\(([^)#:]+)\)", file.read_text(encoding="utf-8")):
        assert (file.parent / link).exists(), f"{page} links to {link}"
