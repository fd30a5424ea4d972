"""Checking that a model keeps the documents of a row apart."""

import torch

from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.custom import CustomMixer
from heddle.nn.layout import Layout

# How far a document's vectors may change with its neighbours, relative to the largest; above the rounding of bf16.
TOLERANCE = 1e-2


@torch.no_grad()
def check_isolation(model: Transformer, layout: str, length: int) -> None:
    """Refuse a model whose hidden vectors of a document change with the rest of the row.

    Only models with a user's own mixer are tested: heddle's mixers keep documents apart.

    Args:
        model: the model to train.
        layout: how its rows are made, `documents` or `pack`.
        length: tokens per row.

    Raises:
        HeddleError: they do.
    """
    if not any(isinstance(each, CustomMixer) for each in model.modules()):
        return
    size = max(length // 2, 1)
    rows = Layout.packed([[length - size, size]], length) if layout == "pack" else Layout.padded([size], length)
    document = slice(length - size, length) if layout == "pack" else slice(size)
    ids = torch.arange(length)[None] % model.config.vocab_size
    changed_ids = (ids + 1) % model.config.vocab_size
    changed_ids[:, document] = ids[:, document]
    training = model.training
    model.eval()
    hidden, changed_hidden = (
        model(each.to(model.device), rows.to(model.device)).hidden[:, document].float() for each in (ids, changed_ids)
    )
    model.train(training)
    if (hidden - changed_hidden).abs().max() > TOLERANCE * hidden.abs().max():
        raise HeddleError(
            f"layout = {layout} needs mixers that keep documents and padding apart, but in this model a token changes with those "
            "of another segment: consult layout.segment in your mixer, or set layout=concatenate"
        )
