"""Adapters: the same function at the start, Hu et al.'s equation, and merged weights that compute what adapted layers do."""

from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import TransformerConfig, sized
from heddle.config.train import LoRAConfig, TrainConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.groups import freeze
from heddle.model.linear import use_products
from heddle.model.lora import AdaptedLinear, adapt, adapted, find_layers, merge
from heddle.model.roles import role
from heddle.nn.dropout import keep_mask
from heddle.nn.layout import Layout

DECODER = sized(2, vocab_size=31, context=12, dim=16)
ENCODER = sized(1, vocab_size=31, context=12, dim=16, stacks=("encoder",))
BOTH = sized(1, vocab_size=31, context=12, dim=16, stacks=("encoder", "decoder"))
EXPERTS = {"kind": "moe", "experts": 4, "active": 2, "shared": 1, "expert": {"kind": "gated", "hidden": 8}}
MIXED = DECODER.override({"decoder.block.ffn": EXPERTS})
RECURRENT = DECODER.override({"decoder.block.mixer": {"kind": "recurrent", "cell": "gru"}})
MODELS = {
    "decoder": (DECODER, ("*",)),
    "encoder": (ENCODER, ("*.q", "*.v")),
    "both": (BOTH, ("*",)),
    "experts": (MIXED, ("*.mixer.*", "*.shared.*")),
    "recurrent": (RECURRENT, ("*.mixer.*",)),
}
TOKENS, SOURCE = torch.randint(31, (2, 2, 9), generator=torch.Generator().manual_seed(1))


def outputs(model: Transformer) -> Tensor:
    source = SOURCE if len(model.config.stacks()) == 2 else None
    with torch.no_grad():
        return model.logits(model.eval()(TOKENS, source=source).hidden)


def moved(model: Transformer) -> Transformer:
    """Every factor somewhere else: B is no longer 0."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, layer in adapted(model):
            layer.lora_b.normal_(0, 0.1, generator=draw)
    return model


@pytest.fixture(params=sorted(MODELS))
def pair(request: pytest.FixtureRequest) -> tuple[Transformer, LoRAConfig]:
    config, layers = MODELS[request.param]
    return build(config, seed=3), LoRAConfig(rank=3, alpha=5.0, dropout=0.4, layers=layers)


def test_at_first_nothing_changes(pair: tuple[Transformer, LoRAConfig]) -> None:
    """Bit for bit, and no name but those of the adapters is new."""
    model, lora = pair
    before, names = outputs(model), set(model.state_dict())
    adapt(model, lora)
    assert torch.equal(outputs(model), before)
    new = set(model.state_dict()) - names
    assert names < set(model.state_dict())
    assert new == {f"{name}.{each}" for name, _ in adapted(model) for each in ("lora_a", "lora_b")}


def test_merged_is_unmerged(pair: tuple[Transformer, LoRAConfig]) -> None:
    """To 1e-5 of the largest logit; afterwards the model has the names and classes of one that had no adapters."""
    model, lora = pair
    plain, names = outputs(model), list(model.state_dict())
    before = outputs(moved(adapt(model, lora)))
    scale = before[before.isfinite()].abs().max()
    assert (before - plain).nan_to_num().abs().max() > 1e-2 * scale
    merge(model)
    assert (outputs(model) - before).nan_to_num().abs().max() < 1e-5 * scale
    assert list(model.state_dict()) == names
    assert not adapted(model)


def test_it_is_the_papers_equation() -> None:
    """h = W0 x + b + (alpha / r) B A x, in fp64 and in numpy's words; dropout only on the adapter's input, only in training."""
    model = moved(adapt(build(BOTH, seed=4), LoRAConfig(rank=2, alpha=6.0, layers=("encoder.*.up",), dropout=0.5)))
    ((_, layer),) = adapted(model)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    w, b, a, inputs = (each.detach().double().numpy() for each in (layer.weight, layer.lora_b, layer.lora_a, x))
    bias = 0.0 if layer.bias is None else layer.bias.detach().double().numpy()
    layer.eval()
    expected = torch.from_numpy(inputs @ w.T + bias + 3.0 * (inputs @ a.T) @ b.T)
    torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=1e-6)
    layer.train()
    torch.manual_seed(1)
    dropped = layer(x)
    torch.manual_seed(1)
    keep = keep_mask(x, 0.5)
    expected = inputs @ w.T + bias + 3.0 * ((inputs * keep.numpy() * 2.0) @ a.T) @ b.T
    torch.testing.assert_close(dropped.double(), torch.from_numpy(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", ["products", "adapters"])
def test_products_by_onednn_and_packs_are_the_same(first: str) -> None:
    model = build(DECODER, seed=3)
    lora = LoRAConfig(rank=2)
    steps = [lambda: use_products(model, ("forward", "inputs", "weights")), lambda: adapt(model, lora)]
    for step in steps if first == "products" else reversed(steps):
        step()
    moved(model)
    assert all(type(layer) is AdaptedLinear and layer.by_onednn for _, layer in adapted(model))
    by_onednn = outputs(model)
    use_products(model, ())
    torch.testing.assert_close(outputs(model), by_onednn, rtol=1e-5, atol=1e-5)


def test_decoding_with_a_cache_is_one_pass() -> None:
    model = moved(adapt(build(DECODER, seed=3), LoRAConfig())).eval()
    whole = model(TOKENS).hidden
    cache = model.new_cache(2)
    parts = [model(part, cache=cache).hidden for part in TOKENS.split(4, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-5)


def test_only_adapters_and_what_is_said_to_be_trained() -> None:
    settings = {"layers": ["*.mixer.q"], "rank": 2}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"lora"}),
        ({"lora.head": True}, {"lora", "head"}),
        ({"groups": [{"parameters": "*.final_norm.*", "frozen": False}]}, {"lora", "final_norm"}),
        ({"groups": [{"parameters": "*.lora_a", "frozen": True}]}, {"lora_b"}),
    ]
    config = DECODER.override({"head.tied": False})
    for more, kinds in cases:
        train = TrainConfig.of({"lora": settings}).override(more)
        model = adapt(build(config, "meta"), train.lora)
        frozen = freeze(model, train)
        trained = {name for name, each in model.named_parameters() if each.requires_grad}
        assert trained == dict(model.named_parameters()).keys() - frozen
        assert trained == {name for name in model.state_dict() if any(kind in name for kind in kinds)} != set()


def test_factors_are_for_adamw_and_decay() -> None:
    model = adapt(build(DECODER, "meta"), LoRAConfig())
    assert {role(name, each.dim()) for name, each in model.named_parameters() if "lora" in name} == {"table"}
    assert TrainConfig.of({"lora": {}}).optimizer == "adamw"
    assert TrainConfig.of({"lora": {}, "optimizer": "sgd"}).optimizer == "sgd"
    with pytest.raises(HeddleError, match="optimizer = muon does not suit the factors of lora"):
        TrainConfig.of({"lora": {}, "optimizer": "muon"})


def test_seeds_draw_other_factors() -> None:
    first, again, other = (adapt(build(DECODER), LoRAConfig(), seed).state_dict() for seed in (0, 0, 1))
    drawn = [name for name in first if name.endswith("lora_a")]
    assert all(torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name]) for name in drawn)
    bound = max(first[name].abs().max().item() for name in drawn)
    assert 0.9 / 4 < bound <= 1 / 4  # ±1/√D


@pytest.mark.parametrize(
    ("config", "layers", "error"),
    [
        (DECODER, ["*.q", "*.query"], r"layers = '\*\.query' matches no linear layer .* Similar names: decoder\.blocks"),
        (DECODER, ["head.*"], r"matches no linear layer of this model's stacks"),
        (MIXED, ["*.ffn.*"], r"'\*\.ffn\.\*' matches decoder\.blocks\.0\.ffn\.experts, a stack of experts"),
        (MIXED, ["*.experts.up"], r"a stack of experts, which cannot have adapters"),
        (
            RECURRENT.override({"decoder.block.ffn": {"kind": "none"}, "decoder.block.mixer": {"kind": "linear", "taps": 2}}),
            ["*.q"],
            "There are none",
        ),
    ],
)  # fmt: skip
def test_what_has_no_adapters_is_refused(config: TransformerConfig, layers: list[str], error: str) -> None:
    with pytest.raises(HeddleError, match=error):
        adapt(build(config, "meta"), LoRAConfig.of({"layers": layers}))


def test_a_users_own_layers_have_none() -> None:
    config = DECODER.override({"decoder.block.mixer": {"kind": "custom", "target": "tests.models:Own"}})
    assert not any("inner" in name for name in find_layers(build(config, "meta"), ("*",)))
    assert build(config)(TOKENS, Layout.whole(2, 9)).hidden.shape == (2, 9, 16)
