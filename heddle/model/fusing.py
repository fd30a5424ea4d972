"""Projections of the same vectors as one product, for predicting on an accelerator, where a step waits for launches.

The three projections of self-attention become one product, and so do the two of a gated feed-forward. Their weights lie one after
another in memory, and each parameter is a view of its part. So no copy is held, and a weight that changes is used at once. A weight
that no longer lies there, a hook on a projection, or another module in its place ends the fusion of its layer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from heddle.model.linear import ChoosingLinear
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention, split_heads
from heddle.nn.custom import without_custom
from heddle.nn.feedforward import Gated
from heddle.nn.rotation import rotate
from heddle.nn.scope import Scope


class Fused:
    """Mixin for a layer with projections of the same vectors. `train()` makes it the ordinary layer again.

    Attributes:
        projections: their names.
    """

    projections: tuple[str, ...] = ()

    def joint(self, x: Tensor) -> Tensor | None:
        """The outputs of the projections, one after another; None: each must be computed by its own module."""
        modules = [getattr(self, name) for name in self.projections]
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not all(map(_bare_linear, modules)):
            return None
        weight, bias = (_spanning([getattr(module, name) for module in modules]) for name in ("weight", "bias"))
        if weight is None or (bias is None and any(module.bias is not None for module in modules)):
            return None
        return F.linear(x, weight, bias)

    def train(self, mode: bool = True) -> Any:
        """Set the mode; in training mode, become the ordinary layer."""
        super().train(mode)  # type: ignore[misc]
        if mode:
            self.__class__ = ORDINARY[type(self)]  # type: ignore[assignment]
        return self


class FusedAttention(Fused, Attention):
    """Self-attention with one product for queries, keys and values, and without norms one rotation."""

    projections = ("q", "k", "v")

    def project(self, x: Tensor, scope: Scope) -> tuple[Tensor, Tensor, Tensor]:
        joint = self.joint(x) if scope.source is None else None
        if joint is None:
            return super().project(x, scope)
        queries, keys = self.q.out_features, self.k.out_features
        v = split_heads(joint[..., queries + keys :], self.value_dim)
        if all(type(norm) is nn.Identity and _bare(norm) for norm in (self.q_norm, self.k_norm)):
            heads = rotate(split_heads(joint[..., : queries + keys], self.head_dim), scope.rotation)
            q, k = heads.split([queries // self.head_dim, keys // self.head_dim], dim=1)
            return q, k, v
        q = self.heads_of(joint[..., :queries], self.q_norm)
        k = self.heads_of(joint[..., queries : queries + keys], self.k_norm)
        return rotate(q, scope.rotation), rotate(k, scope.rotation), v


class FusedGated(Fused, Gated):
    """A gated feed-forward with one product for `gate` and `up`."""

    projections = ("gate", "up")

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        joint = self.joint(x)
        if joint is None:
            return super().factors(x)
        gate, up = joint.split([self.gate.out_features, self.up.out_features], dim=-1)
        return gate, up


FUSED: dict[type[nn.Module], type[Fused]] = {Attention: FusedAttention, Gated: FusedGated}
ORDINARY: dict[type, type[nn.Module]] = {fused: ordinary for ordinary, fused in FUSED.items()}


def fuse(model: Transformer) -> Transformer:
    """Fuse the projections of a model that predicts on an accelerator, and return the model.

    On a CPU, in training mode and with compiled steps nothing changes. Parameters, their names and checkpoints never do.
    """
    if model.training or model.steps is not None or model.device.type in ("cpu", "meta"):
        return model
    return fuse_layers(model)


def fuse_layers(model: Transformer) -> Transformer:
    """Fuse the projections of a model on any device, and return the model."""
    with torch.inference_mode(False), torch.no_grad():
        for layer in without_custom(model):
            kind = FUSED.get(type(layer), type(layer))
            if issubclass(kind, Fused) and not getattr(layer, "crosses", False):
                _lay_together([getattr(layer, name) for name in kind.projections])
                layer.__class__ = kind  # type: ignore[assignment]
    return model


def _lay_together(modules: Sequence[nn.Module]) -> None:
    """Move the weights of linear layers, and their biases if all have one, one after another in memory."""
    if not all(map(_bare_linear, modules)):
        return
    for name in ("weight", "bias"):
        tensors = [getattr(module, name) for module in modules]
        alike = len({(each.dtype, each.device) for each in tensors if each is not None}) == 1
        if alike and all(map(_whole, tensors)) and len(set(map(id, tensors))) == len(tensors):
            parts = torch.cat(tensors).split([len(each) for each in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.data = part


def _whole(tensor: Tensor | None) -> bool:
    """Whether a tensor has its memory alone, so that no other tensor is a part of the same."""
    if tensor is None or is_traceable_wrapper_subclass(tensor) or tensor.is_inference() or not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _spanning(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """One tensor of all these; None if they do not lie one after another in the same memory."""
    present = [tensor for tensor in tensors if tensor is not None and not is_traceable_wrapper_subclass(tensor)]
    if len(present) < len(tensors):
        return None
    first, start = present[0], present[0].storage_offset()
    memory, stride = first.untyped_storage().data_ptr(), first.stride()
    for tensor in present:
        alike = tensor.dtype == first.dtype and tensor.stride() == stride and tensor.is_contiguous()
        if not alike or tensor.storage_offset() != start or tensor.untyped_storage().data_ptr() != memory:
            return None
        start += tensor.numel()
    return first.detach().as_strided((sum(map(len, present)), *first.shape[1:]), stride)


def _bare_linear(module: nn.Module) -> bool:
    return type(module) in (nn.Linear, ChoosingLinear) and _bare(module)


def _bare(module: nn.Module) -> bool:
    """Whether nothing but the module's own computation happens when it is called."""
    hooked = module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook()
    return not hooked and "forward" not in vars(module)
