"""Settings by name: factors on rates, decay and frozen parameters, with torch's SGD as the witness of what each step does."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.account import training_bytes
from heddle.config import sized
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import next_token_batch
from heddle.model import build
from heddle.nn.moe import MoE
from heddle.runs import Trainer, prepare
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.weights import read_state
from tests.refusing import refusal
from tests.running import Begin
from tests.runs.test_resume import train, written
from tests.train.test_optimizer import TINY, batches

EXPERTS = {"kind": "moe", "experts": 4, "active": 2, "bias_rate": 0.01, "expert": {"kind": "gated", "hidden": 8}}
FIRST = {"parameters": "decoder.blocks.0.*", "frozen": True}


def sgd(**settings: Any) -> TrainConfig:
    return TrainConfig.of({"optimizer": "sgd", "clip": 0.0, **settings})


@pytest.mark.parametrize(("kind", "usual"), [("sgd", 1e-4), ("adamw", 0.1), ("muon", 0.1)])
def test_a_weight_decay_of_0_is_none_and_not_the_default(kind: str, usual: float) -> None:
    for settings, expected in (({}, usual), ({"weight_decay": 0}, 0.0), ({"weight_decay": 0.3}, 0.3)):
        optimizer = Optimizer(build(TINY), TrainConfig.of({"optimizer": kind, **settings}), 0.2, "fp32")
        decays = {group["weight_decay"] for each in optimizer.optimizers for group in each.param_groups}
        assert decays == {expected, 0.0}


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"momentum": 0.8, "nesterov": True}], ids=str)
def test_sgd_is_torchs(settings: dict[str, Any]) -> None:
    """Against torch's SGD, neither fused nor by tensor lists, on a plain copy with a plain loss; a row changes two settings."""
    config = sgd(weight_decay=0.01, groups=[{"parameters": "embed*", "rate": 0.5, "weight_decay": 0.3}], **settings)
    ours, plain = build(TINY), build(TINY)
    optimizer, objective = Optimizer(ours, config, 0.2, "fp32"), CrossEntropy(ours)
    named = dict(plain.named_parameters())
    rest = [each for name, each in named.items() if name != "embedding.weight"]
    groups = [
        {"params": [named["embedding.weight"]], "lr": 0.1, "weight_decay": 0.3},
        {"params": [each for each in rest if each.dim() > 1], "lr": 0.2, "weight_decay": 0.01},
        {"params": [each for each in rest if each.dim() == 1], "lr": 0.2, "weight_decay": 0.0},
    ]
    momentum, nesterov = settings.get("momentum", 0.9), settings.get("nesterov", False)
    witness = torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, foreach=False, fused=False)
    for batch in batches(5):
        train_step(objective, optimizer, batch, 1, 1.0, 0.0)
        logits = plain.logits(plain(batch.tokens).hidden)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        witness.step()
        witness.zero_grad()
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=0, atol=2e-6, msg=key)
    assert {key.split("/")[0] for key in optimizer.state()} == ({"momentum_buffer"} if momentum else set())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["adamw", "muon", "sgd"])
def test_frozen_parameters_stay(kind: str, precision: str) -> None:
    """Bit for bit, without a gradient and without a state; the others learn. Rows that come later have the last word."""
    rows = [FIRST, {"parameters": "embedding.weight", "frozen": True}, {"parameters": "*.0.ffn.up*", "frozen": False}]
    config = TrainConfig.of({"optimizer": kind, "weight_decay": 0.5, "groups": rows})
    model = build(TINY)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = Optimizer(model, config, 1e-2, precision)
    objective = CrossEntropy(model)
    for batch in batches(2):
        loss = objective(batch)
        (loss.total / loss.count).backward()
        assert model.embedding.weight.grad is None
        optimizer.collect()
        optimizer.step(1.0, 1.0)
    for name, master in optimizer.masters.items():
        frozen = name == "embedding.weight" or (".blocks.0." in name and "ffn.up" not in name)
        assert torch.equal(master.detach(), before[name]) == frozen, name
        assert any(key.endswith(f"/{name}") for key in optimizer.state()) != frozen, name
        assert (name in optimizer.frozen) == frozen


def test_a_frozen_routers_bias_is_not_balanced() -> None:
    config = TINY.override({"decoder.block.ffn": EXPERTS})
    for rows, moves in (([], True), ([{"parameters": "*.router.*", "frozen": True}], False)):
        model = build(config)
        optimizer = Optimizer(model, sgd(groups=rows), 1e-2, "fp32")
        for batch in batches(1):
            train_step(CrossEntropy(model), optimizer, batch, 1, 1.0, 1.0)
        biases = [module.router.bias for module in model.modules() if isinstance(module, MoE)]
        assert all((bias != 0).any() == moves for bias in biases)


def test_rates_and_decay_of_both_rules() -> None:
    """A factor applies to Muon's rate as to AdamW's; vectors do not decay, whatever a row says of their matrices."""
    rows = [{"parameters": "decoder.blocks.1.*", "rate": 0.25, "weight_decay": 0.75}]
    optimizer = Optimizer(build(TINY), TrainConfig.of({"groups": rows}), 1e-2, "fp32")
    optimizer.step(0.5, 0.0)
    groups = {name: each.param_groups[0] for name, each in optimizer.updaters.items()}
    for block, share, decay in ((0, 1.0, 0.1), (1, 0.25, 0.75)):
        matrix, gain = (groups[f"decoder.blocks.{block}.{name}.weight"] for name in ("mixer.q", "mixer.q_norm"))
        assert (matrix["lr"], matrix["weight_decay"]) == (0.02 * share * 0.5, decay)
        assert (gain["lr"], gain["weight_decay"]) == (1e-2 * share * 0.5, 0.0)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"parameters": "decoder.block.0.*", "rate": 2.0}], "matches no parameter .* Similar names: decoder.blocks.0"),
        ([{"parameters": "*", "frozen": True}], "every parameter is frozen"),
        ([{"parameters": "*norm*", "weight_decay": 0.1}], "matches only vectors, which have no weight decay"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    rows: Any, line: str, config: Callable[..., RunConfig], quick: None, tmp_path: Path
) -> None:
    """Before anything is made, and by the optimizer for those who call it themselves."""
    assert re.search(line, refusal(lambda: prepare(config(groups=rows), tmp_path / "run")))
    assert not (tmp_path / "run").exists()
    assert re.search(line, refusal(lambda: Optimizer(build(TINY), TrainConfig.of({"groups": rows}), 1e-2, "fp32")))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"groups": [{"parameters": "*"}]}, "has no setting"),
        ({"groups": [{"parameters": "*", "frozen": True, "rate": 0.1}]}, "is frozen, so rate and weight_decay"),
        (
            {"groups": [{"parametrs": "*"}]},
            r"unknown key 'train.groups.parametrs' .* Did you mean 'train.groups.parameters'",
        ),
        ({"momentum": 0.5}, "momentum = 0.5 has no effect with optimizer = muon"),
        ({"optimizer": "adamw", "nesterov": True}, "nesterov = true has no effect with optimizer = adamw"),
        ({"optimizer": "adamw", "matrix_learning_rate": 0.1}, "matrix_learning_rate = 0.1 has no effect"),
        ({"optimizer": "sgd", "betas": [0.5, 0.5]}, "betas = .* has no effect with optimizer = sgd"),
        ({"optimizer": "sgd", "nesterov": True, "momentum": 0}, "nesterov = true needs a momentum"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], line: str) -> None:
    assert re.search(line, refusal(lambda: RunConfig.of({"train": settings})))


def test_a_stopped_run_with_groups_ends_alike(begin: Begin, tmp_path: Path) -> None:
    rows = [FIRST, {"parameters": "embedding.weight", "rate": 0.5}]
    settings: dict[str, Any] = {"steps": 6, "evaluate_every": 3, "precision": "bf16", "model": {"depth": 2}}
    run = begin(optimizer="sgd", nesterov=True, groups=rows, **settings)
    stopped = shutil.copytree(run, tmp_path / "stopped")
    train(run)
    train(stopped, 2, 3)
    assert written(stopped) == written(run)
    state = read_state(run / "checkpoints" / "step-6")
    untouched = Trainer(begin("untouched", **settings)).session.optimizer.masters
    for name, value in state.model.items():
        assert torch.equal(value, untouched[name]) == (".blocks.0." in name), name


def test_frozen_parameters_need_less_memory() -> None:
    """By their gradient and their state: 8 bytes a parameter with SGD, 12 with AdamW, and 2 of the copy's gradient in bf16."""
    config = sized(2, vocab_size=41, context=8, dim=16)
    count = sum(each.numel() for name, each in build(config).named_parameters() if ".blocks.0." in name)
    for optimizer, each in (("sgd", 8), ("adamw", 12)):
        whole, part = ({"optimizer": optimizer, "groups": rows} for rows in ([], [FIRST]))
        sizes = [training_bytes(config, 2, "fp32", TrainConfig.of(settings)) for settings in (whole, part)]
        assert sizes[0] - sizes[1] == each * count


def test_a_frozen_table_has_no_gradient_and_the_rest_the_same() -> None:
    batch = next_token_batch(torch.arange(18).view(2, 9).numpy())
    models = [build(TINY) for _ in range(2)]
    models[1].embedding.weight.requires_grad_(False)
    for model in models:
        CrossEntropy(model)(batch).total.backward()
    assert models[1].embedding.weight.grad is None
    pairs = zip(models[0].named_parameters(), models[1].parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for (name, a), b in pairs if name != "embedding.weight")  # type: ignore[arg-type]
