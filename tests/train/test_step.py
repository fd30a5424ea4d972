"""One step: the loss over the whole batch, the same gradient however it is cut, clipping, and masters in fp32."""

from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heddle.config import TransformerConfig, sized
from heddle.config.train import TrainConfig
from heddle.data.batch import IGNORED, Batch, next_token_batch
from heddle.errors import HeddleError
from heddle.model import build
from heddle.nn.numeric import on_host
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from heddle.train import optimizer as optimizer_module
from heddle.train.copies import at_once

CONFIG = sized(2, vocab_size=41, context=8, dim=16)
STILL = TrainConfig(optimizer="adamw", learning_rate=1e-30, weight_decay=0.0, clip=0.0)


def uneven(rows: int = 4) -> Batch:
    """A batch in which the first row has one target, the second none, the others all, with different weights."""
    batch = next_token_batch(np.random.default_rng(0).integers(0, 41, (rows, 9)))
    weights = torch.rand(rows, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    weights[0, 1:] = 0
    weights[1] = 0
    return replace(batch, weights=weights, targets=batch.targets.masked_fill(weights == 0, IGNORED))


def ready(config: TransformerConfig = CONFIG, train: TrainConfig = STILL, precision: str = "fp32") -> Any:
    model = build(config)
    return model, CrossEntropy(model), Optimizer(model, train, train.learning_rate or 1e-3, precision)


def gradient_of(accumulate: int, precision: str = "fp32") -> dict[str, Tensor]:
    """The gradient that a step would use: the optimizer is kept from turning anything."""
    model, objective, optimizer = ready(precision=precision)
    optimizer.update = lambda factor, clip: None
    train_step(objective, optimizer, uneven(), accumulate, 1.0, 0.0)
    assert optimizer.masters.keys() == dict(model.named_parameters()).keys()
    return {name: master.grad for name, master in optimizer.masters.items()}


@pytest.mark.lecture("L1-24")
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_the_loss_is_the_mean_over_all_targets(accumulate: int) -> None:
    model, objective, optimizer = ready()
    batch = uneven()
    with torch.no_grad():
        chances = model.logits(model(batch.tokens).hidden).log_softmax(-1)
        surprise = -chances.gather(2, batch.targets.clamp(min=0)[:, :, None])[:, :, 0]
        mean = (surprise * batch.weights).sum() / batch.weights.sum()
    loss, norm = train_step(objective, optimizer, batch, accumulate, 1.0, 0.0)
    assert loss == pytest.approx(mean.item(), rel=1e-6)
    assert norm > 0


@pytest.mark.lecture("L1-72")
@pytest.mark.parametrize("accumulate", [2, 4])
def test_micro_batches_change_nothing(accumulate: int) -> None:
    """Not even where one of them has a single target and another none."""
    whole, cut = gradient_of(1), gradient_of(accumulate)
    for name, gradient in whole.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(cut[name], gradient, rtol=0, atol=1e-6 * gradient.abs().max().item(), msg=name)


def test_micro_batches_are_added_up_in_fp32() -> None:
    """In bf16 the gradients of micro-batches are rounded once each, not once more with every addition."""
    whole, cut = gradient_of(1, "bf16"), gradient_of(4, "bf16")
    for name, gradient in cut.items():
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, whole[name], rtol=0.02, atol=0.02 * whole[name].abs().max().item())


def test_gradients_are_cast_together_off_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = gradient_of(2, "bf16")
    monkeypatch.setattr(optimizer_module, "at_once", lambda pairs: [pairs[:3], pairs[3:]])
    for name, gradient in gradient_of(2, "bf16").items():
        assert torch.equal(gradient, alone[name]), name
    monkeypatch.undo()
    sizes = [3, 1 << 24, 4, 5, (1 << 24) - 9, 1]
    for device, parts in (("cpu", [[size] for size in sizes]), ("meta", [[3], sizes[1:2], sizes[2:5], [1]])):
        pairs = [(nn.Parameter(torch.empty(size, device=device)),) * 2 for size in sizes]
        assert [[master.numel() for _, master in part] for part in at_once(pairs)] == parts


@pytest.mark.parametrize("clip", [1e-3, 1e3, 0.0])
def test_clipping(clip: float) -> None:
    """AdamW's first moment after one step is (1 - beta1) times the gradient it saw."""
    _, objective, optimizer = ready()
    _, norm = train_step(objective, optimizer, uneven(), 1, 1.0, clip)
    seen = torch.cat([value.flatten() for name, value in optimizer.state().items() if name.startswith("exp_avg/")])
    expected = min(norm, clip) if clip else norm
    assert seen.norm().item() / 0.1 == pytest.approx(expected, rel=1e-4)


def test_the_norm_is_of_the_whole_gradient() -> None:
    _, objective, optimizer = ready()
    _, norm = train_step(objective, optimizer, uneven(), 1, 1.0, 1e-3)
    assert norm == pytest.approx(torch.cat([g.flatten() for g in gradient_of(1).values()]).norm().item(), rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_what_routers_add_is_minimised_and_not_reported(accumulate: int) -> None:
    """With targets that weigh next to nothing beside them, the router's gradient is that of the terms alone."""
    experts = {
        "kind": "moe",
        "experts": 4,
        "active": 2,
        "balance": 1e6,
        "z": 1e6,
        "expert": {"kind": "mlp", "hidden": 4},
    }
    model, objective, optimizer = ready(CONFIG.override({"decoder.depth": 1, "decoder.block.ffn": experts}))
    router, batch = model.decoder.blocks[0].ffn.router, uneven()
    with torch.no_grad():
        loss = objective(batch)
    _, routings = model(batch.tokens, batch.layout)
    (expected,) = torch.autograd.grad(routings[0].terms / batch.weights.sum(), router.weight)
    optimizer.update = lambda factor, clip: None
    mean, _ = train_step(objective, optimizer, batch, accumulate, 1.0, 0.0)
    assert mean == pytest.approx((loss.total / loss.count).item(), rel=1e-6)
    torch.testing.assert_close(router.weight.grad, expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_experts_are_balanced_by_the_load_of_the_whole_batch(accumulate: int) -> None:
    """The bias moves by the sign of (mean load - load), with loads counted by hand over every micro-batch."""
    experts = {"kind": "moe", "experts": 4, "active": 1, "bias_rate": 0.125, "expert": {"kind": "mlp", "hidden": 4}}
    config = CONFIG.override({"decoder.depth": 1, "decoder.block.ffn": experts})
    model, objective, optimizer = ready(config)
    router, batch, choices = model.decoder.blocks[0].ffn.router, uneven(), []
    hook = router.register_forward_hook(lambda module, inputs, out: choices.append(out[1].numpy()))
    with torch.no_grad():
        objective(batch)
    hook.remove()
    counts = [np.bincount(row.flatten(), minlength=4) for row in choices[0]]
    expected, of_the_last = (0.125 * np.sign(2 * rows - load) for rows, load in ((4, sum(counts)), (1, counts[-1])))
    assert expected.tolist() != of_the_last.tolist()  # else a step that forgets the rows before would pass
    train_step(objective, optimizer, batch, accumulate, 1.0, 0.0)
    assert router.bias.tolist() == expected.tolist()


def test_a_step_reads_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, norms and loads of the experts, whatever the number of micro-batches."""
    expert = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "gated", "hidden": 8}}
    _, objective, optimizer = ready(sized(2, vocab_size=41, context=8, dim=16).override({"decoder.block.ffn": expert}))
    reads = list[list[Tensor]]()
    monkeypatch.setattr(optimizer_module, "on_host", lambda tensors: reads.append(on_host(tensors)) or reads[-1])
    loss, norm = train_step(objective, optimizer, uneven(), 2, 1.0, 0.0)
    assert len(reads) == 1
    norms, mean, *loads = reads[0]
    assert (loss, norm) == (mean.item(), torch.linalg.vector_norm(norms).item())
    assert [load.sum().item() for load in loads] == [2 * 4 * 8] * 2
    assert optimizer.norms.each is norms
    assert all(map(torch.equal, optimizer.loads, loads))


def test_a_step_without_a_target_is_refused() -> None:
    """Its loss would be 0 / 0, which no other learning rate helps."""
    model, objective, optimizer = ready()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = uneven()
    empty = replace(whole, targets=torch.full_like(whole.targets, IGNORED), weights=torch.zeros_like(whole.weights))
    with pytest.raises(HeddleError, match="no row of this step has a target"):
        train_step(objective, optimizer, empty, 1, 1.0, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_is_turned_by_what_is_no_number() -> None:
    for poison in ("loss", "gradient"):
        model, objective, optimizer = ready(train=TrainConfig(learning_rate=1e-2))
        if poison == "loss":
            model.decoder.final_norm.weight.data[0] = torch.nan
        else:
            model.embedding.weight.register_hook(lambda gradient: gradient * torch.inf)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        loss, norm = train_step(objective, optimizer, uneven(), 2, 1.0, 1.0)
        assert isnan(loss) == (poison == "loss")
        assert not np.isfinite(norm)
        for name, value in model.state_dict().items():
            assert torch.equal(value.nan_to_num(9.0), before[name].nan_to_num(9.0)), name
        assert any(master.grad is not None for master in optimizer.masters.values())  # to be looked at


def test_masters_move_by_less_than_bf16_can_say() -> None:
    """Steps far below the spacing of bf16 numbers add up in the masters until the working copy moves too."""
    train = TrainConfig(optimizer="adamw", weight_decay=0.0, learning_rate=2e-5)
    model, objective, optimizer = ready(train=train, precision="bf16")
    name = "decoder.blocks.0.ffn.up.weight"
    working, master = dict(model.named_parameters())[name], optimizer.masters[name]
    assert (working.dtype, master.dtype) == (torch.bfloat16, torch.float32)
    first, seen = master.detach().clone(), working.detach().clone()
    batch = uneven()
    train_step(objective, optimizer, batch, 1, 1.0, 0.0)
    moved = (master - first).abs()
    spacing = torch.finfo(torch.bfloat16).eps * first.abs()
    large = first.abs() > 0.01
    assert (moved[large] > 0).all()
    assert (moved[large] < spacing[large]).all()
    assert (working == seen)[large].float().mean() > 0.6  # most have not crossed to the next bf16 number
    for _ in range(19):
        train_step(objective, optimizer, batch, 1, 1.0, 0.0)
    assert (working != seen)[large].float().mean() > 0.6
    assert torch.equal(working, master.bfloat16())
