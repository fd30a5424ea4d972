"""Experts: stacked feed-forwards, and ways to dispatch tokens to them, with equal results (L2-67, L2-74)."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from heddle.config.layers import GatedConfig, MLPConfig
from heddle.nn.activations import ACTIVATIONS, SLOPES, Gating
from heddle.nn.expert_blocks import DOWN, GATE, UP, block_shape, collect, experts_in_blocks, gradient_in_blocks


class Experts(nn.Module):
    """E feed-forwards of one shape with stacked weights: down(act(up(x))), or down(act(gate(x)) · up(x)), bounded as `Gating`.

    `loop` is the definition: it calls each expert on its tokens. `grouped` computes the same with tokens sorted by expert and
    the gradient written by hand, off the CPU in blocks (`heddle.nn.expert_blocks`), and few tokens in inference `at_once`. None
    of them drops a token, and no token's output depends on another token.
    """

    def __init__(
        self,
        experts: int,
        dim: int,
        expert: MLPConfig | GatedConfig,
        dispatch: Literal["grouped", "loop"] = "grouped",
    ) -> None:
        super().__init__()
        hidden, bias = expert.width(dim), expert.bias

        def parameter(fan_in: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(experts, *shape).uniform_(-1 / sqrt(fan_in), 1 / sqrt(fan_in)))

        self.up = parameter(dim, hidden, dim)
        self.down = parameter(hidden, dim, hidden)
        self.gate = parameter(dim, hidden, dim) if isinstance(expert, GatedConfig) else None
        self.up_bias = parameter(dim, hidden) if bias else None
        self.down_bias = parameter(hidden, dim) if bias else None
        self.gate_bias = parameter(dim, hidden) if bias and isinstance(expert, GatedConfig) else None
        self.gating, self.dispatch = Gating.of(expert), dispatch

    def forward(
        self,
        x: Float[Tensor, "n D"],
        gates: Float[Tensor, "n K"],
        choice: Int[Tensor, "n K"],
        load: Int[Tensor, " E"],
    ) -> Float[Tensor, "n D"]:
        """Σ_k gates[t, k] · expert_{choice[t, k]}(x_t); a choice of E means no expert. `load` counts each expert's choices."""
        if self.dispatch == "loop":
            return self._loop(x, gates, choice)
        weights = [tensor for tensor in (self.up, self.down, self.gate) if tensor is not None]
        biases = [tensor for tensor in (self.up_bias, self.down_bias, self.gate_bias) if tensor is not None]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, gates, *weights, *biases)):
            out: Tensor = _Grouped.apply(x, gates, choice, load, self.gating, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
            return out
        if on_a_device(x) and len(x) <= FEW:
            return at_once(x, gates, choice, weights, biases, self.gating)
        return _grouped(x, gates, choice, load, weights, biases, *self.gating, False)[0]

    def _loop(self, x: Tensor, gates: Tensor, choice: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in range(self.up.shape[0]):
            token, slot = (choice == expert).nonzero(as_tuple=True)
            share = self.feed(x[token], expert) * gates[token, slot, None]
            out = out.index_add(0, token, share.to(x.dtype))
        return out

    def feed(self, x: Float[Tensor, "n D"], expert: int) -> Float[Tensor, "n D"]:
        """One expert's output for every row of x."""

        def bias(stacked: Tensor | None) -> Tensor | None:
            return None if stacked is None else stacked[expert]

        up = F.linear(x, self.up[expert], bias(self.up_bias))
        if self.gate is None:
            hidden = ACTIVATIONS[self.gating.activation](up)
        else:
            hidden = self.gating(F.linear(x, self.gate[expert], bias(self.gate_bias)), up)
        return F.linear(hidden, self.down[expert], bias(self.down_bias))


FEW = 64  # tokens of which a product with all experts takes no longer than reading these


def on_a_device(tensor: Tensor) -> bool:
    """Whether the host should not wait for a tensor. Memory is counted on the meta device, for a CPU."""
    return tensor.device.type not in ("cpu", "meta")


def at_once(
    x: Float[Tensor, "n D"],
    gates: Float[Tensor, "n K"],
    choice: Int[Tensor, "n K"],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    gating: Gating,
) -> Float[Tensor, "n D"]:
    """The routed sum of few tokens in batched products, so that a GPU need not say how many tokens each expert has.

    Each pair of token and expert gets a copy of the expert's weights. With more pairs, every expert is applied to every token:
    that reads all weights once, where copies are written and read again.
    """
    tokens, experts = len(x), weights[UP].shape[0]
    nobody = choice == experts
    gates, choice = gates.masked_fill(nobody, 0.0), choice.masked_fill(nobody, 0)
    copies = 3 * choice.numel() <= experts
    rows = (
        x[:, None].expand(-1, choice.shape[1], -1).reshape(-1, 1, x.shape[1]) if copies else x.expand(experts, -1, -1)
    )

    def affine(rows: Tensor, number: int) -> Tensor:
        weight, *bias = (stacked[number] for stacked in (weights, biases) if stacked)
        if copies:
            weight, bias = weight[choice.flatten()], [each[choice.flatten()] for each in bias]
        return torch.baddbmm(bias[0][:, None], rows, weight.mT) if bias else torch.bmm(rows, weight.mT)

    up = affine(rows, UP)
    hidden = gating(affine(rows, GATE), up) if len(weights) > GATE else ACTIVATIONS[gating.activation](up)
    out = affine(hidden, DOWN)
    chosen = out.view(*choice.shape, -1) if copies else out[choice, torch.arange(tokens, device=x.device)[:, None]]
    return torch.bmm(gates[:, None].to(x.dtype), chosen)[:, 0]


def _spans(load: Tensor) -> list[tuple[int, int, int]]:
    """Experts with at least one token, as (expert, start, stop) in the sorted pairs."""
    stops = [0, *load.cumsum(0).tolist()]
    return [(expert, start, stop) for expert, (start, stop) in enumerate(pairwise(stops)) if stop > start]


def _affine(rows: Tensor, expert: int, number: int, weights: list[Tensor], biases: list[Tensor], out: Tensor) -> Tensor:
    weight = weights[number][expert].t()
    return torch.addmm(biases[number][expert], rows, weight, out=out) if biases else torch.mm(rows, weight, out=out)


def _experts(
    x: Tensor,
    gates: Tensor,
    choice: Tensor,
    load: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    activation: str,
    limit: float | None,
    plus_one: bool,
    keep: bool,
) -> list[Tensor]:
    """The routed sum and, for its gradient, the pairs' order, their place in it, their outputs, and the hidden layers before
    the activation. Weights and biases are indexed by `UP`, `DOWN` and `GATE`.
    """
    if on_a_device(x):
        return experts_in_blocks(x, gates, choice, load, weights, biases, Gating(activation, limit, plus_one), keep)
    pairs, hidden, gated, spans = choice.numel(), weights[UP].shape[1], len(weights) > GATE, _spans(load)
    order = choice.flatten().argsort(stable=True)
    token, place = order // choice.shape[1], torch.empty_like(choice)
    place.view(-1)[order] = torch.arange(pairs, device=x.device)
    outputs = x.new_empty(pairs, x.shape[1])
    outputs[spans[-1][2] if spans else 0 :] = 0  # padding's pairs come last and go to no expert
    longest = max((stop - start for _, start, stop in spans), default=0)
    before = x.new_empty(len(weights) - 1, pairs if keep else longest, hidden)
    for expert, start, stop in spans:
        rows = x.index_select(0, token[start:stop])
        inner = before[0, start:stop] if keep else before[0, : stop - start]
        _affine(rows, expert, UP, weights, biases, inner)
        if gated:
            opened = before[1, start:stop] if keep else before[1, : stop - start]
            opened = _affine(rows, expert, GATE, weights, biases, opened)
            seen, factor = Gating(activation, limit, plus_one).factors(opened, inner)
            product = ACTIVATIONS[activation](seen).mul_(factor)
        else:
            product = ACTIVATIONS[activation](inner)
        _affine(product, expert, DOWN, weights, biases, outputs[start:stop])
    return [collect(outputs, place, gates), order, place, outputs, before if keep else before.new_empty(0)]


def _experts_gradient(
    above: Tensor,
    x: Tensor,
    gates: Tensor,
    load: Tensor,
    order: Tensor,
    place: Tensor,
    outputs: Tensor,
    before: Tensor,
    weights: list[Tensor],
    biased: bool,
    activation: str,
    limit: float | None,
    plus_one: bool,
) -> list[Tensor]:
    """Gradients of x, the gates, the weights and the biases.

    The hidden layer after the activation is recomputed, expert by expert, which costs less than saving it.
    """
    if on_a_device(x):
        saved = (x, gates, load, order, place, outputs, before)
        return gradient_in_blocks(above, *saved, weights, biased, Gating(activation, limit, plus_one))
    gated, spans = len(weights) > GATE, _spans(load)
    token, scale = order // gates.shape[1], gates.flatten()[order][:, None]
    x_parts, scale_gradient = torch.empty_like(outputs), gates.new_zeros(order.shape)
    x_parts[spans[-1][2] if spans else 0 :] = 0
    gradients = [torch.empty_like(weight) for weight in weights]
    bias_gradients = [weight.new_empty(weight.shape[:2]) for weight in weights] if biased else []
    for expert in set(range(len(load))) - {expert for expert, _, _ in spans}:
        for gradient in (*gradients, *bias_gradients):
            gradient[expert] = 0
    for expert, start, stop in spans:
        rows, row_gradient = x.index_select(0, token[start:stop]), above.index_select(0, token[start:stop])
        scale_gradient[start:stop] = (row_gradient.to(gates.dtype) * outputs[start:stop]).sum(-1)
        row_gradient = (row_gradient * scale[start:stop]).to(x.dtype)
        slope, inner = row_gradient @ weights[DOWN][expert], before[0, start:stop]
        if gated:
            opened = before[1, start:stop]
            seen, factor = Gating(activation, limit, plus_one).factors(opened, inner)
            acted = ACTIVATIONS[activation](seen)
            product = acted * factor
            steps = [acted.mul_(slope), row_gradient, SLOPES[activation](slope.mul_(factor), seen)]
            if limit is not None:  # beyond a bound the gradient is 0
                steps[UP].mul_(inner.abs() <= limit)
                steps[GATE] = steps[GATE] * (opened <= limit)
        else:
            product = ACTIVATIONS[activation](inner)
            steps = [SLOPES[activation](slope, inner), row_gradient]
        torch.mm(steps[UP], weights[UP][expert], out=x_parts[start:stop])
        if gated:
            x_parts[start:stop].addmm_(steps[GATE], weights[GATE][expert])
        # The inputs of up, down and gate, and the gradients of their outputs.
        for gradient, step, entered in zip(gradients, steps, (rows, product, rows), strict=False):
            torch.mm(step.t(), entered, out=gradient[expert])
        for gradient, step in zip(bias_gradients, steps, strict=False):
            torch.sum(step, 0, out=gradient[expert])
    return [collect(x_parts, place), scale_gradient[place], *gradients, *bias_gradients]


# Registered as torch operators, so that a compiled graph does not look inside: tokens per expert are known only at run time.
_grouped = torch.library.custom_op(
    "heddle::experts",
    _experts,
    mutates_args=(),
    schema="(Tensor x, Tensor gates, Tensor choice, Tensor load, Tensor[] weights, Tensor[] biases, str activation, "
    "float? limit, bool plus_one, bool keep) -> Tensor[]",
)
_grouped_gradient = torch.library.custom_op(
    "heddle::experts_gradient",
    _experts_gradient,
    mutates_args=(),
    schema="(Tensor above, Tensor x, Tensor gates, Tensor load, Tensor order, Tensor place, Tensor outputs, "
    "Tensor before, Tensor[] weights, bool biased, str activation, float? limit, bool plus_one) -> Tensor[]",
)


@_grouped.register_fake
def _(x: Tensor, gates: Tensor, choice: Tensor, load: Tensor, weights: list[Tensor], *arguments: Any) -> list[Tensor]:
    pairs, keep = choice.numel(), arguments[-1]
    count, rows = block_shape(pairs, len(load))
    rows, beyond = (count * rows, 1) if on_a_device(x) else (pairs, 0)
    before = x.new_empty((len(weights) - 1, rows, weights[UP].shape[1]) if keep else 0)
    outputs = x.new_empty(rows + beyond, x.shape[1])
    return [torch.empty_like(x), choice.new_empty(pairs), torch.empty_like(choice), outputs, before]


@_grouped_gradient.register_fake
def _(above: Tensor, x: Tensor, gates: Tensor, *arguments: Any) -> list[Tensor]:
    weights, biased, *_ = arguments[-5:]
    biases = [weight.new_empty(weight.shape[:2]) for weight in weights] if biased else []
    return [torch.empty_like(tensor) for tensor in (x, gates, *weights, *biases)]


class _Grouped(torch.autograd.Function):
    """`heddle::experts` with its gradient.

    Autograd would allocate a whole stack of zeros for each expert's slice of the weights, and scatter rows one by one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gates: Tensor,
        choice: Tensor,
        load: Tensor,
        gating: Gating,
        count: int,
        *parameters: Tensor,
    ) -> Tensor:
        weights, biases = list(parameters[:count]), list(parameters[count:])
        out, *intermediates = _grouped(x, gates, choice, load, weights, biases, *gating, True)
        ctx.save_for_backward(x, gates, load, *intermediates, *weights)
        ctx.biased, ctx.gating = len(biases) > 0, gating
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # read once: gradient checkpointing allows a single access
        saved, weights = tensors[:7], list(tensors[7:])
        x, gates, *parameters = _grouped_gradient(above, *saved, weights, ctx.biased, *ctx.gating)
        return x, gates, None, None, None, None, *parameters
