"""Renders a report as rich tables; rich is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heddle.account.report import Accounts
from heddle.account.tables import Table, contents
from heddle.checks import checked

if TYPE_CHECKING:
    from rich.console import RenderableType


@checked()
def render(report: Accounts, full: bool = False) -> list[RenderableType]:
    """Tables and lines to print, in reading order.

    Args:
        full: render every table and every layer, instead of the main tables with equal layers as one line.
    """
    return [part if isinstance(part, str) else _rich(part) for part in contents(report, full)]


def _rich(content: Table) -> RenderableType:
    from rich.table import Table as RichTable

    table = RichTable(title=content.title, title_justify="left", title_style="bold")
    for number, column in enumerate(content.columns):
        text = number == 0 or column == "formula"
        table.add_column(column, justify="left" if text else "right")
    for row in content.rows:
        table.add_row(*row)
    return table
