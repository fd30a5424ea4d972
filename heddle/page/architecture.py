"""The architecture: a drawing, a treemap of parameters, and costs by text length (L0-12, L0-31)."""

from dataclasses import asdict

from heddle.look.drawing import draw, to_svg
from heddle.look.sites import sites
from heddle.look.sizes import costs, treemap
from heddle.model import Transformer
from heddle.page.queries import Document, Query
from heddle.page.subject import PageModel


def architecture(subject: PageModel, query: Query) -> Document:
    """The drawing with its boxes, the treemap, and the FLOPs of one pass by length."""
    config = subject.model.config
    drawing = draw(config)
    names, site_names = [box.name for box, _ in drawing.boxes()], set(sites(subject.model))
    lengths = sorted({max(1, config.context * part // 8) for part in range(1, 9)})
    return {
        "title": drawing.title,
        "parameters": drawing.parameters,
        "svg": to_svg(drawing),
        "boxes": [
            asdict(box)
            | {"times": count, "site": _site(box.name, names, site_names), "weights": _weights(box.name, subject.model)}
            for box, count in drawing.boxes()
        ],
        "areas": [asdict(area) for area in treemap(drawing)],
        "costs": [asdict(cost) for cost in costs(config, lengths)],
    }


def _weights(box: str, model: Transformer) -> list[list[str]]:
    """The name and the shape of each parameter in a branch of a layer."""
    parameters = [(name.replace(".blocks.", ".", 1), parameter) for name, parameter in model.named_parameters()]
    shapes = {name: " × ".join(map(str, parameter.shape)) for name, parameter in parameters}
    return [[name.removeprefix(box + "."), shape] for name, shape in shapes.items() if name.startswith(box + ".")]


def _site(box: str, names: list[str], site_names: set[str]) -> str | None:
    """The name of the tensor that a box computes, see `heddle.look.names`, or None."""
    stack, _, rest = box.partition(".")
    layer, _, end = rest.partition(".")
    if not layer.isdigit():
        entry = f"{stack}.entry" if box == f"{stack}.entry" or f"{stack}.entry" not in names else None
        outside_layers = {
            "embedding": f"{stack}.embedded",
            "positions": entry,
            "entry": entry,
            "final_norm": f"{stack}.output",
        }
        return outside_layers.get(layer)
    branch, _, part = end.partition(".")
    block = f"{stack}.{layer}"
    if part in ("add", "outside"):  # the residual stream after a branch, which the next branch reads
        last = f"{block}.{branch}.outside" in names
        later = [name for name in ("cross", "ffn") if f"{block}.{name}" in names]
        following = later[later.index(branch) + 1 :] if branch in later else later
        stream = {"cross": "residual_before_cross", "ffn": "residual_middle"}.get(
            next(iter(following), ""), "residual_after"
        )
        site = f"{block}.{stream}" if part == "outside" or not last else ""
    else:
        ends = {"": "output", "before": "input", "after": "added", "dropout": "added"}
        site = f"{block}.residual_before" if branch == "input" else f"{block}.{branch}.{ends.get(part, '')}"
    return site if site in site_names else None
