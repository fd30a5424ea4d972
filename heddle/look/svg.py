"""Architecture diagrams as SVG: boxes in columns, skip connections into ⊕, arrows from the encoder to cross-attention."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.look.drawing import Box, Column, Drawing

PLUS = "⊕"  # the label of an addition
WIDTH, BOX, HEIGHT, GAP, SIDE, TOP = 360, 276, 44, 22, 42, 64
MAX_LABEL = 34  # characters that fit into a box
STYLE = (
    "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1b1c1e}.label{font-weight:600}.soft{fill:#55595f;font-size:11px}"
    ".box rect{fill:#eaf1fb;stroke:#1a5fb4}.norm rect{fill:#fdf3d7;stroke:#8a6d00}.plus circle{fill:#fff;stroke:#1b1c1e}"
    ".text rect{fill:#fff;stroke:none}.frame{fill:none;stroke:#8a8f94;stroke-dasharray:5 4}.edge{fill:none;stroke:#1b1c1e}"
    ".skip{fill:none;stroke:#c64600;stroke-width:1.6}.box:focus rect{stroke-width:3}"
)


def render(drawing: Drawing) -> str:
    """A drawing as a self-contained SVG file, see `heddle.look.to_svg`."""
    parts, positions, bottom = list[str](), dict[str, tuple[float, float]](), 0.0
    for number, column in enumerate(drawing.columns):
        bottom = max(bottom, _draw_column(column, number * WIDTH, positions, parts))
    parts += _cross_attention_arrows(drawing, positions)
    width, height = WIDTH * len(drawing.columns), bottom + 30
    title = escape(f"{drawing.title}: {drawing.parameters:,} parameters")
    header = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>{STYLE}</style>"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z"/></marker></defs><rect width="{width}" height="{height:g}" fill="#fff"/>'
    )
    return header + _heading(title, width) + "".join(parts) + "</svg>"


def _heading(title: str, width: int) -> str:
    """The title, wrapped to the width."""
    words, lines = title.split(" "), [""]
    for word in words:
        if len(lines[-1]) + len(word) > width / 7.2:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return "".join(f'<text x="12" y="{18 + 15 * number}">{line}</text>' for number, line in enumerate(lines[:3]))


def _draw_column(column: Column, left: float, positions: dict[str, tuple[float, float]], parts: list[str]) -> float:
    """Draw a stack from top to bottom; return its bottom y."""
    y, previous = float(TOP), None
    for box in column.before:
        previous, y = _draw_box(box, left, y, previous, positions, parts)
    for group in column.layers:
        start = y - GAP / 2 + 4
        for box in group.boxes:
            previous, y = _draw_box(box, left, y, previous, positions, parts)
        last = group.first + group.count - 1
        label = f"layer {group.first}" if group.count == 1 else f"layers {group.first} to {last}: × {group.count}"
        x, end = left + 8, y - GAP / 2 + 10
        parts.append(
            f'<rect class="frame" x="{x:g}" y="{start:g}" width="{WIDTH - 16}" height="{end - start:g}" rx="8"/>'
        )
        parts.append(f'<text class="soft" x="{left + WIDTH - 14:g}" y="{end - 6:g}" text-anchor="end">{label}</text>')
        y += GAP
    for box in column.after:
        previous, y = _draw_box(box, left, y, previous, positions, parts)
    return y


def _draw_box(
    box: Box,
    left: float,
    y: float,
    previous: str | None,
    positions: dict[str, tuple[float, float]],
    parts: list[str],
) -> tuple[str, float]:
    """Draw a box and the arrows into it; return its name and the y of the next box."""
    x = left + SIDE
    middle = x + BOX / 2
    height = 26 if box.label == PLUS else 30 if not box.shape and not box.parameters else HEIGHT
    if previous is not None and box.reads is None:
        parts.append(f'<path class="edge" marker-end="url(#tip)" d="M{middle:g} {positions[previous][1]:g}V{y:g}"/>')
    for source, side in ((box.reads, 1), (box.adds, -1)):
        if source is not None:
            parts.append(_side_arrow(positions[source][1], y, height, middle, side, box.label == PLUS))
    positions[box.name] = (y, y + height)
    details = [box.label, box.shape, f"{box.parameters:,} parameters" if box.parameters else "", box.formula, box.row]
    title = escape("; ".join(part for part in details if part))
    kind = (
        "plus"
        if box.label == PLUS
        else "norm"
        if "Norm" in box.label
        else "box"
        if box.shape or box.parameters
        else "text"
    )
    group = (
        f'<g class="{kind} box" data-box="{escape(box.name)}" tabindex="0" role="img" aria-label="{title}">'
        f"<title>{title}</title>"
    )
    if box.label == PLUS:
        shape = f'<circle cx="{middle:g}" cy="{y + 13:g}" r="13"/><path class="edge" d="M{middle - 8:g} {y + 13:g}h16m-8 -8v16"/>'
        parts.append(f"{group}{shape}</g>")
        return box.name, y + height + GAP
    label = box.label if len(box.label) <= MAX_LABEL else box.label[: MAX_LABEL - 1] + "…"
    letters, _, sizes = box.shape.partition(" = ")  # the letters are in the title
    sizes += " tokens" if letters == "T" else ""
    caption = " · ".join(part for part in (sizes, f"{box.parameters:,} parameters" if box.parameters else "") if part)
    text = f'<text class="label" x="{middle:g}" y="{y + (18 if caption else 19):g}" text-anchor="middle">{escape(label)}</text>'
    if caption:
        text += f'<text class="soft" x="{middle:g}" y="{y + 35:g}" text-anchor="middle">{escape(caption)}</text>'
    parts.append(f'{group}<rect x="{x:g}" y="{y:g}" width="{BOX}" height="{height}" rx="5"/>{text}</g>')
    return box.name, y + height + GAP


def _side_arrow(source: float, y: float, height: float, middle: float, side: int, plus: bool) -> str:
    """An arrow around the side from one box to a later one: skips on the left, other inputs on the right."""
    side_x = middle + side * (BOX / 2 + 22)
    start_y = source + 6
    end_y, end_x = y + height / 2, middle + side * (13 if plus else BOX / 2)
    kind = "skip" if side < 0 else "edge"
    return f'<path class="{kind}" marker-end="url(#tip)" d="M{middle:g} {start_y:g}H{side_x:g}V{end_y:g}H{end_x:g}"/>'


def _cross_attention_arrows(drawing: Drawing, positions: dict[str, tuple[float, float]]) -> list[str]:
    """Arrows from the encoder's output to cross-attention."""
    if len(drawing.columns) < 2:
        return []
    encoder, decoder = drawing.columns
    last_box = encoder.after[-1].name if encoder.after else encoder.layers[-1].boxes[-1].name
    source = positions[last_box]
    start_x, turn_x = SIDE + BOX, WIDTH - 3
    arrows = []
    for group in decoder.layers:
        for box in group.boxes:
            if box.name.endswith(".cross"):
                y = sum(positions[box.name]) / 2
                path = f"M{start_x:g} {sum(source) / 2:g}H{turn_x}V{y:g}H{WIDTH + SIDE:g}"
                arrows.append(f'<path class="edge" marker-end="url(#tip)" d="{path}"/>')
    return arrows
