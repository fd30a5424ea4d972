"""Where a model's parameters are, as areas; what a longer text costs; and a matrix as the lectures print one."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from heddle.account.forward import count_pass
from heddle.checks import at_least, checked
from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.look.drawing import Drawing


@displayed()
@dataclass(frozen=True)
class Area:
    """A rectangle of a treemap in a square of side 1; its area is the share of the parameters.

    Attributes:
        name: the part.
        parameters: its parameters.
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
        length: its tokens.
        once: what a head that pools the text takes, however long it is; 0 for a head that scores every token.
        linear: what as many texts of one token would take without that, which grows with n.
        quadratic: the rest, which tokens that attend to each other take; with full attention it grows with n².
    """

    length: int
    once: int
    linear: int
    quadratic: int


@checked()
def treemap(drawing: Drawing) -> list[Area]:
    """The parts of a model as rectangles, largest first, as square as they can be (Bruls et al. 2000)."""
    shares: dict[str, int] = {}
    for box, count in drawing.boxes():
        if box.parameters:
            parts = box.name.split(".")
            name = f"{parts[0]} {parts[2]}" if len(parts) > 2 and parts[1].isdigit() else box.name.replace(".", " ")
            if len(parts) > 3 or "Norm" in box.label:
                name = f"{parts[0]} norms"
            shares[name] = shares.get(name, 0) + box.parameters * count
    left = sorted(shares.items(), key=lambda pair: -pair[1])
    found, x, y, width, height = list[Area](), 0.0, 0.0, 1.0, 1.0
    total = float(sum(shares.values()) or 1)
    while left:
        side = min(width, height)
        count = _in_row([value / total for _, value in left], side)
        row, left = left[:count], left[count:]
        thick = sum(value for _, value in row) / total / side
        at = y if width >= height else x
        for name, value in row:
            long = value / total / thick
            place = (x, at, thick, long) if width >= height else (at, y, long, thick)
            found.append(Area(name, value, *place))
            at += long
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
    return found


def _in_row(shares: Sequence[float], side: float) -> int:
    """How many rectangles of these areas fit along a side best: those whose worst proportion is smallest."""

    def worst(count: int) -> float:
        thick = sum(shares[:count]) / side
        return max(max(thick * thick / share, share / (thick * thick)) for share in shares[:count])

    count = 1
    while count < len(shares) and worst(count + 1) <= worst(count):
        count += 1
    return count


@checked()
def costs(config: TransformerConfig, lengths: Sequence[int]) -> list[Cost]:
    """What one forward pass costs at some lengths, as `heddle.account` counts it.

    Raises:
        HeddleError: a length is not positive.
    """
    if odd := [length for length in lengths if length < 1]:
        raise HeddleError(f"lengths contain {odd[0]}: a text has at least one token")
    one = count_pass(config, 1, 1)
    once = one - count_pass(config.override({"head": {"kind": "none"}}), 1, 1) if _pools(config) else 0
    each = one - once
    return [
        Cost(length, once, length * each, count_pass(config, 1, length) - once - length * each) for length in lengths
    ]


def _pools(config: TransformerConfig) -> bool:
    head = config.head
    return isinstance(head, ClassifierHeadConfig | EmbeddingHeadConfig) and head.pooling != "none"


@checked(leading=at_least(1))
def matrix_text(matrix: Float[Tensor, "T D"], rows: str = "T_", leading: int = 3) -> str:
    """A matrix as the lectures print it: the leading columns, …, the last one; a line per row, T_0, T_1, … (L3-40).

    Args:
        matrix: the numbers.
        rows: what comes before the numbers of rows.
        leading: columns before the dots.
    """
    columns = matrix.shape[1]
    lines = []
    for number, row in enumerate(matrix.tolist()):
        shown = row if columns <= leading + 1 else [*row[:leading], row[-1]]
        cells = [f"{value:.2f}" for value in shown]
        if columns > leading + 1:
            cells.insert(leading, "…")
        lines.append([f"{rows}{number}", *cells])
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))] if lines else []
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
