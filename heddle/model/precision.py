"""The precision that a model computes in. Matrices are cast; norms keep fp32 gains, since their statistics are fp32."""

from collections.abc import Iterator
from contextlib import contextmanager

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

    Training casts with `tables=False`: a table's gradient is a sum over many tokens and needs fp32. Inference casts tables
    too, which only saves memory: looking up a row and casting it commute.

    A user's module stays in fp32. If the only matrices in the blocks are a user's, they compute in the precision of the tables, and
    everything stays in fp32.

    Args:
        model: the transformer.
        precision: `fp32` or `bf16`.
        tables: whether to cast token tables too.

    Raises:
        HeddleError: the precision is unknown.
    """
    if precision not in DTYPES:
        suggestion = did_you_mean(precision, DTYPES)
        raise HeddleError(f"precision = {precision!r} is not one of {', '.join(DTYPES)}.{suggestion}")
    if precision != "fp32" and model.first_matrix() is None:
        return model
    token_tables = (model.embedding, model.source_embedding) if tables else ()
    for module in without_custom(model):
        if isinstance(module, MATRICES) or module in token_tables:
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(DTYPES[precision])
    if tables and isinstance(model.head, LanguageHead) and model.head.weight is not None:
        # The head's own table is a token table too; its norm is not.
        model.head.weight.data = model.head.weight.data.to(DTYPES[precision])
    return model


def use_tf32(on: bool) -> None:
    """From now on, CUDA multiplies fp32 matrices in TF32, several times as fast, or with all bits.

    TF32 has the range of fp32 and 10 bits of mantissa instead of 23. The setting is the process's, as the number of threads is.
    """
    torch.set_float32_matmul_precision("high" if on else "highest")


@contextmanager
def tf32_products(on: bool) -> Iterator[None]:
    """`use_tf32` inside the block."""
    before = torch.get_float32_matmul_precision()
    use_tf32(on)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
