"""The lectures' closed forms, for comparison only: the counts come from the built model."""

from dataclasses import dataclass

from heddle.display import displayed


@displayed()
@dataclass(frozen=True)
class Line:
    """One line of a lecture's sum, with the built model's count of the same thing.

    Attributes:
        name: what is counted.
        formula: the closed form, as text.
        value: the closed form with this model's numbers.
        walked: the count of the built model.
    """

    name: str
    formula: str
    value: int
    walked: int

    @property
    def difference(self) -> int:
        """Walked minus closed form; 0 if the formula describes this model."""
        return self.walked - self.value


def rule(depth: int, dim: int) -> int:
    """12Ld²: all blocks, if they have four d × d projections and an ungated MLP of width 4d (L1-50, L1-52, D-19)."""
    return 12 * depth * dim**2


def layer_flops(length: int, dim: int) -> dict[str, tuple[str, int]]:
    """FLOPs of one layer over `length` tokens, a multiply and an add counting as two: part to (formula, value) (C-01 … C-04)."""
    return {
        "projections": ("8nd²", 8 * length * dim**2),
        "scores": ("2n²d", 2 * length**2 * dim),
        "weighted sum": ("2n²d", 2 * length**2 * dim),
        "feed-forward": ("16nd²", 16 * length * dim**2),
    }


def quadratic_share(length: int, dim: int) -> float:
    """n / (6d + n), the share of a layer's FLOPs that is quadratic in the length; one half at n = 6d (C-06)."""
    return length / (6 * dim + length)


def score_bytes(length: int, heads: int, batch: int = 1, width: int = 4) -> int:
    """B·H·n²·bytes: all scores of one layer, held at once (C-08)."""
    return batch * heads * length**2 * width


def flash_bytes(length: int, dim: int, heads: int, batch: int = 1, width: int = 4) -> int:
    """B·(n·d·bytes + 2·H·n·4): the output, and a running maximum and sum in fp32 for every row of scores (C-09)."""
    return batch * (length * dim * width + 2 * heads * length * 4)


def causal_share(length: int, block: int) -> float:
    """(n + b) / 2n, the share of the full square that is computed when whole blocks above the diagonal are skipped (C-14)."""
    return (length + block) / (2 * length)


def prefix_rows(length: int) -> tuple[int, int]:
    """Rows of tokens for one prediction after each of T prefixes: T in one pass, T(T + 1)/2 separately (C-13, L0-96)."""
    return length, length * (length + 1) // 2
