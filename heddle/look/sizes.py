"""A treemap of parameters, the cost of a forward pass by length, and matrices printed as in the lectures."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from heddle.account.repeats import measured
from heddle.account.walk import walk
from heddle.checks import at_least, checked
from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.look.drawing import Drawing


@displayed()
@dataclass(frozen=True)
class Area:
    """A rectangle in a unit-square treemap, with an area equal to its share of the parameters.

    Attributes:
        name: of the part.
        parameters: number of parameters.
        x: from the left.
        y: from the top.
        width: of the rectangle.
        height: of the rectangle.
    """

    name: str
    parameters: int
    x: float
    y: float
    width: float
    height: float


@displayed()
@dataclass(frozen=True)
class Cost:
    """The FLOPs of one forward pass over a text.

    Attributes:
        length: tokens of the text.
        once: cost of a pooling head, independent of the length; 0 for other heads.
        linear: cost of as many separate tokens, without `once`; grows with n.
        quadratic: the rest, from tokens that attend to each other; grows with n² for full attention.
    """

    length: int
    once: int
    linear: int
    quadratic: int


@checked()
def treemap(drawing: Drawing) -> list[Area]:
    """Lay out the parts of a model as a squarified treemap, largest first (Bruls et al. 2000)."""
    shares: dict[str, int] = {}
    for box, count in drawing.boxes():
        if box.parameters:
            parts = box.name.split(".")
            name = f"{parts[0]} {parts[2]}" if len(parts) > 2 and parts[1].isdigit() else box.name.replace(".", " ")
            if len(parts) > 3 or "Norm" in box.label:
                name = f"{parts[0]} norms"
            shares[name] = shares.get(name, 0) + box.parameters * count
    remaining = sorted(shares.items(), key=lambda pair: -pair[1])
    areas, x, y, width, height = list[Area](), 0.0, 0.0, 1.0, 1.0
    total = float(sum(shares.values()) or 1)
    while remaining:
        side = min(width, height)
        count = _in_row([value / total for _, value in remaining], side)
        row, remaining = remaining[:count], remaining[count:]
        thickness = sum(value for _, value in row) / total / side
        offset = y if width >= height else x
        for name, value in row:
            length = value / total / thickness
            rectangle = (x, offset, thickness, length) if width >= height else (offset, y, length, thickness)
            areas.append(Area(name, value, *rectangle))
            offset += length
        if width >= height:
            x, width = x + thickness, width - thickness
        else:
            y, height = y + thickness, height - thickness
    return areas


def _in_row(shares: Sequence[float], side: float) -> int:
    """The number of rectangles in the next row, such that the worst aspect ratio is smallest."""

    def worst(count: int) -> float:
        thickness = sum(shares[:count]) / side
        return max(max(thickness * thickness / share, share / (thickness * thickness)) for share in shares[:count])

    count = 1
    while count < len(shares) and worst(count + 1) <= worst(count):
        count += 1
    return count


@checked()
def costs(config: TransformerConfig, lengths: Sequence[int]) -> list[Cost]:
    """The FLOPs of one forward pass at some lengths, as stated by `heddle.account`: attention computes all scores.

    Raises:
        HeddleError: a length is not positive.
    """
    if invalid := [length for length in lengths if length < 1]:
        raise HeddleError(f"length = {invalid[0]}: must be at least 1")

    def count(model: TransformerConfig, length: int) -> int:
        return sum(measured(model, lambda variant: walk(variant, 1, length).by_part()).values())

    single_token = count(config, 1)
    once = single_token - count(config.override({"head": {"kind": "none"}}), 1) if _pools(config) else 0
    per_token = single_token - once
    return [
        Cost(length, once, length * per_token, count(config, length) - once - length * per_token) for length in lengths
    ]


def _pools(config: TransformerConfig) -> bool:
    head = config.head
    return isinstance(head, ClassifierHeadConfig | EmbeddingHeadConfig) and head.pooling != "none"


@checked(leading=at_least(1))
def matrix_text(matrix: Float[Tensor, "T D"], rows: str = "T_", leading: int = 3) -> str:
    """Format a matrix as in the lectures: leading columns, …, the last one; rows T_0, T_1, … (L3-40).

    Args:
        matrix: the numbers.
        rows: prefix of row numbers.
        leading: number of columns before the dots.
    """
    columns = matrix.shape[1]
    lines = []
    for number, row in enumerate(matrix.tolist()):
        values = row if columns <= leading + 1 else [*row[:leading], row[-1]]
        cells = [f"{value:.2f}" for value in values]
        if columns > leading + 1:
            cells.insert(leading, "…")
        lines.append([f"{rows}{number}", *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
