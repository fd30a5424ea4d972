"""Terminal and JSON output of `heddle look`: attention, logit lens, head scores, site names, architecture."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text as Line

from heddle.account.resolve import resolve
from heddle.cli.models import Ready
from heddle.cli.output import RUNS, console, print_json, table
from heddle.errors import HeddleError
from heddle.look import draw, find_heads, score_heads, strongest, trace, write_drawing
from heddle.look import lens as logit_lens
from heddle.look import names as name_sites
from heddle.look.attention import AttentionPass
from heddle.look.heads import FIELDS
from heddle.look.picture import attention_figure, heads_figure, labels, lens_figure, write_figure
from heddle.look.sites import kernels
from heddle.look.texts import Text

WIDE = 48  # most tokens of a map in the terminal; longer texts show the last ones
PAIRS = 5
SHADES = " ░▒▓█"


def layers_of(ready: Ready, spec: str) -> tuple[list[str], int | None]:
    """Parse `3.2`, `3`, `encoder.3.2`, `cross.3` or `all` into attention layers and a head."""
    layer_names = list(kernels(ready.model))
    last_stack = "encoder" if ready.model.decoder is None else "decoder"
    if spec == "all":
        return [name for name in layer_names if name.startswith(last_stack) and name.endswith(".mixer")], None
    match = re.fullmatch(r"(?:(encoder|decoder|cross)\.)?(\d+)(?:\.(\d+))?", spec)
    if match is None:
        raise HeddleError(f"--attention {spec}: use LAYER.HEAD such as 0.2, encoder.0.2 or cross.0.2, or LAYER, or all")
    stack, layer, head = match.groups()
    name = f"decoder.{layer}.cross" if stack == "cross" else f"{stack or last_stack}.{layer}.mixer"
    if name not in layer_names:
        raise HeddleError(
            f"--attention {spec}: this model has no {name}; it has {', '.join(layer_names) or 'no attention'}"
        )
    return [name], None if head is None else int(head)


def print_attention(ready: Ready, text: Text, spec: str, png: Path | None, json: bool) -> None:
    """Print a head's attention map, or the strongest pairs of several heads."""
    layers, head = layers_of(ready, spec)
    if not layers:
        raise HeddleError("this model has no self-attention")
    passes = trace(ready.model, text.tokens, attention=layers, **text.more).attention
    heads = None if head is None else [head]
    first_layer = next(iter(passes.values()))
    if head is not None and head >= first_layer.heads:
        raise HeddleError(f"--attention {spec}: {layers[0]} has {first_layer.heads} heads, counted from 0")
    if png is not None:
        write_figure(attention_figure(passes, text, heads), png)
    if json:
        print_json({"tokens": text.pieces, "source": text.source_pieces, "layers": _maps_json(passes, heads)})
        return
    out = console()
    for name, layer in passes.items():
        rows, columns = labels(name, text)
        for number in range(layer.heads) if heads is None else heads:
            if head is not None:
                _print_map(out, layer, number, rows, columns)
            pairs = strongest(layer, number, PAIRS)
            title = f"{name}, head {number}: strongest pairs" + (" off the diagonal" if name.endswith(".mixer") else "")
            table_rows = [[f"{rows[q]!r}", f"{columns[k]!r}", round(weight, 4)] for q, k, weight in pairs]
            out.print(table(["token", "attends to", "weight"], table_rows, title))
    if png is not None:
        out.print(f"written: {png}")


def _maps_json(passes: dict[str, AttentionPass], heads: list[int] | None) -> dict[str, Any]:
    return {
        name: {
            str(head): {
                "weights": layer.weights(heads=head)[0, 0].tolist(),
                "strongest": strongest(layer, head, PAIRS),
            }
            for head in (range(layer.heads) if heads is None else heads)
        }
        for name, layer in passes.items()
    }


def _print_map(out: Console, layer: AttentionPass, head: int, rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    """Print a small attention map: darker is larger, · is masked."""
    queries, keys = range(max(0, layer.queries - WIDE), layer.queries), range(max(0, layer.keys - WIDE), layer.keys)
    weights = layer.weights(rows=list(queries), heads=head)[0, 0, :, keys.start :].tolist()
    allowed = layer.allowed(list(queries))[0, 0, :, keys.start :].expand(len(queries), -1).tolist()
    width = max((len(_printable(rows[query])) for query in queries), default=1)
    for query, row, allowed_row in zip(queries, weights, allowed, strict=True):
        line = Line(f"{_printable(rows[query]):>{width}} ")
        for value, is_allowed in zip(row, allowed_row, strict=True):
            blue = round(255 * value)
            style = "white on " if value > 0.5 else "black on "
            cell = "  " if is_allowed else "··"
            line.append(cell, style=f"{style}rgb({255 - blue},{255 - blue},{255})" if is_allowed else "dim")
            if is_allowed and not out.is_terminal:
                line.right_crop(2)
                line.append(SHADES[min(len(SHADES) - 1, int(value * len(SHADES)))] * 2)
        out.print(line)
    if layer.queries > WIDE or layer.keys > WIDE:
        out.print(f"the last {WIDE} of {max(layer.queries, layer.keys)} tokens; --png draws all of them")


def _printable(piece: str) -> str:
    """A token without control characters."""
    return piece.replace(" ", "␣").replace("\n", "⏎") if piece.isprintable() or piece == "\n" else repr(piece)[1:-1]


def print_lens(ready: Ready, text: Text, png: Path | None, json: bool) -> None:
    """Print the most probable token after each layer."""
    lens = logit_lens(ready.model, text.tokens, top=5, **text.more)
    piece = str if ready.tokenizer is None else ready.tokenizer.piece
    if png is not None:
        write_figure(lens_figure(lens, text, piece), png)
    if json:
        print_json(
            {
                "read": text.pieces,
                "places": lens.places,
                "tokens": [[[piece(id) for id in top] for top in row] for row in lens.tokens.tolist()],
                "probabilities": lens.probabilities.tolist(),
                "losses": lens.losses().tolist() if lens.target_probabilities.numel() else None,
            }
        )
        return
    out = console()
    pieces = lens.table(piece)
    rows = [
        [
            repr(token)[1:-1],
            *(
                f"{_printable(line[position])} {probability:.2f}"
                for line, probability in zip(pieces, column, strict=True)
            ),
        ]
        for position, (token, column) in enumerate(zip(text.pieces, lens.probabilities[..., 0].T.tolist(), strict=True))
    ]
    out.print(table(["input so far", *(f"after {position}" for position in lens.places)], rows, "most probable token"))
    if lens.target_probabilities.numel():
        losses = ", ".join(
            f"{position} {loss:.3f}" for position, loss in zip(lens.places, lens.losses().tolist(), strict=True)
        )
        out.print(f"loss on this text after each layer, in nats per token: {losses}")
    if png is not None:
        out.print(f"written: {png}")


def print_heads(ready: Ready, text: Text | None, png: Path | None, json: bool) -> None:
    """Print what each head attends to."""
    if text is None:
        scores = find_heads(ready.model)
    else:
        layers, _ = layers_of(ready, "all")
        attention = trace(ready.model, text.tokens, attention=layers, **text.more).attention if layers else {}
        scores = {name: score_heads(layer_scores, text.tokens) for name, layer_scores in attention.items()}
    if not scores:
        raise HeddleError("this model has no self-attention heads")
    if png is not None:
        write_figure(heads_figure(scores), png)
    if json:
        values = {
            name: {field: getattr(layer_scores, field).tolist() for field in FIELDS if field != "asymmetry"}
            | {"names": layer_scores.names()}
            for name, layer_scores in scores.items()
        }
        print_json(values)
        return
    fields = [field for field in FIELDS if field != "asymmetry"]
    rows = [
        [
            name,
            head,
            layer_scores.names()[head],
            *(f"{float(getattr(layer_scores, field)[head]):.3f}" for field in fields),
        ]
        for name, layer_scores in scores.items()
        for head in range(len(layer_scores.entropy))
    ]
    out = console()
    out.print(
        table(
            ["layer", "head", "attends to", *fields],
            rows,
            f"shares of attention on {'repeated random tokens' if text is None else 'the prompt'}",
        )
    )
    if png is not None:
        out.print(f"written: {png}")


def print_names(ready: Ready, json: bool) -> None:
    """Print the sites that a trace can record."""
    sites = name_sites(ready.model)
    if json:
        print_json(sites)
        return
    rows = [[name, *description.split(": ", 1)] for name, description in sites.items()]
    console().print(table(["name", "axes", "description"], rows))


def print_model(name: str, path: Path, json: bool) -> None:
    """Draw the architecture of a run, a preset or a config file as SVG, and list its parts."""
    _, config = resolve(str(RUNS / name) if (RUNS / name).is_dir() else name)
    drawing = draw(config)
    write_drawing(drawing, path)
    if json:
        print_json({"drawing": str(path), **asdict(drawing)})
        return
    rows = [
        [box.name, box.label, box.shape, f"{box.parameters:,}", count, f"{box.parameters * count:,}"]
        for box, count in drawing.boxes()
    ]
    out = console()
    title = f"{drawing.title}: {drawing.parameters:,} parameters"
    out.print(table(["box", "module", "shape", "parameters", "times", "total"], rows, title))
    out.print(f"written: {path}")
