"""A walk through one pass: every tensor that a pass makes, by name, and any of them as numbers (L1-06, L3-25, L3-40)."""

from torch import Tensor

from heddle.errors import HeddleError
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.page.asked import CheckpointQuery, Document, OneTensor
from heddle.page.numbers import packed
from heddle.page.subject import PageModel

ROWS, COLUMNS = 256, 256  # numbers of a tensor that are sent; its shape says how many there are
MAPS = ("scores", "weights")  # quadratic in the text's length: computed for one head when asked for


def walk(subject: PageModel, asked: CheckpointQuery) -> Document:
    """The tensors of a pass in order: name, axes, meaning, shape, mean and spread."""
    text = subject.read(asked)
    every = sites(subject.model)
    kept = [name for name in every if name.rpartition(".")[2] not in MAPS]
    found = trace(subject.model, text.tokens, kept, edits=subject.edits(asked), **text.more)
    maps = subject.attention(asked)
    boxes = []
    for name, site in every.items():
        row: Document = {"name": name, "axes": site.axes, "said": site.description}
        if name in found:
            tensor = found[name].float()
            row |= {
                "shape": list(tensor.shape),
                "mean": float(tensor.mean()),
                "spread": float(tensor.std(correction=0)),
            }
        elif (layer := maps.get(name.rpartition(".")[0])) is not None:
            row |= {"shape": [1, layer.heads, layer.queries, layer.keys], "mean": None, "spread": None}
        else:
            continue
        boxes.append(row)
    return {"pieces": text.pieces, "source": text.source_pieces, "stack": subject.stack, "boxes": boxes}


def tensor(subject: PageModel, asked: OneTensor) -> Document:
    """A tensor of a pass as a matrix, rows by columns: of a head if it has heads.

    Raises:
        HeddleError: there is no such tensor or head.
    """
    text = subject.read(asked)
    branch, _, end = asked.name.rpartition(".")
    if asked.name not in sites(subject.model):
        raise HeddleError(f"nothing in this model is called {asked.name!r}")
    if end in MAPS:
        layer = subject.attention(asked)[branch]
        _check_head(asked, layer.heads)
        rows = slice(0, ROWS)
        matrix = (layer.scores if end == "scores" else layer.weights)(rows, asked.head)[0, 0]
        shape = [1, layer.heads, layer.queries, layer.keys]
    else:
        whole = trace(subject.model, text.tokens, asked.name, edits=subject.edits(asked), **text.more)[asked.name]
        shape = list(whole.shape)
        if whole.dim() == 4:
            _check_head(asked, whole.shape[1])
        matrix = _matrix(whole, asked.head)
    width = matrix.shape[1]
    columns = [*range(min(width, COLUMNS - 1)), *([width - 1] if width >= COLUMNS else [])]  # the last one, too (L3-40)
    of_source = asked.name.startswith("encoder") and subject.paired
    keys = end in ("k", "v")
    across = asked.name.split(".")[-2:-1] == ["cross"] and keys
    return {
        "name": asked.name,
        "said": sites(subject.model)[asked.name].description,
        "axes": sites(subject.model)[asked.name].axes,
        "shape": shape,
        "rows": text.source_pieces if of_source or across else text.pieces,
        "columns": columns,
        "matrix": packed(matrix[:ROWS, columns]),
    }


def _matrix(whole: Tensor, head: int) -> Tensor:
    """The rows and columns of the first text: of one head, if there are heads."""
    found = whole[0, head] if whole.dim() == 4 else whole[0]
    return found if found.dim() == 2 else found.reshape(1, -1)


def _check_head(asked: OneTensor, heads: int) -> None:
    if asked.head >= heads:
        raise HeddleError(f"there is no head {asked.head}: {asked.name} has {heads}, numbered from 0")
