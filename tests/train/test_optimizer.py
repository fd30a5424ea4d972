"""Who turns which parameter, torch's own optimizers as witnesses, and state that comes back bit for bit."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.config import TransformerConfig, preset, sized
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch, next_token_batch
from heddle.model import Transformer, build
from heddle.model.roles import DECAYED, role
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.train.muon import Muon

TINY = sized(2, vocab_size=41, context=8, dim=16)
SMALLER = {"vocab_size": 41, "dim": 16, "context": 8, "decoder.depth": 2, "decoder.block.mixer.heads": 2}
MODELS = {
    "sized": TINY,
    "gpt2": preset("gpt2-small").override(SMALLER),
    "untied": preset("nanogpt").override({**SMALLER, "head.tied": False}),
    "biases": TINY.override({"decoder.block.mixer.bias": True, "decoder.block.ffn.bias": True}),
    "post": TINY.override({"decoder.block.placement": "post", "decoder.block.norm": {"kind": "layer"}}),
}


def batches(count: int) -> Iterator[Batch]:
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield next_token_batch(draw.integers(0, 41, (4, 9)))


def states(model: Transformer, optimizer: Optimizer) -> dict[str, Tensor]:
    masters = {f"master/{name}": master.detach() for name, master in optimizer.masters.items()}
    return {key: value.clone() for key, value in {**model.state_dict(), **masters, **optimizer.state()}.items()}


@pytest.mark.parametrize("config", list(MODELS.values()), ids=list(MODELS))
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_has_its_role(kind: str, config: TransformerConfig) -> None:
    """Matrices of blocks go to Muon if it is asked for; tables and matrices decay, vectors do not; none is left out."""
    model = build(config)
    optimizer = Optimizer(model, TrainConfig(optimizer=kind, weight_decay=0.25), 1e-3, "fp32")
    turned: dict[str, tuple[str, float]] = {}
    groups = [(type(inner).__name__, group) for inner in optimizer.optimizers for group in inner.param_groups]
    for which, group in groups:
        for parameter in group["params"]:
            turned[optimizer.names[id(parameter)]] = (which, group["weight_decay"])
    parameters = dict(model.named_parameters())
    assert turned.keys() == parameters.keys()
    assert sum(len(group["params"]) for _, group in groups) == len(turned)
    for name, parameter in parameters.items():
        table = name in ("embedding.weight", "head.weight") or "positions" in name
        expected = "table" if table else "matrix" if parameter.dim() == 2 else "vector"
        assert role(name, parameter.dim()) == expected, name
        assert (turned[name][0] == "Muon") == (kind == "muon" and expected == "matrix"), name
        assert (turned[name][1] > 0) == (expected in DECAYED), name
    assert {role(name, parameter.dim()) for name, parameter in parameters.items()} == {"table", "matrix", "vector"}


def test_a_router_belongs_to_adamw() -> None:
    """It is a table of experts: its first step is AdamW's, -rate · g / |g| after the decay, in each number by itself."""
    experts = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "gated", "hidden": 8}}
    model = build(TINY.override({"decoder.block.ffn": experts}))
    routers = {name: each for name, each in model.named_parameters() if name.endswith("router.weight")}
    assert len(routers) == 2
    optimizer = Optimizer(model, TrainConfig(optimizer="muon", weight_decay=0.5), 1e-2, "fp32")
    draw, expected = np.random.default_rng(0), {}
    for name, parameter in routers.items():
        gradient = draw.normal(size=tuple(parameter.shape)).astype(np.float32)
        expected[name] = parameter.detach().double().numpy() * (1 - 1e-2 * 0.5) - 1e-2 * np.sign(gradient)
        parameter.grad = torch.from_numpy(gradient)
    optimizer.step(1.0, 0.0)
    for name, parameter in routers.items():
        np.testing.assert_allclose(parameter.detach().numpy(), expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["sized", "biases"])
def test_adamw_is_torchs(name: str) -> None:
    """Against torch's AdamW, unfused, on a plain copy with a plain loss."""
    train = TrainConfig(optimizer="adamw", weight_decay=0.1, betas=(0.8, 0.9), clip=0.5)
    ours, plain = build(MODELS[name]), build(MODELS[name])
    optimizer, objective = Optimizer(ours, train, 1e-2, "fp32"), CrossEntropy(ours)
    decayed = [parameter for parameter in plain.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in plain.parameters() if parameter.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    witness = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), eps=1e-10, foreach=False, fused=False)
    for step, batch in enumerate(batches(5)):
        factor = 1 - step / 10
        train_step(objective, optimizer, batch, 1, factor, train.clip)
        logits = plain.logits(plain(batch.tokens).hidden)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        for group in witness.param_groups:
            group["lr"] = 1e-2 * factor
        witness.step()
        witness.zero_grad()
    start = build(MODELS[name]).state_dict()
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=0, atol=2e-6, msg=key)
        assert (value - start[key]).abs().max() > 1e-3, key


def test_muon_updates_matrices_at_its_own_rate() -> None:
    """Muon's rate, and the decay of all matrices."""
    train = TrainConfig(optimizer="muon", matrix_learning_rate=0.05, weight_decay=0.2)
    model = build(TINY)
    optimizer = Optimizer(model, train, 1e-2, "fp32")
    copies = {
        n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if role(n, p.dim()) == "matrix"
    }
    witness = Muon(copies.values(), lr=0.05, weight_decay=0.2)
    for number in range(3):
        draw = torch.Generator().manual_seed(number)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
            if name in copies:
                copies[name].grad = parameter.grad.clone()
        optimizer.step(1.0, 0.0)
        witness.step()
    for name, copy in copies.items():
        assert torch.equal(model.state_dict()[name], copy.detach()), name


def test_weight_decay_alone_pulls_tables_and_matrices() -> None:
    model = build(TINY.override({"decoder.block.ffn.bias": True}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = Optimizer(model, TrainConfig(optimizer="adamw", weight_decay=0.5), 0.1, "fp32")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(1.0, 0.0)
    for parameter in model.parameters():
        expected = 0.95 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, expected))


def test_the_factor_scales_every_rate() -> None:
    optimizer = Optimizer(build(TINY), TrainConfig(matrix_learning_rate=0.04), 1e-2, "fp32")
    for factor in (0.5, 0.25, 1.0):  # from the highest, not from the last
        optimizer.step(factor, 0.0)
        rates = {type(inner).__name__: inner.param_groups[0]["lr"] for inner in optimizer.optimizers}
        assert rates == {"Muon": 0.04 * factor, "AdamW": 1e-2 * factor}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_comes_back(kind: str, precision: str) -> None:
    """Three steps, the state moved over to a new model, two more: bit for bit as five."""
    train = TrainConfig(optimizer=kind)
    whole, first = build(TINY), build(TINY)
    through, before = Optimizer(whole, train, 1e-2, precision), Optimizer(first, train, 1e-2, precision)
    examples = list(batches(5))
    for batch in examples:
        train_step(CrossEntropy(whole), through, batch, 1, 1.0, 1.0)
    for batch in examples[:3]:
        train_step(CrossEntropy(first), before, batch, 1, 1.0, 1.0)
    second = build(TINY, seed=9)
    second.load_state_dict({name: master.detach() for name, master in before.masters.items()})
    after = Optimizer(second, train, 1e-2, precision)
    after.load_state({name: value.clone() for name, value in before.state().items()})
    for batch in examples[3:]:
        train_step(CrossEntropy(second), after, batch, 1, 1.0, 1.0)
    expected, actual = states(whole, through), states(second, after)
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        assert torch.equal(actual[key], value), key
        assert value.dtype == actual[key].dtype
    assert any(key.startswith("momentum_buffer/") for key in actual) == (kind == "muon")


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_state_comes_back_where_torch_has_it(kind: str, fused: bool) -> None:
    """Moments are on the parameters' device, and the count of steps too if a fused kernel updates it; it refuses others."""
    train = TrainConfig(optimizer=kind, momentum=0.9)
    model = build(TINY)
    before = Optimizer(model, train, 1e-2, "fp32")
    for batch in batches(1):
        train_step(CrossEntropy(model), before, batch, 1, 1.0, 1.0)
    after = Optimizer(build(TINY, device="meta"), train, 1e-2, "fp32")
    for each in after.optimizers:
        each.param_groups[0]["fused"] = fused and not isinstance(each, Muon)
    after.load_state(before.state())
    restored = [pair for each in after.optimizers for state in each.state.values() for pair in state.items()]
    assert len(restored) == len(before.state()) > 0
    for what, value in restored:
        assert value.device.type == ("cpu" if what == "step" and not fused else "meta"), what
