"""A program: how many graphs torch.compile captures of kernels, all of which compute the reference, gradients too."""

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from heddle.nn import KERNELS, Causal, Layout, Mask
from heddle.nn.kernels import fused
from heddle.nn.mask import Window
from heddle.nn.position import Alibi
from tests.graphs import captured

PLAIN, PACKED = Layout.whole(2, 140), Layout.packed([[100, 30], [140]], 140)
CASES: dict[str, tuple[Layout, Any, float | None, Any]] = {
    "causal": (PLAIN, Causal(), None, None),
    "sliding, cap, bias": (PLAIN, Causal() & Window(9), 2.0, Alibi(4)),
    "packed, bias": (PACKED, Causal(), None, Alibi(4)),
    "packed, sliding, sinks": (PACKED, Causal() & Window(9), None, None),
}


def main() -> None:
    counts = {}
    for case, (layout, rule, cap, alibi) in CASES.items():

        def run(
            kernel: Any,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            sinks: Tensor | None = None,
            layout: Layout = layout,
            rule: Any = rule,
            alibi: Any = alibi,
        ) -> Tensor:
            bias = None if alibi is None else alibi(layout, layout)
            lowered = kernel.lower(Mask(rule, layout, layout), bias)
            out: Tensor = kernel(q, k, v, lowered if sinks is None else replace(lowered, sinks=sinks))
            return out

        leaves = [torch.randn(2, heads, 140, 8, requires_grad=True) for heads in (4, 2, 2)]
        leaves += [torch.tensor([1.0, -1.0, 0.0, 3.0], requires_grad=True)] if "sinks" in case else []
        expected = run(KERNELS["reference"](0.3, cap=cap), *leaves)
        weight = torch.randn_like(expected)
        gradients = torch.autograd.grad((expected * weight).sum(), leaves)
        for name in ("blockwise", "plain"):
            kernel = KERNELS[name](0.3, cap=cap)
            compiled, graphs = captured(run)
            actual = compiled(kernel, *leaves)
            for own_gradient, right in zip(
                torch.autograd.grad((actual * weight).sum(), leaves), gradients, strict=True
            ):
                torch.testing.assert_close(own_gradient, right, rtol=1e-5, atol=2e-5)
            counts[f"{name}, {case}"] = graphs.count
        compiled, graphs = captured(run)  # without a gradient `flex` is torch's own, on a CPU too
        kernel = KERNELS["flex"](0.3, cap=cap)
        if "sinks" not in case:  # for which the CPU's has no logsumexp
            kernel.blockwise = None
        actual = compiled(kernel, *(leaf.detach() for leaf in leaves))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        assert (actual[0, :, layout.segment[0] < 0] == 0).all()
        counts[f"torch's flex, {case}"] = graphs.count
    # Where only the layers are compiled, the mask is lowered outside, without blocks; here in a window.
    mask = Mask(Causal() & Window(9), PLAIN, PLAIN)
    compiled, _ = captured(lambda q, k, v, lowered: kernel(q, k, v, lowered))
    kernel = KERNELS["flex"](0.3)
    kernel.blockwise = None
    actual = compiled(*(leaf.detach() for leaf in leaves[:3]), kernel.lower(mask))
    expected = KERNELS["reference"](0.3)(*leaves[:3], KERNELS["reference"].lower(mask))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    check_generated(mask, leaves[:3])
    print(json.dumps(counts))


def check_generated(mask: Mask, leaves: list[Tensor]) -> None:
    """Where a pass is not compiled, a card's kernel is generated: here for a CPU, whose has no gradient; sinks by their graph."""
    q, k, v = (leaf.detach() for leaf in leaves)
    sinks = torch.tensor([1.0, -1.0, 0.0, 3.0])
    kernel, reference = KERNELS["flex"](0.3, cap=2.0), KERNELS["reference"]
    kernel.blockwise = None
    with patch.object(fused, "generates", lambda device: True):
        lowered = kernel.lower(mask)
        actual = kernel(q, k, v, lowered)
        torch.testing.assert_close(
            actual, reference(0.3, cap=2.0)(q, k, v, reference.lower(mask)), rtol=1e-5, atol=1e-5
        )
        compiled, graphs = captured(fused._attention)
        actual = compiled(q, k, v, None, lowered.blocks, 0.3, sinks)
    expected = reference(0.3)(q, k, v, replace(reference.lower(mask), sinks=sinks))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    assert graphs.count == 1


if __name__ == "__main__":
    main()
