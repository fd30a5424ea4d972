"""A program: torch.compile captures a mixture of experts in one graph, with its loads, its losses and its gradients.

It runs in a process without the shape checks, which cannot be traced (`HEDDLE_CHECKED=""`).
"""

import torch
from torch import Tensor

from heddle.config import MoEConfig
from heddle.nn import Layout, Setting
from heddle.nn.moe import MoE
from tests.graphs import captured


def main() -> None:
    torch.manual_seed(0)
    expert = {"kind": "gated", "hidden": 12, "bias": True}
    config = MoEConfig.of(
        {"experts": 4, "active": 2, "expert": expert, "shared": 1, "shared_gate": True, "balance": 0.1, "z": 0.01}
    )
    moe, layout = MoE(config, Setting(8)), Layout.whole(2, 6)

    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        out, (routing,) = moe(x, layout)
        return out.square().sum() + routing.terms, routing.load

    run, graphs = captured(loss)
    for _ in range(2):  # other numbers, other loads, the same graph
        x = torch.randn(2, 6, 8, requires_grad=True)
        (ours, load), (expected, load2) = run(x), loss(x)
        assert torch.equal(load, load2)
        torch.testing.assert_close(ours, expected)
        inputs = [x, *moe.parameters()]
        for actual, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True):
            torch.testing.assert_close(actual, other)
    assert graphs.count == 1, graphs.count
    whole = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(x)[0], expected)
    again = torch.autograd.grad(whole(x)[0], inputs)
    for actual, other in zip(again, torch.autograd.grad(loss(x)[0], inputs), strict=True):
        torch.testing.assert_close(actual, other)


if __name__ == "__main__":
    main()
