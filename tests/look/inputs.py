"""What the tests of this package give to models."""

from typing import Any

from torch import Tensor

from heddle.model import Transformer
from tests.models import tokens_of


def inputs_of(model: Transformer, rows: int = 2, length: int = 9) -> tuple[Tensor, dict[str, Any]]:
    """Tokens, and the other arguments of a model: a source where it reads one."""
    more: dict[str, Any] = {}
    if model.encoder is not None and model.decoder is not None:
        more["source"] = tokens_of(rows, 6, seed=2)
    return tokens_of(rows, length), more
