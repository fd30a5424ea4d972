"""How help texts are printed: lines break where the terminal ends, not where those of a docstring do."""

import re
from typing import Any

from cyclopts.help import DefaultFormatter
from rich.console import Console, ConsoleOptions
from rich.text import Text


class Reflowed(DefaultFormatter):
    """cyclopts' tables, with every paragraph as one line to wrap."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: Any) -> None:
        for entry in panel.entries:
            _reflow(entry.description)
        super().__call__(console, options, panel)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        _reflow(description)
        super().render_description(console, options, description)


def _reflow(description: Any) -> None:
    text = getattr(description, "primary_renderable", None)
    if isinstance(text, Text):
        text.plain = re.sub(r"(?<!\n)\n(?!\n)", " ", text.plain)
