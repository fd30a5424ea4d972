"""What a model computes in. Matrices are cast; norms keep their fp32 gains, since their statistics are fp32 anyway."""

import torch
from torch import nn

from heddle.model.transformer import Embedding, Transformer

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
    kinds = (nn.Linear, Embedding) if tables else (nn.Linear,)
    for module in model.modules():
        if isinstance(module, kinds):
            module.to(DTYPES[precision])
    return model
