"""The numbers on the front page, counted when the site is built."""

import re
from collections.abc import Mapping
from pathlib import Path

from heddle.config import preset_names
from tests.planting import collect

SETTLED = re.compile(r"^(\d+) rows are settled", re.MULTILINE)


def numbers(docs: Path, seconds: Mapping[str, float]) -> dict[str, str]:
    """Rows of the lectures that tests settle, planted faults, presets, and the slowest lesson.

    Args:
        docs: the folder of the pages.
        seconds: how long each notebook took.
    """
    page = next(path for path in docs.rglob("lectures.md") if "_build" not in path.parts)
    settled = SETTLED.search(page.read_text(encoding="utf-8"))
    assert settled is not None, page
    lessons = [time for name, time in seconds.items() if name.startswith("lessons/")]
    return {
        "settled": settled.group(1),
        "planted": f"{len(collect()):,}",
        "presets": str(len(preset_names())),
        "slowest": f"**{max(lessons):.0f} s** for the slowest lesson, on one core" if lessons else "",
    }
