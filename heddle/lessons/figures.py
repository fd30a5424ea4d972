"""Figures of the lessons, of numbers that a cell has computed: grids of numbers and curves, as SVG for light and dark pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, isfinite, log2

import torch
from jaxtyping import Float
from torch import Tensor

POSITIVE, NEGATIVE = "#3584e4", "#e66100"  # seen on white and on black, behind text of either colour
STRONGEST = 0.65  # opacity of the largest number's cell
FEW = 8  # most columns whose cells have their numbers in them
CELL, DOT = (46, 28), (5, 14)  # a cell with its number, at least, and one without
PLOT_WIDTH, PLOT_HEIGHT = 320, 180
LEFT, RIGHT, BOTTOM, LINE = 52, 24, 40, 17  # room around a plot, and a line of text above it
DASHES = ("", "7 4", "2 3")


@dataclass(frozen=True)
class Figure:
    """Pictures side by side: title, text for those who do not see it, and SVG."""

    parts: tuple[tuple[str, str, str], ...]

    def __repr__(self) -> str:
        return "\n".join(f"{title}: {words}" for title, words, _ in self.parts)

    def _repr_html_(self) -> str:
        return "".join(
            f'<figure style="display:inline-block;margin:0 1.5em 0.5em 0"><figcaption>{escape(title)}</figcaption>'
            f"{svg}</figure>"
            for title, _, svg in self.parts
        )


def grids(matrices: Mapping[str, Float[Tensor, "R C"]], rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Matrices of one shape as grids: the larger a number, the stronger its colour; negative ones are orange.

    A matrix of whole numbers has no decimals.

    Args:
        matrices: by their titles.
        rows: the names of the rows.
        columns: the names of the columns.
    """
    parts = []
    for title, matrix in matrices.items():
        numbers = matrix.tolist()
        places = 0 if torch.equal(matrix, matrix.round()) else 2
        words = _words(numbers, rows, places) if len(columns) <= FEW else f"{len(rows)} × {len(columns)} numbers"
        parts.append((title, words, _grid(f"{title}: {words}", numbers, rows, columns, places)))
    return Figure(tuple(parts))


def curves(
    title: str, x: Sequence[float], named: Mapping[str, Sequence[float]], along: str, log: bool = False
) -> Figure:
    """Curves over one axis, with their names above.

    Args:
        title: what the y axis shows.
        x: places, in increasing order.
        named: the numbers at these places, by the curve's name.
        along: what the x axis shows.
        log: whether each doubling of x is as wide as the one before.
    """
    place = log2 if log else float
    low, high = place(x[0]), place(x[-1])
    bottom = min(0.0, *(min(y) for y in named.values()))
    top = max(max(y) for y in named.values())
    above = LINE * len(named) + 8
    below = above + PLOT_HEIGHT

    def point(at: float, y: float) -> tuple[float, float]:
        share = (place(at) - low) / (high - low)
        return LEFT + PLOT_WIDTH * share, above + PLOT_HEIGHT * (top - y) / (top - bottom)

    lines = [f'<path d="M{LEFT} {above}v{PLOT_HEIGHT}h{PLOT_WIDTH}" fill="none" stroke="currentColor"/>']
    for tick in (x[0], x[len(x) // 2], x[-1]):
        lines.append(_text(point(tick, 0)[0], below + 16, _tick(tick)))
    lines.append(_text(LEFT + PLOT_WIDTH / 2, below + 34, along))
    for tick in dict.fromkeys((bottom, 0.0, top)):
        lines.append(_text(LEFT - 6, point(x[0], tick)[1] + 4, _tick(tick), "end"))
    for number, (name, values) in enumerate(named.items()):
        dashes = f'stroke-dasharray="{DASHES[number % len(DASHES)]}"'
        y = LINE * number + 8
        lines.append(_line([(LEFT, y), (LEFT + 28, y)], dashes))
        lines.append(_text(LEFT + 34, y + 4, name, "start"))
        lines.append(_line([point(at, y) for at, y in zip(x, values, strict=True)], dashes))
    words = "; ".join(
        f"{name} from {_tick(values[0])} at {_tick(x[0])} to {_tick(values[-1])} at {_tick(x[-1])}"
        for name, values in named.items()
    )
    picture = _svg((LEFT + PLOT_WIDTH + RIGHT, below + BOTTOM), f"{title}: {words}", lines)
    return Figure(((title, words, picture),))


def _grid(words: str, numbers: list[list[float]], rows: Sequence[str], columns: Sequence[str], places: int) -> str:
    largest = max((abs(number) for row in numbers for number in row if isfinite(number)), default=0.0) or 1.0
    is_read = len(columns) <= FEW
    side, height = (max(CELL[0], *(7 * len(name) + 8 for name in columns)), CELL[1]) if is_read else DOT
    left = 7 * max(map(len, rows)) + 10
    lines = []
    for column, name in enumerate(columns):
        if is_read or column in (0, len(columns) - 1):
            lines.append(_text(left + side * (column + 0.5), 14, name))
    for row, (name, values) in enumerate(zip(rows, numbers, strict=True)):
        y = 22 + row * height
        lines.append(_text(left - 6, y + height / 2 + 4, name, "end"))
        for column, number in enumerate(values):
            x = left + side * column
            strength = STRONGEST * abs(number) / largest if isfinite(number) else 0
            colour = POSITIVE if number > 0 else NEGATIVE
            lines.append(
                f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{height}" fill="{colour}" fill-opacity="{strength:.2f}" '
                f'stroke="currentColor" stroke-opacity="{0.25 if is_read else 0}"/>'
            )
            if is_read:
                lines.append(_text(x + side / 2, y + height / 2 + 4, _number(number, places)))
    return _svg((left + side * len(columns) + 10, 24 + height * len(rows)), words, lines)


def _line(points: Sequence[tuple[float, float]], dashes: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{POSITIVE}" stroke-width="2" {dashes}/>'


def _words(numbers: list[list[float]], rows: Sequence[str], places: int) -> str:
    written = ([_number(number, places) for number in row] for row in numbers)
    return "; ".join(f"{name} {' '.join(row)}" for name, row in zip(rows, written, strict=True))


def _number(number: float, places: int) -> str:
    return "−∞" if number == -inf else f"{number:.{places}f}".replace("-", "−")


def _tick(number: float) -> str:
    return (f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}").replace("-", "−")


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(size: tuple[float, float], words: str, lines: Sequence[str]) -> str:
    """Text has the colour of the page."""
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="{escape(words)}" style="max-width:100%;height:auto" font-family="sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(lines)}</svg>'
    )
