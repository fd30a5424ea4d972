"""All tensors of a forward pass by name, and the numbers of any of them (L1-06, L3-25, L3-40)."""

from torch import Tensor

from heddle.errors import HeddleError
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.page.numbers import encode_tensor
from heddle.page.queries import Document, TensorQuery, TextQuery
from heddle.page.subject import PageModel

ROWS, COLUMNS = 256, 256  # maximum size of the matrix to send
MAPS = ("scores", "weights")  # quadratic in the text's length, so computed only for the requested head


def walk(subject: PageModel, query: TextQuery) -> Document:
    """The tensors of a pass in order: name, axes, meaning, shape, mean and spread."""
    text = subject.read(query)
    model_sites = sites(subject.model)
    traced_names = [name for name in model_sites if name.rpartition(".")[2] not in MAPS]
    traced = trace(subject.model, text.tokens, traced_names, edits=subject.edits(query), **text.more)
    maps = subject.attention(query)
    boxes = []
    for name, site in model_sites.items():
        row: Document = {"name": name, "axes": site.axes, "said": site.description}
        if name in traced:
            tensor = traced[name].float()
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


def tensor(subject: PageModel, query: TensorQuery) -> Document:
    """A tensor of a pass as a matrix; for a tensor with heads, one head's."""
    text = subject.read(query)
    branch, _, end = query.name.rpartition(".")
    if query.name not in sites(subject.model):
        raise HeddleError(f"this model has no tensor {query.name!r}")
    if end in MAPS:
        layer = subject.attention(query)[branch]
        _check_head(query, layer.heads)
        rows = slice(0, ROWS)
        matrix = (layer.scores if end == "scores" else layer.weights)(rows, query.head)[0, 0]
        shape = [1, layer.heads, layer.queries, layer.keys]
    else:
        traced = trace(subject.model, text.tokens, query.name, edits=subject.edits(query), **text.more)[query.name]
        shape = list(traced.shape)
        if traced.dim() == 4:
            _check_head(query, traced.shape[1])
        matrix = _matrix(traced, query.head)
    width = matrix.shape[1]
    columns = [
        *range(min(width, COLUMNS - 1)),
        *([width - 1] if width >= COLUMNS else []),
    ]  # always with the last (L3-40)
    of_encoder = query.name.startswith("encoder") and subject.paired
    cross_keys = query.name.split(".")[-2:-1] == ["cross"] and end in ("k", "v")
    return {
        "name": query.name,
        "said": sites(subject.model)[query.name].description,
        "axes": sites(subject.model)[query.name].axes,
        "shape": shape,
        "rows": text.source_pieces if of_encoder or cross_keys else text.pieces,
        "columns": columns,
        "matrix": encode_tensor(matrix[:ROWS, columns]),
    }


def _matrix(tensor: Tensor, head: int) -> Tensor:
    """The matrix of the first text, or of one head of it."""
    matrix = tensor[0, head] if tensor.dim() == 4 else tensor[0]
    return matrix if matrix.dim() == 2 else matrix.reshape(1, -1)


def _check_head(query: TensorQuery, heads: int) -> None:
    if query.head >= heads:
        raise HeddleError(f"there is no head {query.head}: {query.name} has {heads}, numbered from 0")
