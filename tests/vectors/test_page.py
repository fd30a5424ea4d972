"""The code of docs/vectors.md runs."""

import re
import sys
from pathlib import Path

from tests import programs

PAGE = Path(__file__).parents[2] / "docs" / "vectors.md"


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    done = programs.finished([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "7"
