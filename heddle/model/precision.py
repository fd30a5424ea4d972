"""What a model computes in. Matrices are cast; norms keep their fp32 gains, since their statistics are fp32 anyway."""

import torch

from heddle.model.head import LanguageHead
from heddle.model.transformer import Embedding, Transformer
from heddle.nn.block import MATRICES

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def cast(model: Transformer, precision: str, tables: bool = True) -> Transformer:
    """Cast the matrices of `model` in place and return it.

    Training casts with `tables=False`: a table's gradient is a sum over many tokens, and a sum needs fp32. Prediction casts
    tables too, which changes nothing but the memory: looking a row up and casting it gives the same as the reverse.

    Args:
        model: the transformer.
        precision: `fp32` or `bf16`.
        tables: whether token tables are cast as well.
    """
    kinds = (*MATRICES, Embedding) if tables else MATRICES
    for module in model.modules():
        if isinstance(module, kinds):
            module.to(DTYPES[precision])
    if tables and isinstance(model.head, LanguageHead) and model.head.weight is not None:
        # The head's own table is one, too; the norm beside it is not.
        model.head.weight.data = model.head.weight.data.to(DTYPES[precision])
    return model
