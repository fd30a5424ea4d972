"""The user's own loss function, which replaces the task's loss in training."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.data.batch import Batch
from heddle.errors import HeddleError, article
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype

OwnLoss = Callable[[Tensor, Batch], Tensor]
"""A user's own loss: takes scores Float[B T V], or Float[B C] for classes, and their batch, and returns the SUM of the losses of
the targets, each times its weight in `batch.weights`. heddle divides it by the sum of weights of the step, so that any split of a
batch has the same gradient, and adds the routers' terms. A contrastive task passes vectors instead of scores, Float[B N K E]."""


def scored(model: Transformer, features: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
    """The scores of features by a model's head, V columns, in fp32 or wider."""
    assert model.head is not None
    scores = model.head.scoring(model.embedding.weight).to(features.dtype)
    finished = scores.finish(model.head.product(features, scores.table, scores.bias))
    return finished[..., : scores.vocab_size].to(wide_dtype(features.dtype))


def own_loss(target: str) -> OwnLoss:
    """The function that a run's `loss = "module:function"` names.

    Raises:
        HeddleError: it cannot be imported, or is not callable.
    """
    module, name = target.split(":")
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except Exception as error:
        message = " ".join(str(error).split())
        raise HeddleError(f"loss = {target!r}: {type(error).__name__}: {message}; it must be importable") from error
    if not callable(function):
        raise HeddleError(
            f"loss = {target!r} is {article(type(function).__name__)}, and must be a function of scores and a batch"
        )
    loss: OwnLoss = function
    return loss


def scalar(total: object, own: OwnLoss) -> Float[Tensor, ""]:
    """Check that a user's own loss returned one number, and return it.

    Raises:
        HeddleError: it did not, or the number has no gradient.
    """
    if not isinstance(total, Tensor) or total.dim() or not total.is_floating_point():
        shape = f"a tensor of shape {list(total.shape)}" if isinstance(total, Tensor) else article(type(total).__name__)
        name = getattr(own, "__name__", type(own).__name__)
        raise HeddleError(
            f"the loss {name!r} returned {shape}; it must return one number, the sum over the batch's targets"
        )
    if torch.is_grad_enabled() and not total.requires_grad:
        name = getattr(own, "__name__", type(own).__name__)
        raise HeddleError(f"the loss {name!r} returned a number without a gradient: compute it from the scores")
    return total
