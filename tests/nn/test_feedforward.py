"""Feed-forward layers: shapes, sizes, and each token by itself."""

from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import GatedConfig, MLPConfig
from heddle.nn import Setting
from heddle.nn.block import FEED_FORWARDS


def made(config: Any, dim: int) -> Any:
    return FEED_FORWARDS[type(config)](config, Setting(dim))


def small(kind: str, dim: int = 8) -> nn.Module:
    config = MLPConfig(hidden=12) if kind == "mlp" else GatedConfig(hidden=12)
    return made(config, dim).double()


kinds = pytest.mark.parametrize("kind", ["mlp", "gated"])


@kinds
@pytest.mark.lecture("L0-94", "L1-12")
def test_each_token_alone_is_the_same_to_the_bit(kind: str) -> None:
    """Small whole numbers, so that no order of summing rounds."""
    config = {"mlp": MLPConfig, "gated": GatedConfig}[kind]
    module = made(config(hidden=12, activation="relu"), 8).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-9, 10, parameter.shape))
    z = torch.randint(-9, 10, (5, 8)).double()
    whole = module(z).hidden
    assert whole.any(-1).all()
    for t in range(5):
        assert torch.equal(module(z[t]).hidden, whole[t])


@kinds
@pytest.mark.lecture("L0-95")
def test_a_prefix_gives_the_prefix(kind: str) -> None:
    module = small(kind)
    z = torch.randn(6, 8, dtype=torch.float64)
    whole = module(z).hidden
    for length in range(1, 7):
        torch.testing.assert_close(module(z[:length]).hidden, whole[:length], rtol=0, atol=1e-15)


@kinds
@pytest.mark.lecture("L1-13")
def test_any_number_of_leading_axes(kind: str) -> None:
    module = small(kind)
    x = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    expected = module(x).hidden
    for output, part in (
        (module(x[0]).hidden, expected[0]),
        (module(x[0, 0]).hidden, expected[0, 0]),
        (module(x[0, 0, 0]).hidden, expected[0, 0, 0]),
    ):
        torch.testing.assert_close(output, part, rtol=0, atol=1e-14)


@pytest.mark.lecture("L1-14")
def test_only_the_last_axis_changes() -> None:
    assert made(MLPConfig(hidden=7), 4).up(torch.randn(2, 3, 5, 4)).shape == (2, 3, 5, 7)


@pytest.mark.lecture("L0-71", "L1-17")
@pytest.mark.parametrize(("dim", "hidden"), [(768, 3072), (12288, 49152)])
def test_the_hidden_width_is_four_times_the_width(dim: int, hidden: int) -> None:
    with torch.device("meta"):
        module = made(MLPConfig(), dim)
    assert module.up.weight.shape == (hidden, dim)
    assert module.down.weight.shape == (dim, hidden)
    if dim == 768:
        assert module.up.weight.numel() == module.down.weight.numel() == 2_359_296


@pytest.mark.lecture("L0-72")
def test_the_hidden_width_is_free() -> None:
    def count(config: MLPConfig) -> int:
        return sum(parameter.numel() for parameter in made(config, 16).parameters())

    for hidden in (1, 5, 64):
        wide = count(MLPConfig(hidden=hidden + 1, bias=False))
        assert wide - count(MLPConfig(hidden=hidden, bias=False)) == 2 * 16
        assert made(MLPConfig(hidden=hidden), 16)(torch.randn(2, 16)).hidden.shape == (2, 16)
    assert count(MLPConfig()) == count(MLPConfig(hidden=64))


@pytest.mark.lecture("L1-21", "D-55")
@pytest.mark.parametrize(("dim", "hidden"), [(4096, 11_008), (768, 2048), (48, 256), (96, 256), (97, 512), (769, 2304)])
def test_a_gated_layer_rounds_its_width_up(dim: int, hidden: int) -> None:
    """8/3 of the width, up to a multiple of 256, so that three matrices weigh about as much as two of four times it."""
    with torch.device("meta"):
        module = made(GatedConfig(), dim)
    assert {name: tuple(weight.shape) for name, weight in module.named_parameters()} == {
        "gate.weight": (hidden, dim),
        "up.weight": (hidden, dim),
        "down.weight": (dim, hidden),
    }
    assert hidden % 256 == 0
    assert 0 <= hidden - 8 * dim / 3 < 256


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (MLPConfig(), {"up.weight", "up.bias", "down.weight", "down.bias"}),
        (MLPConfig(bias=False), {"up.weight", "down.weight"}),
        (
            GatedConfig(bias=True),
            {f"{part}.{kind}" for part in ("gate", "up", "down") for kind in ("weight", "bias")},
        ),
    ],
)
def test_biases_are_there_when_asked_for(config: Any, names: set[str]) -> None:
    assert {name for name, _ in made(config, 8).named_parameters()} == names


@pytest.mark.lecture("L1-22")
def test_llamas_letters_are_gate_down_and_up() -> None:
    """w2(silu(w1 x) · w3 x), as Llama's code writes it: w1 is the gate, w3 the way up, w2 the way down."""
    module = made(GatedConfig(hidden=12, activation="silu", bias=False), 8).double()
    w1, w3 = torch.randn(2, 12, 8, dtype=torch.float64)
    w2, x = torch.randn(8, 12, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    module.load_state_dict({"gate.weight": w1, "down.weight": w2, "up.weight": w3})
    expected = (nn.functional.silu(x @ w1.T) * (x @ w3.T)) @ w2.T
    torch.testing.assert_close(module(x).hidden, expected, rtol=0, atol=1e-13)
