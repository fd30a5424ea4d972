"""The model as a drawing, its parameters as areas, and what a longer text costs (L0-12, L0-31)."""

from dataclasses import asdict

from heddle.look.drawing import draw
from heddle.look.sizes import costs, treemap
from heddle.look.svg import to_svg
from heddle.page.asked import Asked, Document
from heddle.page.subject import Subject


def architecture(subject: Subject, asked: Asked) -> Document:
    """The drawing with its boxes, the treemap, and the FLOPs of one pass by length."""
    config = subject.model.config
    drawing = draw(config)
    lengths = sorted({max(1, config.context * part // 8) for part in range(1, 9)})
    return {
        "title": drawing.title,
        "parameters": drawing.parameters,
        "svg": to_svg(drawing),
        "boxes": [asdict(box) | {"times": count} for box, count in drawing.boxes()],
        "areas": [asdict(area) for area in treemap(drawing)],
        "costs": [asdict(cost) for cost in costs(config, lengths)],
    }
