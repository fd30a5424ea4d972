"""The objective scores what prediction scores: every kind of head, in plain numpy, and gradients against torch's loss."""

from dataclasses import replace
from importlib import import_module
from math import erf, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config import NextTokenConfig, TransformerConfig
from heddle.data.batch import IGNORED, Batch, next_token_batch
from heddle.data.corpus import Corpus
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.tasks import CrossEntropy, DataSpec, NextTokenTask
from heddle.tasks.recurring import recurring_size

Array = npt.NDArray[np.float64]
SMALL: dict[str, Any] = {
    "vocab_size": 13,
    "dim": 8,
    "context": 6,
    "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}}},
}
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.25},
    "transform": {"transform": True, "eps": 1e-5},
    "bias": {"bias": True},
    "cap": {"cap": 1.5},
    "untied": {"tied": False},
    "all": {"scale": 0.25, "transform": True, "bias": True, "cap": 0.5, "tied": False, "eps": 1e-3},
}
heads = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)


def model(head: dict[str, Any], **more: Any) -> Transformer:
    """A tiny model in float64 whose every parameter has a say."""
    made = build(TransformerConfig.of({**SMALL, "pad_vocab_to": 8, "head": head, **more})).double()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return made


def batch() -> Batch:
    """Three rows of six targets, of which some count half and some nothing."""
    made = next_token_batch(np.random.default_rng(0).integers(0, 13, (3, 7)))
    weights = torch.tensor([[1, 1, 0, 0.5, 1, 1], [0] * 6, [1, 0.5, 1, 1, 1, 0]])
    return replace(made, weights=weights, targets=made.targets.masked_fill(weights == 0, IGNORED))


def test_scores_are_computed_of_a_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries compile a product for each: how many targets a step has differs by chance, yet their sizes recur."""
    sizes: list[int] = []

    def noted(features: Tensor, *more: Any) -> Any:
        sizes.append(len(features))
        return cross_entropy(features, *more)

    module = import_module("heddle.tasks.objective")
    cross_entropy = module.cross_entropy
    monkeypatch.setattr(module, "cross_entropy", noted)
    made, count = CrossEntropy(model({})), 600
    tokens = torch.arange(count).view(100, 6) % 13
    for targets in range(300, count):
        weights = (torch.arange(count).view(100, 6) % 599 < targets).float()
        made._sum(torch.randn(100, 6, 8, dtype=torch.float64), tokens, weights)
        assert targets <= sizes[-1] <= min(count, max(targets + 8, 1.04 * targets))
    assert len(set(sizes)) < 40
    assert [recurring_size(number) for number in (1, 8, 9, 256, 257, 2049, 4096)] == [8, 8, 16, 256, 264, 2112, 4096]


def test_weights_whose_number_is_known_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made, features = CrossEntropy(model({})), torch.randn(10, 6, 8, dtype=torch.float64)
    tokens = torch.arange(60).view(10, 6) % 13
    for targets in (0, 1, 30, 60):
        weights = (torch.arange(60).view(10, 6) >= 60 - targets).float()
        expected = made._sum(features, tokens, weights)
        with monkeypatch.context() as counted:
            counted.setattr(Tensor, "count_nonzero", None)
            assert all(map(torch.equal, made._sum(features, tokens, weights, targets), expected))


def numpy_loss(made: Transformer, hidden: Array, examples: Batch) -> float:
    """The head and the cross-entropy as formulas, position by position."""
    config = made.config.head
    value = {name: each.detach().numpy() for name, each in made.head.named_parameters()}
    table = value.get("weight", made.embedding.weight.detach().numpy())
    total = 0.0
    for h, target, weight in zip(
        hidden.reshape(-1, 8), examples.targets.flatten().tolist(), examples.weights.flatten().tolist(), strict=True
    ):
        if config.transform:
            h = value["dense.weight"] @ h + value["dense.bias"]
            h = np.array([x * (1 + erf(x / sqrt(2))) / 2 for x in h])
            h = (h - h.mean()) / np.sqrt(h.var() + config.eps) * value["norm.weight"] + value["norm.bias"]
        logits = (table @ (h * config.scale) + value.get("bias", 0.0))[:13]
        if config.cap is not None:
            logits = config.cap * np.tanh(logits / config.cap)
        total += weight * (np.log(np.exp(logits).sum()) - logits[target]) if weight else 0.0
    return float(total)


@heads
def test_the_loss_is_that_of_the_heads_formula(head: dict[str, Any]) -> None:
    """Scale, transform, bias, cap and a padded vocabulary are part of the loss; each changes it."""
    made, examples = model(head), batch()
    loss = CrossEntropy(made)(examples)
    with torch.no_grad():
        hidden = made(examples.tokens).hidden.numpy()
    assert loss.total.item() == pytest.approx(numpy_loss(made, hidden, examples), rel=1e-12)
    assert loss.count.item() == examples.weights.sum().item()
    assert (loss.extra.item(), loss.loads) == (0.0, ())


@heads
def test_its_gradient_is_that_of_torchs_loss_on_the_predicted_scores(head: dict[str, Any]) -> None:
    made, examples = model(head), batch()
    names, leaves = zip(*made.named_parameters(), strict=True)
    logits = made.logits(made(examples.tokens).hidden).flatten(0, 1)
    surprise = F.cross_entropy(logits, examples.targets.flatten(), ignore_index=IGNORED, reduction="none")
    expected = torch.autograd.grad((surprise * examples.weights.flatten()).sum(), leaves)
    gradients = torch.autograd.grad(CrossEntropy(made)(examples).total, leaves)
    for name, actual, right in zip(names, gradients, expected, strict=True):
        assert right.abs().max() > 1e-6 or ".k." in name, name  # a bias of the keys moves no weight of attention
        torch.testing.assert_close(actual, right, rtol=1e-9, atol=1e-9, msg=name)


def test_a_tied_table_learns_from_both_ends() -> None:
    """Its gradient is the sum of those that an embedding and a head of their own have, with the same weights."""
    tied, untied = model({}), model({"tied": False})
    untied.load_state_dict({**tied.state_dict(), "head.weight": tied.embedding.weight.detach()})
    for made in (tied, untied):
        CrossEntropy(made)(batch()).total.backward()
    gradients = [table.grad for table in (tied.embedding.weight, untied.embedding.weight, untied.head.weight)]
    both, below, above = gradients
    assert min(below.abs().max(), above.abs().max()) > 0.1
    torch.testing.assert_close(both, below + above, rtol=0, atol=1e-12)


def test_routers_add_their_terms_and_tell_their_loads() -> None:
    """Balance and z of each layer by plain loops over every row, from the scores that its router gave."""
    experts = {
        "kind": "moe",
        "experts": 4,
        "active": 2,
        "balance": 0.3,
        "z": 0.07,
        "expert": {"kind": "mlp", "hidden": 4},
    }
    decoder = {"depth": 2, "block": {"mixer": {"heads": 2}, "ffn": experts}}
    made, examples = model({}, decoder=decoder), batch()
    expert_loads: list[tuple[Tensor, Tensor]] = []
    hooks = [
        block.ffn.router.register_forward_hook(lambda module, inputs, out: expert_loads.append((out[1], out[2])))
        for block in made.decoder.blocks
    ]
    loss = CrossEntropy(made)(examples)
    for hook in hooks:
        hook.remove()
    terms = 0.0
    for (choice, logits), load in zip(expert_loads, loss.loads, strict=True):
        assert load.tolist() == np.bincount(choice.flatten().numpy(), minlength=4).tolist()
        for row in range(3):
            scores = logits[row].detach().numpy()
            chance = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            share = np.bincount(choice[row].flatten().numpy(), minlength=4) / 12
            terms += 0.3 * 6 * 4 * float((share * chance.mean(0)).sum())
            terms += 0.07 * float((np.log(np.exp(scores).sum(-1)) ** 2).sum())
    assert len(expert_loads) == 2
    assert loss.extra.item() == pytest.approx(terms, rel=1e-12)


def test_only_a_decoder_that_scores_tokens_has_one() -> None:
    encoder = {"decoder": None, "encoder": SMALL["decoder"]}
    task = NextTokenTask(NextTokenConfig(), DataSpec(Corpus(), TransformerConfig.of(SMALL)))
    for config in ({**SMALL, **encoder}, {**SMALL, "head": {"kind": "classifier", "classes": 3}}):
        with pytest.raises(HeddleError, match=r"predicting the next token|does not score tokens"):
            task.objective(build(TransformerConfig.of(config)))
