"""What `heddle look` prints and draws: maps, the lens, scores of heads, names."""

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text as Line

from heddle.cli.models import Ready
from heddle.cli.output import console, print_json, table
from heddle.errors import HeddleError
from heddle.look import find_heads, score_heads, strongest, trace
from heddle.look import lens as read_layers
from heddle.look import names as names_of
from heddle.look.attention import AttentionPass
from heddle.look.heads import FIELDS
from heddle.look.picture import attention_figure, heads_figure, labels, lens_figure, write_figure
from heddle.look.sites import kernels
from heddle.look.texts import Text

WIDE = 48  # tokens of a map in the terminal, the last ones of a longer text
PAIRS = 5
SHADES = " ░▒▓█"


def layers_of(ready: Ready, wanted: str) -> tuple[list[str], int | None]:
    """The attention layers and the head that `3.2`, `3`, `encoder.3.2`, `cross.3` or `all` means.

    Raises:
        HeddleError: there is no such layer.
    """
    every = list(kernels(ready.model))
    last = "encoder" if ready.model.decoder is None else "decoder"
    if wanted == "all":
        return [name for name in every if name.startswith(last) and name.endswith(".mixer")], None
    found = re.fullmatch(r"(?:(encoder|decoder|cross)\.)?(\d+)(?:\.(\d+))?", wanted)
    if found is None:
        raise HeddleError(f"--attention {wanted}: give LAYER.HEAD, such as 0.2, or encoder.0.2, cross.0.2, or all")
    stack, layer, head = found.groups()
    name = f"decoder.{layer}.cross" if stack == "cross" else f"{stack or last}.{layer}.mixer"
    if name not in every:
        raise HeddleError(
            f"--attention {wanted}: this model has no {name}; it has {', '.join(every) or 'no attention'}"
        )
    return [name], None if head is None else int(head)


def print_attention(ready: Ready, text: Text, wanted: str, png: Path | None, json: bool) -> None:
    """The map of a head, or the strongest pairs of several."""
    layers, head = layers_of(ready, wanted)
    if not layers:
        raise HeddleError("this model has no self-attention")
    found = trace(ready.model, text.tokens, attention=layers, **text.more).attention
    heads = None if head is None else [head]
    first = next(iter(found.values()))
    if head is not None and head >= first.heads:
        raise HeddleError(f"--attention {wanted}: {layers[0]} has {first.heads} heads, numbered from 0")
    if png is not None:
        write_figure(attention_figure(found, text, heads), png)
    if json:
        print_json({"tokens": text.pieces, "source": text.source_pieces, "layers": _maps(found, heads)})
        return
    out = console()
    for name, layer in found.items():
        rows, columns = labels(name, text)
        for each in range(layer.heads) if heads is None else heads:
            if head is not None:
                _map(out, layer, each, rows, columns)
            pairs = strongest(layer, each, PAIRS)
            title = f"{name}, head {each}: strongest pairs" + (" off the diagonal" if name.endswith(".mixer") else "")
            shown = [[f"{rows[q]!r}", f"{columns[k]!r}", round(weight, 4)] for q, k, weight in pairs]
            out.print(table(["token", "attends to", "weight"], shown, title))
    if png is not None:
        out.print(f"written: {png}", markup=False)


def _maps(found: dict[str, AttentionPass], heads: list[int] | None) -> dict[str, Any]:
    return {
        name: {
            str(head): {
                "weights": layer.weights(heads=head)[0, 0].tolist(),
                "strongest": strongest(layer, head, PAIRS),
            }
            for head in (range(layer.heads) if heads is None else heads)
        }
        for name, layer in found.items()
    }


def _map(out: Console, layer: AttentionPass, head: int, rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    """A small map: a shade per pair of tokens, darker where the weight is higher; · where the mask blocks."""
    queries, keys = range(max(0, layer.queries - WIDE), layer.queries), range(max(0, layer.keys - WIDE), layer.keys)
    weights = layer.weights(rows=list(queries), heads=head)[0, 0, :, keys.start :].tolist()
    allowed = layer.allowed(list(queries))[0, 0, :, keys.start :].expand(len(queries), -1).tolist()
    width = max((len(_plain(rows[query])) for query in queries), default=1)
    for query, row, seen in zip(queries, weights, allowed, strict=True):
        line = Line(f"{_plain(rows[query]):>{width}} ")
        for value, may in zip(row, seen, strict=True):
            shade = round(255 * value)
            inverse = "white on " if value > 0.5 else "black on "
            mark = "  " if may else "··"
            line.append(mark, style=f"{inverse}rgb({255 - shade},{255 - shade},{255})" if may else "dim")
            if may and not out.is_terminal:
                line.right_crop(2)
                line.append(SHADES[min(len(SHADES) - 1, int(value * len(SHADES)))] * 2)
        out.print(line)
    if layer.queries > WIDE or layer.keys > WIDE:
        out.print(f"the last {WIDE} of {max(layer.queries, layer.keys)} tokens; --png draws all of them")


def _plain(piece: str) -> str:
    """A piece without what would move the cursor."""
    return piece.replace(" ", "␣").replace("\n", "⏎") if piece.isprintable() or piece == "\n" else repr(piece)[1:-1]


def print_lens(ready: Ready, text: Text, png: Path | None, json: bool) -> None:
    """The most probable token after each layer."""
    found = read_layers(ready.model, text.tokens, top=5, **text.more)
    piece = str if ready.tokenizer is None else ready.tokenizer.piece
    if png is not None:
        write_figure(lens_figure(found, text, piece), png)
    if json:
        print_json(
            {
                "read": text.pieces,
                "places": found.places,
                "tokens": [[[piece(id) for id in top] for top in row] for row in found.tokens.tolist()],
                "probabilities": found.probabilities.tolist(),
                "losses": found.losses().tolist() if found.target_probabilities.numel() else None,
            }
        )
        return
    out = console()
    pieces = found.table(piece)
    rows = [
        [repr(read)[1:-1], *(f"{_plain(line[place])} {best:.2f}" for line, best in zip(pieces, column, strict=True))]
        for place, (read, column) in enumerate(zip(text.pieces, found.probabilities[..., 0].T.tolist(), strict=True))
    ]
    out.print(table(["read so far", *(f"after {place}" for place in found.places)], rows, "most probable token"))
    if found.target_probabilities.numel():
        losses = ", ".join(
            f"{place} {loss:.3f}" for place, loss in zip(found.places, found.losses().tolist(), strict=True)
        )
        out.print(f"loss on this text, in nats per token, after each layer: {losses}")
    if png is not None:
        out.print(f"written: {png}", markup=False)


def print_heads(ready: Ready, text: Text | None, png: Path | None, json: bool) -> None:
    """What each head looks at."""
    if text is None:
        found = find_heads(ready.model)
    else:
        layers, _ = layers_of(ready, "all")
        attention = trace(ready.model, text.tokens, attention=layers, **text.more).attention if layers else {}
        found = {name: score_heads(each, text.tokens) for name, each in attention.items()}
    if not found:
        raise HeddleError("this model has no self-attention, so it has no heads")
    if png is not None:
        write_figure(heads_figure(found), png)
    if json:
        values = {
            name: {field: getattr(each, field).tolist() for field in FIELDS if field != "asymmetry"}
            | {"names": each.names()}
            for name, each in found.items()
        }
        print_json(values)
        return
    shown = [field for field in FIELDS if field != "asymmetry"]
    rows = [
        [name, head, each.names()[head], *(f"{float(getattr(each, field)[head]):.3f}" for field in shown)]
        for name, each in found.items()
        for head in range(len(each.entropy))
    ]
    out = console()
    out.print(
        table(
            ["layer", "head", "looks at", *shown],
            rows,
            f"shares of attention, on {'random tokens that repeat' if text is None else 'the prompt'}",
        )
    )
    if png is not None:
        out.print(f"written: {png}", markup=False)


def print_names(ready: Ready, json: bool) -> None:
    """What can be named in a trace."""
    found = names_of(ready.model)
    if json:
        print_json(found)
        return
    rows = [[name, *said.split(": ", 1)] for name, said in found.items()]
    console().print(table(["name", "axes", "what it is"], rows))
