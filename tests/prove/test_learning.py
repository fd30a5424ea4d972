"""`prove` looks at what training computes: a loss or a gradient that is another function's is found, by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import TransformerConfig
from heddle.data.batch import Batch
from heddle.model import build
from heddle.nn.activations import SLOPES
from heddle.nn.kernels import plain
from heddle.nn.moe import MoE
from heddle.prove.checks import CHECKS
from heddle.prove.learning import kernel_gradients, training_loss
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import NotApplicable, Verdict, judge
from heddle.tasks import objective

SMALL = {"vocab_size": 29, "dim": 16, "context": 20}
MIXER = {
    "kind": "attention",
    "heads": 4,
    "kv_heads": 2,
    "cap": 2.0,
    "relative": {"kind": "buckets", "buckets": 8, "furthest": 10},
}
EXPERTS = {"kind": "moe", "experts": 4, "active": 2, "balance": 0.02, "z": 0.01, "bias_rate": 0.01, "gate": "sigmoid",
           "expert": {"kind": "gated", "hidden": 12}}  # fmt: skip
HEADS: dict[str, dict[str, Any]] = {
    "scale": {"scale": 0.25},
    "transform": {"transform": True},
    "bias": {"bias": True},
    "cap": {"cap": 3.0},
    "untied": {"tied": False},
    "all": {"scale": 0.25, "transform": True, "bias": True, "cap": 3.0, "tied": False},
}


def subject(stack: str = "decoder", block: dict[str, Any] | None = None, **top: Any) -> Subject:
    config = {**SMALL, stack: {"depth": 2, "block": {"mixer": MIXER, **(block or {})}}, **top}
    return Subject(awaken(build(TransformerConfig.of(config), seed=1), 1))


def of_the_loss(tried: Subject) -> Verdict:
    return judge("loss", training_loss(tried), tried.bounds, tried.scales)


def of_the_kernels(tried: Subject) -> Verdict:
    return judge("kernels", kernel_gradients(tried), tried.bounds, tried.scales)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_every_head_and_router_is_scored_as_it_predicts(head: dict[str, Any]) -> None:
    """In fp64 to a thousand of its roundings, far within what a verdict would excuse."""
    verdict = of_the_loss(subject(block={"ffn": EXPERTS}, head=head, pad_vocab_to=8))
    assert verdict.holds
    assert verdict.error < 1e-12


def test_the_shortest_of_contexts_and_vocabularies_have_a_loss() -> None:
    for context, vocabulary in ((1, 1), (1, 2), (2, 1)):
        assert of_the_loss(subject(context=context, vocab_size=vocabulary)).holds


def wrapped(change: Callable[..., tuple[Any, ...]]) -> Callable[[pytest.MonkeyPatch], None]:
    """A fault: training's cross-entropy is handed something else."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        sound = objective.cross_entropy  # type: ignore[attr-defined]
        monkeypatch.setattr(objective, "cross_entropy", lambda *args: sound(*change(*args)))

    return plant


def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: every token predicts itself."""
    sound = objective.CrossEntropy.forward

    def forward(self: objective.CrossEntropy, batch: Batch) -> objective.Loss:
        return sound(self, Batch(batch.tokens, batch.layout, batch.tokens, batch.weights))

    monkeypatch.setattr(objective.CrossEntropy, "forward", forward)


def uneven_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: the routers' terms count once for a row, not once for each of its documents."""
    sound = MoE._terms
    monkeypatch.setattr(MoE, "_terms", lambda self, *args: sound(self, *args) / args[2].documents)


def straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: the derivative of an activation that experts have by hand is 1."""
    monkeypatch.setitem(SLOPES, "silu", lambda gradient, x: gradient)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "without the scale": (wrapped(lambda hidden, *rest: (hidden * 4, *rest)), "loss"),
    "without the bias": (wrapped(lambda h, i, w, scores, *more: (h, i, w, replace(scores, bias=None), *more)), "loss"),
    "without the cap": (wrapped(lambda h, i, w, scores, *more: (h, i, w, replace(scores, cap=None), *more)), "loss"),
    "with the padding": (wrapped(lambda h, i, w, scores, *more: (h, i, w, replace(scores, vocab_size=32), *more)), "loss"),
    "all weights alike": (wrapped(lambda h, i, weights, *more: (h, i, torch.ones_like(weights), *more)), "loss"),
    "a table that does not learn": (
        wrapped(lambda h, i, w, scores, *more: (h, i, w, replace(scores, table=scores.table.detach()), *more)),
        "gradient of head.weight"
    ),
    "targets shifted": (shifted, "loss"),
    "terms by row": (uneven_terms, "routers' terms"),
    "a slope of experts": (straight, "gradient of embedding.weight"),
}  # fmt: skip


@pytest.mark.parametrize(("plant", "place"), FAULTS.values(), ids=FAULTS)
def test_another_loss_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = subject(block={"ffn": EXPERTS}, head=HEADS["all"], pad_vocab_to=32)
    plant(monkeypatch)
    verdict = of_the_loss(tried)
    assert (verdict.word, verdict.layer) == ("DIFFERENT", place)


@pytest.mark.parametrize("stack", ["decoder", "encoder", "both"])
@pytest.mark.parametrize("fault", [None, "cap", "dropped"])
def test_another_gradient_of_a_kernel_is_found(fault: str | None, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plain` that forgets how the cap bends the scores, or which weights were dropped, on its way back alone."""
    sound = plain._Blocks.backward

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.scoring = ctx.scoring._replace(cap=None) if fault == "cap" else ctx.scoring
        ctx.drops = ctx.drops and fault != "dropped"
        return sound(ctx, gradient)

    both = {"encoder": {"depth": 1, "block": {"mixer": MIXER}}} if stack == "both" else {}
    block = {"cross": {"heads": 4, "kv_heads": 1}} if both else {}
    tried = subject("encoder" if stack == "encoder" else "decoder", block, **both)
    monkeypatch.setattr(plain._Blocks, "backward", staticmethod(backward))
    verdict = of_the_kernels(tried)
    assert verdict.holds == (fault is None)
    if fault is not None:
        assert verdict.detail in ("auto", "plain", "auto, weights dropped", "plain, weights dropped")
        assert ("dropped" in verdict.detail) == (fault == "dropped")
        assert verdict.layer.startswith("gradient of ")


def test_what_does_not_apply_is_said() -> None:
    with pytest.raises(NotApplicable, match="no objective for this model: this model has an encoder"):
        list(training_loss(subject("encoder")))
    with pytest.raises(NotApplicable, match="no objective for this model: this model's head is of kind 'classifier'"):
        list(training_loss(subject(head={"kind": "classifier", "classes": 3})))
    with pytest.raises(NotApplicable, match="no layer has attention"):
        list(kernel_gradients(subject(block={"mixer": {"kind": "recurrent"}})))


def test_a_model_whose_weights_are_frozen_has_a_loss() -> None:
    tried = subject()
    tried.model.requires_grad_(False)
    assert of_the_loss(tried).holds
    tried.model.head.bias = torch.nn.Parameter(torch.zeros(29))
    assert of_the_loss(tried).holds


def test_nothing_is_left_behind() -> None:
    """Neither gradients, nor dropout, nor a generator that was seeded."""
    tried, before = subject(), torch.get_rng_state()
    assert of_the_loss(tried).holds
    assert of_the_kernels(tried).holds
    assert torch.equal(torch.get_rng_state(), before)
    assert all(each.grad is None and each.dtype == torch.float32 for each in tried.model.parameters())


def test_they_are_part_of_a_proof() -> None:
    assert CHECKS["training loss"] is training_loss
    assert CHECKS["gradients of kernels"] is kernel_gradients
