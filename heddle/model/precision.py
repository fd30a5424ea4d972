"""What a model computes in. Matrices are cast; norms keep their fp32 gains, since their statistics are fp32 anyway."""

import torch

from heddle.checks import Limit
from heddle.errors import HeddleError, did_you_mean
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.nn.block import MATRICES
from heddle.nn.custom import without_custom

NUMBERS = Limit(
    "torch.float32, float64, bfloat16 or float16",
    lambda dtype: dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16),
)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def cast(model: Transformer, precision: str, tables: bool = True) -> Transformer:
    """Cast the matrices of `model` in place and return it.

    Training casts with `tables=False`: a table's gradient is a sum over many tokens, and a sum needs fp32. Prediction casts
    tables too, which changes nothing but the memory: looking a row up and casting it gives the same as the reverse.

    A user's own module is a unit that nobody can cast in parts, and stays in fp32. Where blocks hold nothing else to multiply
    with, they compute in the precision of the tables, and all stays in fp32.

    Args:
        model: the transformer.
        precision: `fp32` or `bf16`.
        tables: whether token tables are cast as well.

    Raises:
        HeddleError: the precision is none of these.
    """
    if precision not in DTYPES:
        near = did_you_mean(precision, DTYPES)
        raise HeddleError(f"precision = {precision!r} is not one of {', '.join(DTYPES)}.{near}")
    if precision != "fp32" and model.first_matrix() is None:
        return model
    token_tables = (model.embedding, model.source_embedding) if tables else ()
    for module in without_custom(model):
        if isinstance(module, MATRICES) or module in token_tables:
            module.to(DTYPES[precision])
    if tables and isinstance(model.head, LanguageHead) and model.head.weight is not None:
        # The head's own table is one, too; the norm beside it is not.
        model.head.weight.data = model.head.weight.data.to(DTYPES[precision])
    return model
