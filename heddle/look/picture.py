"""Matplotlib figures: attention maps, the logit lens, head scores."""

import io
import warnings
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.look.attention import AttentionPass
from heddle.look.heads import FIELDS, HeadScores
from heddle.look.lens import Lens
from heddle.look.texts import Text
from heddle.look.thumbnails import MASKED
from heddle.weights.files import write_file

FORMATS = ("png", "svg", "pdf")
MAX_LABELS = 64  # most tokens with labels of their own
MAX_TOKENS = 2048  # of an attention map


def attention_figure(attention: Mapping[str, AttentionPass], text: Text, heads: Sequence[int] | None = None) -> Any:
    """Draw attention maps of some layers and heads (L1-28, L1-36); return matplotlib's `Figure`.

    Rows are queries and columns are keys; darker is larger. Masked pairs have a color of their own (L1-29, L1-40).

    Args:
        attention: layers by name, from `trace(..., attention=...)`.
        text: the input.
        heads: which heads; None: all.

    Raises:
        HeddleError: matplotlib is not installed, a head is out of range, or the text is too long.
    """
    Figure = _figure_class()
    for name, layer in attention.items():
        if max(layer.queries, layer.keys) > MAX_TOKENS:
            raise HeddleError(
                f"{name} has {layer.queries} × {layer.keys} weights; a figure shows at most {MAX_TOKENS} tokens"
            )
    cells = [(name, head) for name, layer in attention.items() for head in (heads or range(layer.heads))]
    columns = (
        min(len(cells), 4)
        if len(attention) == 1
        else max(len(heads or range(layer.heads)) for layer in attention.values())
    )
    rows, size = ceil(len(cells) / columns), _inches(attention, len(cells))
    figure = Figure(figsize=(size * columns + 0.5, size * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, (name, head) in zip(axes, cells, strict=False):
        draw_map(axis, attention[name], head, *labels(name, text), few=len(cells) <= 4)
        axis.set_title(f"{name}, head {head}", fontsize=9 if len(cells) <= 4 else 6)
    for axis in axes[len(cells) :]:
        axis.set_axis_off()
    return figure


def draw_map(
    axes: Any, attention: AttentionPass, head: int, rows: Sequence[str], columns: Sequence[str], few: bool = True
) -> None:
    """Draw one head's map on matplotlib axes."""
    weights = attention.weights(heads=head)[0, 0].float().cpu().numpy()
    allowed = attention.allowed()[0, 0].expand(weights.shape).cpu().numpy()
    masked = np.ma.masked_array(weights, ~allowed)
    colormap = _colormap()
    axes.imshow(masked, cmap=colormap, vmin=0, vmax=1, interpolation="nearest", aspect="auto" if not few else "equal")
    if few and max(weights.shape) <= MAX_LABELS:
        axes.set_xticks(range(len(columns)), [_tick_label(piece) for piece in columns], rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), [_tick_label(piece) for piece in rows], fontsize=7)
        axes.set_ylabel("these tokens attend to", fontsize=8)
        axes.set_xlabel("these tokens are attended to", fontsize=8)
    elif not few:
        axes.set_xticks([])
        axes.set_yticks([])


def lens_figure(lens: Lens, text: Text, name: Any) -> Any:
    """Draw the most probable token by layer and position; darker is more probable. Return matplotlib's `Figure`.

    Args:
        lens: from `heddle.look.lens`.
        text: the input.
        name: maps an id to its text.

    Raises:
        HeddleError: matplotlib is not installed, or the text is too long.
    """
    Figure = _figure_class()
    places, length = lens.entropy.shape
    if length > MAX_LABELS:
        raise HeddleError(f"the text has {length} tokens; a lens figure shows at most {MAX_LABELS}")
    figure = Figure(figsize=(max(4, 0.75 * length + 1), max(2, 0.32 * places + 1)), layout="constrained")
    axes = figure.subplots()
    probabilities = lens.probabilities[..., 0].float().cpu().numpy()
    image = axes.imshow(probabilities, cmap=_colormap("Blues"), vmin=0, vmax=1, aspect="auto")
    for row, line in enumerate(lens.table(name)):
        for column, piece in enumerate(line):
            colour = "white" if probabilities[row, column] > 0.6 else "black"
            axes.text(column, row, _tick_label(piece), ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(length), [_tick_label(piece) for piece in text.pieces], rotation=90, fontsize=7)
    axes.set_yticks(range(places), lens.places, fontsize=7)
    axes.set_ylabel("after layer")
    axes.set_xlabel("input so far")
    figure.colorbar(image, label="probability of the token")
    return figure


def heads_figure(scores: Mapping[str, HeadScores]) -> Any:
    """Draw the scores of all heads as heat maps, a panel per score. Return matplotlib's `Figure`.

    Raises:
        HeddleError: matplotlib is not installed.
    """
    Figure = _figure_class()
    field_names = [name for name in FIELDS if name != "asymmetry"]
    figure = Figure(figsize=(2.2 * len(field_names) / 2, 1.6 + 0.5 * len(scores)), layout="constrained")
    heads = max(len(layer_scores.entropy) for layer_scores in scores.values())
    for axes, name in zip(
        figure.subplots(2, ceil(len(field_names) / 2), squeeze=False).flatten(), field_names, strict=False
    ):
        table: npt.NDArray[np.float32] = np.full((len(scores), heads), np.nan, np.float32)
        for row, layer_scores in enumerate(scores.values()):
            values = getattr(layer_scores, name).numpy()
            table[row, : len(values)] = values
        axes.imshow(table, cmap=_colormap(), vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, fontsize=8)
        axes.set_xlabel("head", fontsize=7)
        axes.set_yticks(range(len(scores)), [name.removesuffix(".mixer") for name in scores], fontsize=6)
        axes.tick_params(axis="x", labelsize=6)
    return figure


@checked()
def write_figure(figure: Any, file: str | Path) -> None:
    """Write a figure in the format of the file's suffix; an existing file is replaced.

    Raises:
        HeddleError: the suffix is not .png, .svg or .pdf, or the file cannot be written.
    """
    file = check_image(file)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # missing glyphs become boxes
        figure.savefig(image, format=file.suffix.removeprefix(".").lower(), dpi=150)
    write_file(file, image.getvalue(), replace=True)


def check_image(file: str | Path) -> Path:
    """Check that an image path has a supported suffix."""
    file = Path(file)
    if file.suffix.removeprefix(".").lower() not in FORMATS:
        raise HeddleError(f"{file}: must end in {', '.join('.' + format for format in FORMATS)}")
    return file


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeddleError("figures need matplotlib: pip install matplotlib") from None
    return Figure


def _colormap(name: str = "Greys") -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=MASKED)


def _inches(attention: Mapping[str, AttentionPass], cells: int) -> float:
    """The side of one map, in inches."""
    if cells > 4:
        return 1.3
    longest = max(max(layer.queries, layer.keys) for layer in attention.values())
    return min(max(3.0, 0.16 * longest + 1), 12)


def labels(layer: str, text: Text) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tokens of a layer's queries and keys."""
    if layer.startswith("encoder") and text.source is not None:
        return text.source_pieces, text.source_pieces
    return text.pieces, text.source_pieces if layer.endswith(".cross") else text.pieces


def _tick_label(piece: str) -> str:
    """A token as a label, with visible whitespace, escaped for matplotlib."""
    visible = piece.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return (visible if visible.isprintable() else repr(visible)[1:-1]).replace("$", r"\$") or "∅"
