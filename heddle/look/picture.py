"""Pictures by matplotlib: attention maps, the logit lens, scores of heads, and where they are in a model."""

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
from heddle.weights.files import write_file

FORMATS = ("png", "svg", "pdf")
MASKED = "#f3d9c4"  # no shade of grey, so that what is masked differs from what is small
LABELLED = 64  # tokens up to which each has a label of its own
MOST = 2048  # tokens of a map in a picture


def attention_figure(attention: Mapping[str, AttentionPass], text: Text, heads: Sequence[int] | None = None) -> Any:
    """Heat maps of some layers and heads, darker where the weight is higher (L1-28, L1-36); return matplotlib's `Figure`.

    Rows are queries: "these tokens attend to"; columns are keys. Masked pairs have a colour of their own (L1-29, L1-40).

    Args:
        attention: layers by name, of `trace(..., attention=...)`.
        text: what was read.
        heads: which heads; None: all.

    Raises:
        HeddleError: matplotlib is not installed, there is no such head, or the text is too long for a picture.
    """
    Figure = _figure_class()
    for name, layer in attention.items():
        if max(layer.queries, layer.keys) > MOST:
            raise HeddleError(
                f"{name} has {layer.queries} × {layer.keys} weights; a picture shows at most {MOST} tokens"
            )
    cells = [(name, head) for name, layer in attention.items() for head in (heads or range(layer.heads))]
    columns = (
        min(len(cells), 4) if len(attention) == 1 else max(len(heads or range(x.heads)) for x in attention.values())
    )
    rows, size = ceil(len(cells) / columns), _inches(attention, len(cells))
    figure = Figure(figsize=(size * columns + 0.5, size * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for place, (name, head) in zip(axes, cells, strict=False):
        draw_map(place, attention[name], head, *labels(name, text), few=len(cells) <= 4)
        place.set_title(f"{name}, head {head}", fontsize=9 if len(cells) <= 4 else 6)
    for place in axes[len(cells) :]:
        place.set_axis_off()
    return figure


def draw_map(
    axes: Any, attention: AttentionPass, head: int, rows: Sequence[str], columns: Sequence[str], few: bool = True
) -> None:
    """Draw one head's map on matplotlib's axes."""
    weights = attention.weights(heads=head)[0, 0].float().cpu().numpy()
    allowed = attention.allowed()[0, 0].expand(weights.shape).cpu().numpy()
    shown = np.ma.masked_array(weights, ~allowed)
    shades = _shades()
    axes.imshow(shown, cmap=shades, vmin=0, vmax=1, interpolation="nearest", aspect="auto" if not few else "equal")
    if few and max(weights.shape) <= LABELLED:
        axes.set_xticks(range(len(columns)), [_shown(each) for each in columns], rotation=90, fontsize=7)
        axes.set_yticks(range(len(rows)), [_shown(each) for each in rows], fontsize=7)
        axes.set_ylabel("these tokens attend to", fontsize=8)
        axes.set_xlabel("these tokens are attended to", fontsize=8)
    elif not few:
        axes.set_xticks([])
        axes.set_yticks([])


def lens_figure(lens: Lens, text: Text, name: Any) -> Any:
    """The most probable token after each layer, by position; darker where the distribution is surer. Return a `Figure`.

    Args:
        lens: of `heddle.look.lens`.
        text: what was read.
        name: from an id to its text.

    Raises:
        HeddleError: matplotlib is not installed, or the text is too long for a picture.
    """
    Figure = _figure_class()
    places, length = lens.entropy.shape
    if length > LABELLED:
        raise HeddleError(f"the text has {length} tokens; a picture of the lens shows at most {LABELLED}")
    figure = Figure(figsize=(max(4, 0.75 * length + 1), max(2, 0.32 * places + 1)), layout="constrained")
    axes = figure.subplots()
    best = lens.probabilities[..., 0].float().cpu().numpy()
    image = axes.imshow(best, cmap=_shades("Blues"), vmin=0, vmax=1, aspect="auto")
    for row, line in enumerate(lens.table(name)):
        for column, piece in enumerate(line):
            colour = "white" if best[row, column] > 0.6 else "black"
            axes.text(column, row, _shown(piece), ha="center", va="center", fontsize=7, color=colour)
    axes.set_xticks(range(length), [_shown(each) for each in text.pieces], rotation=90, fontsize=7)
    axes.set_yticks(range(places), lens.places, fontsize=7)
    axes.set_ylabel("after layer")
    axes.set_xlabel("read so far")
    figure.colorbar(image, label="probability of the token that is shown")
    return figure


def heads_figure(scores: Mapping[str, HeadScores]) -> Any:
    """Scores of all heads as a table of shades, a panel per score. Return matplotlib's `Figure`.

    Raises:
        HeddleError: matplotlib is not installed.
    """
    Figure = _figure_class()
    shown = [name for name in FIELDS if name != "asymmetry"]
    figure = Figure(figsize=(2.2 * len(shown) / 2, 1.6 + 0.5 * len(scores)), layout="constrained")
    heads = max(len(each.entropy) for each in scores.values())
    for axes, name in zip(figure.subplots(2, ceil(len(shown) / 2), squeeze=False).flatten(), shown, strict=False):
        table: npt.NDArray[np.float32] = np.full((len(scores), heads), np.nan, np.float32)
        for row, each in enumerate(scores.values()):
            values = getattr(each, name).numpy()
            table[row, : len(values)] = values
        axes.imshow(table, cmap=_shades(), vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, fontsize=8)
        axes.set_xlabel("head", fontsize=7)
        axes.set_yticks(range(len(scores)), [name.removesuffix(".mixer") for name in scores], fontsize=6)
        axes.tick_params(axis="x", labelsize=6)
    return figure


@checked()
def write_figure(figure: Any, file: str | Path) -> None:
    """Write a figure as an image, in the format of its suffix; an existing file is replaced.

    Raises:
        HeddleError: the suffix is none of .png, .svg and .pdf, or the file cannot be written.
    """
    file = check_image(file)
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box is drawn; there is nothing else to do
        figure.savefig(image, format=file.suffix.removeprefix(".").lower(), dpi=150)
    write_file(file, image.getvalue(), replace=True)


def check_image(file: str | Path) -> Path:
    """The path of an image, whose suffix names a format.

    Raises:
        HeddleError: it does not.
    """
    file = Path(file)
    if file.suffix.removeprefix(".").lower() not in FORMATS:
        raise HeddleError(f"{file}: a picture ends in {', '.join('.' + each for each in FORMATS)}")
    return file


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeddleError("pictures need matplotlib: pip install matplotlib") from None
    return Figure


def _shades(name: str = "Greys") -> Any:
    from matplotlib import colormaps

    return colormaps[name].with_extremes(bad=MASKED)


def _inches(attention: Mapping[str, AttentionPass], cells: int) -> float:
    """The side of one map."""
    if cells > 4:
        return 1.3
    longest = max(max(layer.queries, layer.keys) for layer in attention.values())
    return min(max(3.0, 0.16 * longest + 1), 12)


def labels(layer: str, text: Text) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pieces of a layer's queries and keys."""
    if layer.startswith("encoder") and text.source is not None:
        return text.source_pieces, text.source_pieces
    return text.pieces, text.source_pieces if layer.endswith(".cross") else text.pieces


def _shown(piece: str) -> str:
    """A piece as a label: blanks can be seen, and nothing is a formula to matplotlib."""
    seen = piece.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return (seen if seen.isprintable() else repr(seen)[1:-1]).replace("$", r"\$") or "∅"
