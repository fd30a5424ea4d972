"""Where kernels and masks are tried: pairs of layouts, rules, and attention written out as its definition says it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heddle.nn import Cache, Causal, Everything, Layout, Mask
from heddle.nn.kernels import Kernel
from heddle.nn.mask import Rule, Window
from heddle.nn.state import ROUND

Place = tuple[Layout, Layout]
RULES: dict[str, Rule] = {
    "causal": Causal(),
    "open": Everything(),
    "sliding": Causal() & Window(4),
    "window": Window(4),
}
SCALE = 0.4


def called(*calls: tuple[int, ...], multiple: int = ROUND) -> Place:
    """Queries and keys of the last of these calls to a cache."""
    cache = Cache([], len(calls[0]), multiple=multiple)
    queries = [cache.advance(counts) for counts in calls][-1]
    assert cache.keys is not None
    return queries, cache.keys[None]


def with_itself(layout: Layout) -> Place:
    """What attends to itself."""
    return layout, layout


def plain_mask(rows: int, length: int, rule: Rule | None = None) -> Mask:
    """The mask of whole sequences, causal unless a rule is named."""
    return Mask(rule or Causal(), *with_itself(Layout.whole(rows, length)))


def outcome(
    kernel: Kernel, mask: Mask, tensors: Sequence[Tensor], weight: Tensor, sinks: Tensor | None = None
) -> list[Tensor]:
    """Output and gradients of q, k, v and, if there are any, of a bias and of sinks."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    lowered = kernel.lower(mask, *leaves[3:])
    if sinks is not None:
        leaves.append(sinks.detach().requires_grad_())
        lowered = replace(lowered, sinks=leaves[-1])
    output = kernel(*leaves[:3], lowered)
    assert output.dtype == tensors[0].dtype
    return [output.detach(), *torch.autograd.grad((output * weight.to(output.dtype)).sum(), leaves)]


def definition(
    mask: Mask, tensors: Sequence[Tensor], weight: Tensor, cap: float | None = None, sinks: Tensor | None = None
) -> dict[str, Tensor]:
    """Scale, cap, bias, mask, and a sum for each head, whose sink adds to the whole; its gradients weighted by `weight`."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in tensors]
    q, k, v, *bias = leaves
    names = ["dq", "dk", "dv", "dbias"][: len(leaves)]
    if sinks is not None:
        leaves.append(sinks.detach().double().requires_grad_())
        names.append("dsinks")
    allowed = mask.dense().expand(q.shape[0], 1, q.shape[2], k.shape[2])
    group = q.shape[1] // k.shape[1]
    k, v = (each[:, [head // group for head in range(q.shape[1])]] for each in (k, v))
    scores = SCALE * torch.einsum("bhqd,bhkd->bhqk", q, k)
    scores = scores if cap is None else cap * (scores / cap).tanh()
    scores = scores + bias[0] if bias else scores
    # exp of the score where the key is allowed, 0 elsewhere; scores are small enough not to need a maximum.
    power = scores.exp() * allowed
    total = power.sum(-1, keepdim=True)
    total = total if sinks is None else total + leaves[-1].exp()[:, None, None]
    weights = power / torch.where(total == 0, 1.0, total)
    output = torch.einsum("bhqk,bhkd->bhqd", weights, v)
    gradients = torch.autograd.grad((output * weight).sum(), leaves)
    values = {"output": output, **dict(zip(names, gradients, strict=True))}
    taps = {"scores": scores.masked_fill(~allowed, -torch.inf), "weights": weights}
    return {name: tensor.detach() for name, tensor in (values | taps).items()}


class Sizes(TorchDispatchMode):
    """Records every operation and the size of the largest tensor of real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        self.operations.append(str(function))
        real = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.largest = max([self.largest, *(leaf.numel() for leaf in real)])
        return result
