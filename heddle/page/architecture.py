"""The model as a drawing, its parameters as areas, and what a longer text costs (L0-12, L0-31)."""

from dataclasses import asdict

from heddle.look.drawing import draw
from heddle.look.sites import sites
from heddle.look.sizes import costs, treemap
from heddle.look.svg import to_svg
from heddle.model import Transformer
from heddle.page.asked import Document, Query
from heddle.page.subject import PageModel


def architecture(subject: PageModel, asked: Query) -> Document:
    """The drawing with its boxes, the treemap, and the FLOPs of one pass by length."""
    config = subject.model.config
    drawing = draw(config)
    names, known = [box.name for box, _ in drawing.boxes()], set(sites(subject.model))
    lengths = sorted({max(1, config.context * part // 8) for part in range(1, 9)})
    return {
        "title": drawing.title,
        "parameters": drawing.parameters,
        "svg": to_svg(drawing),
        "boxes": [
            asdict(box)
            | {"times": count, "site": _site(box.name, names, known), "weights": _weights(box.name, subject.model)}
            for box, count in drawing.boxes()
        ],
        "areas": [asdict(area) for area in treemap(drawing)],
        "costs": [asdict(cost) for cost in costs(config, lengths)],
    }


def _weights(box: str, model: Transformer) -> list[list[str]]:
    """The name and the shape of each parameter in a branch of a layer."""
    found = [(name.replace(".blocks.", ".", 1), parameter) for name, parameter in model.named_parameters()]
    shapes = {name: " × ".join(map(str, parameter.shape)) for name, parameter in found}
    return [[name.removeprefix(box + "."), shape] for name, shape in shapes.items() if name.startswith(box + ".")]


def _site(box: str, names: list[str], known: set[str]) -> str | None:
    """The tensor of a pass that a box makes, see `heddle.look.names`; None if none is named."""
    stack, _, rest = box.partition(".")
    layer, _, end = rest.partition(".")
    if not layer.isdigit():
        entered = f"{stack}.entry" if box == f"{stack}.entry" or f"{stack}.entry" not in names else None
        found = {
            "embedding": f"{stack}.embedded",
            "positions": entered,
            "entry": entered,
            "final_norm": f"{stack}.output",
        }
        return found.get(layer)
    branch, _, part = end.partition(".")
    whole = f"{stack}.{layer}"
    if part in ("add", "outside"):  # the stream after a branch, which the next one reads
        last = f"{whole}.{branch}.outside" in names
        after = [each for each in ("cross", "ffn") if f"{whole}.{each}" in names]
        following = after[after.index(branch) + 1 :] if branch in after else after
        stream = {"cross": "residual_before_cross", "ffn": "residual_middle"}.get(
            next(iter(following), ""), "residual_after"
        )
        found_name = f"{whole}.{stream}" if part == "outside" or not last else ""
    else:
        ends = {"": "output", "before": "input", "after": "added", "dropout": "added"}
        found_name = f"{whole}.residual_before" if branch == "input" else f"{whole}.{branch}.{ends.get(part, '')}"
    return found_name if found_name in known else None
