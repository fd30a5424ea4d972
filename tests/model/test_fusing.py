"""Fused projections: they compute the same, hold no copies, and end where a projection is changed, watched or trained."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.account.walk import stated
from heddle.config.train import LoRAConfig
from heddle.model import Transformer, build
from heddle.model.fusing import Fused, FusedAttention, FusedGated, fuse, fuse_layers
from heddle.model.lora import adapt
from heddle.nn.attention import Attention
from heddle.nn.feedforward import Gated
from heddle.weights import load, save
from tests.models import EVERY, VOCABULARY, config_of

MANY = [config.override({"initial": {"std": 0.3, "scale_residual": False}}) for config in EVERY]


def made(dtype: torch.dtype = torch.float64, **more: Any) -> Transformer:
    config = config_of(dim=32, kv_heads=2, ffn="gated", relative={"kind": "rotary"}, **more)
    return build(config.override({"initial": {"std": 0.3, "scale_residual": False}}), seed=3, dtype=dtype).eval()


@torch.inference_mode()
def hidden(model: Transformer) -> Tensor:
    tokens = torch.arange(14).view(2, 7) % VOCABULARY
    source = None if model.encoder is None or model.decoder is None else tokens.flip(1)
    return model(tokens, source=source).hidden


def fused(model: nn.Module) -> list[Fused]:
    """The layers whose projections are one product now."""
    layers = [module for module in model.modules() if isinstance(module, Fused)]
    with torch.inference_mode():
        inputs = [getattr(layer, layer.projections[0]) for layer in layers]
        return [
            layer
            for layer, first in zip(layers, inputs, strict=True)
            if layer.joint(torch.zeros(1, 1, first.in_features, dtype=first.weight.dtype)) is not None
        ]


def test_fused_is_unfused() -> None:
    kinds = set()
    for config in MANY:
        model = build(config, seed=1, dtype=torch.float64).eval()
        expected = hidden(model)
        fuse_layers(model)
        kinds |= {type(layer) for layer in fused(model)}
        torch.testing.assert_close(hidden(model), expected, atol=1e-12, rtol=1e-12)
    assert kinds == {FusedAttention, FusedGated}


def test_a_cache_gets_the_same_keys_and_values() -> None:
    tokens = torch.tensor([[1, 5, 2, 8], [7, 3, 3, 9]])
    for model in (made(), made(qk_norm={"kind": "rms"}), made(window=3)):
        with torch.inference_mode():
            expected = model(tokens).hidden
            fuse_layers(model)
            cache, steps = model.new_cache(2), []
            for step in range(4):
                steps.append(model(tokens[:, step : step + 1], cache.advance([1, 1], model.device), cache=cache).hidden)
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-12, rtol=1e-12)


def test_layers_are_fused_without_copies() -> None:
    model = fuse_layers(made())
    layers = fused(model)
    assert len(layers) == 2 * len(model.decoder.blocks) > 0
    for layer in layers:
        weights = [getattr(layer, name).weight for name in layer.projections]
        memory = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in weights}
        assert list(memory.values()) == [sum(each.nbytes for each in weights)]
    addresses = [each.data_ptr() for each in model.parameters()]
    fuse_layers(model)
    assert [each.data_ptr() for each in model.parameters()] == addresses


def test_nothing_that_is_named_or_saved_changes(tmp_path: Path) -> None:
    model = made(torch.float32)
    parameters, counted = dict(model.named_parameters()), stated(model, 1, 4)
    save(model, tmp_path / "plain")
    fuse_layers(model)
    save(model, tmp_path / "fused")
    assert all(same is parameters[name] for name, same in model.named_parameters())
    assert stated(model, 1, 4) == counted
    for file in sorted((tmp_path / "plain").rglob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "fused" / file.relative_to(tmp_path / "plain")).read_bytes()
    assert torch.equal(hidden(load(tmp_path / "fused", "cpu")[0].eval()), hidden(made(torch.float32)))


def changed_in_place(model: Transformer) -> None:
    with torch.no_grad():
        model.decoder.blocks[0].mixer.k.weight.mul_(-1.5)


def loaded(model: Transformer, assign: bool = False) -> None:
    model.load_state_dict({name: tensor * 1.5 for name, tensor in model.state_dict().items()}, assign=assign)


def with_other_memory(model: Transformer) -> None:
    model.decoder.blocks[0].mixer.v.weight.data = model.decoder.blocks[0].mixer.v.weight.data * 2


def with_another_parameter(model: Transformer) -> None:
    up = model.decoder.blocks[0].ffn.up
    up.weight = nn.Parameter(up.weight.detach() * 2)


CHANGES: list[Callable[[Transformer], object]] = [
    changed_in_place,
    loaded,
    lambda model: loaded(model, assign=True),
    with_other_memory,
    with_another_parameter,
    lambda model: adapt(model, LoRAConfig(rank=2)),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_changed_weight_is_used(number: int) -> None:
    plain, model = made(), fuse_layers(made())
    before = hidden(model)
    for each in (plain, model):
        torch.manual_seed(0)
        CHANGES[number](each)
    torch.testing.assert_close(hidden(model), hidden(plain), atol=1e-12, rtol=1e-12)
    assert number == 5 or not torch.allclose(hidden(model), before)  # a new adapter adds 0


def test_a_copy_and_another_precision() -> None:
    model = fuse_layers(made())
    torch.testing.assert_close(hidden(copy.deepcopy(model)), hidden(made()), atol=1e-12, rtol=1e-12)
    narrow = fuse_layers(model.to(torch.float32))
    assert fused(narrow)
    torch.testing.assert_close(hidden(narrow), hidden(made().to(torch.float32)), atol=1e-4, rtol=1e-4)


def test_what_wraps_a_projection_is_called() -> None:
    model, calls = fuse_layers(made()), list[str]()
    block = model.decoder.blocks[0]
    handles = [
        block.mixer.q.register_forward_hook(lambda *call: calls.append("q")),
        block.ffn.up.register_forward_pre_hook(lambda *call: calls.append("up")),
        block.mixer.k_norm.register_forward_hook(lambda *call: calls.append("k_norm")),
    ]
    hidden(model)
    assert calls == ["q", "k_norm", "up"]
    handles[0].remove()
    hidden(model)
    assert calls[3:] == ["k_norm", "up"]
    assert len(fused(model)) == 2 * len(model.decoder.blocks) - 1


def test_training_undoes_it() -> None:
    plain, model = made(), fuse_layers(made())
    for each in (plain, model):
        each.train()
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(torch.arange(5)[None]).hidden.square().sum().backward()
            optimizer.step()
    assert {type(block.mixer) for block in model.decoder.blocks} == {Attention}
    assert {type(block.ffn) for block in model.decoder.blocks} == {Gated}
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), model.parameters(), strict=True))
    torch.testing.assert_close(hidden(fuse_layers(model.eval())), hidden(plain.eval()), atol=1e-12, rtol=1e-12)


def test_a_pass_with_gradients_reaches_each_parameter() -> None:
    model = fuse_layers(made())
    model(torch.arange(5)[None]).hidden.sum().backward()
    assert all(block.mixer.k.weight.grad is not None for block in model.decoder.blocks)


def test_a_cpu_and_training_stay_as_they_are() -> None:
    assert not fused(fuse(made()))
    assert not fused(fuse(made().train()))
