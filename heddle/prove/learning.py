"""Checks of the training loss and its gradients, against plain cross-entropy and across attention kernels.

They run in fp64: the code is the same as in fp32, and rounding hides nothing.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.layers import MoEConfig
from heddle.config.model import with_kernel
from heddle.data.batch import IGNORED, Batch, next_token_batch
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.nn.kernels import KERNELS, Kernel
from heddle.nn.layout import Layout
from heddle.nn.moe import MoE
from heddle.prove.subject import Subject, attentions
from heddle.prove.verdict import Comparison, NotApplicable, Trace
from heddle.tasks.objective import CrossEntropy

SMALLEST = 1e-6  # of the largest gradient; smaller gradients may be pure rounding, such as those of key biases
DROPOUT_RATE = 0.25  # of attention weights
KERNEL_PARAMETERS = (
    ".mixer.",
    ".cross.",
    ".relative.",
)  # parts of names of parameters that get gradients through kernels
DROPOUT_KERNELS = ("reference", "plain", "auto")  # kernels that sample dropout masks in the same order


def training_loss(subject: Subject) -> Iterator[Comparison]:
    """The training objective and its gradient equal plain cross-entropy of the inference logits (L1-24).

    Router losses are included, written out per document. Rows are full windows, and packed documents with uneven target weights.
    """
    model = copy.deepcopy(subject.model).double()
    try:
        model.check_predicts_next()
        objective = CrossEntropy(model)
    except HeddleError as error:
        raise NotApplicable(f"training has no objective for this model: {error}") from None
    rows = subject.tokens(3, subject.length + 1)
    tokens, targets = rows[:, :-1], rows[:, 1:]
    weights = torch.ones(tokens.shape)
    expected = _plain_loss(model, tokens, Layout.whole(*tokens.shape), targets, weights)
    actual = _objective_trace(objective, next_token_batch(rows.numpy()))
    yield _compare("whole rows", actual, expected)
    first = max(1, subject.length // 3)
    lengths = [length for length in (first, subject.length - first) if length]
    layout = subject.with_prefix(Layout.packed([lengths] * 3, subject.length))
    weights = torch.rand(tokens.shape, generator=subject.generator)
    weights = weights.masked_fill(weights < 0.3, 0.0)
    expected = _plain_loss(model, tokens, layout, targets, weights)
    batch = Batch(tokens, layout, targets.masked_fill(weights == 0, IGNORED), weights)
    yield _compare("packed rows, uneven targets", _objective_trace(objective, batch), expected)
    yield _compare("in micro-batches", _objective_trace(objective, *batch.split(3)), expected)


def kernel_gradients(subject: Subject) -> Iterator[Comparison]:
    """All attention kernels have the same gradients, including padded rows and attention dropout."""
    if not (attentions(subject.config) or subject.is_encoder_decoder):
        raise NotApplicable("no layer has attention")
    tokens, width = subject.tokens(2), subject.length
    layout = subject.with_prefix(Layout.padded([width, max(1, width // 2)], width))
    expected: dict[bool, Trace] = {}
    weight: Tensor | None = None
    for kernel in ("reference", *[name for name in KERNELS if name != "reference"]):
        try:
            config = with_kernel(subject.config, kernel)
        except HeddleError:  # the kernel does not support this model
            continue
        model = build(config).eval()
        model.load_state_dict(subject.model.state_dict())
        model.double()
        for dropout in (False, True):
            if dropout and kernel not in DROPOUT_KERNELS:
                continue
            with _attention_dropout(model, DROPOUT_RATE if dropout else 0.0):
                hidden = subject.hidden(tokens, layout, model=model)
                real = hidden[layout.segment >= 0]
                if weight is None:
                    weight = torch.randn(real.shape, generator=subject.generator, dtype=real.dtype)
                actual = {"hidden": real.detach(), **_gradients((real * weight).sum(), model, KERNEL_PARAMETERS)}
            if kernel == "reference":
                expected[dropout] = actual
            else:
                yield _compare(f"{kernel}, weights dropped" if dropout else kernel, actual, expected[dropout])


def _objective_trace(objective: CrossEntropy, *batches: Batch) -> Trace:
    """The training objective of micro-batches: loss, router losses, expert loads and all gradients."""
    losses = [objective(batch) for batch in batches]
    total, extra = sum(loss.total for loss in losses), sum(loss.extra for loss in losses)
    loads = [sum(load) for load in zip(*(loss.loads for loss in losses), strict=True)]
    trace = {"loss": total.detach(), "routers' terms": extra.detach()}
    trace |= {f"load of router {number}": load for number, load in enumerate(loads)}
    return trace | _gradients(total + extra, objective.model)


@contextmanager
def _looped_experts(model: Transformer) -> Iterator[None]:
    """Run experts in a loop, differentiated by autograd: grouped experts have a custom backward pass."""
    all_experts = [module.experts for module in model.modules() if isinstance(module, MoE)]
    previous = [experts.dispatch for experts in all_experts]
    for experts in all_experts:
        experts.dispatch = "loop"
    try:
        yield
    finally:
        for experts, dispatch in zip(all_experts, previous, strict=True):
            experts.dispatch = dispatch


def _plain_loss(model: Transformer, tokens: Tensor, layout: Layout, targets: Tensor, weights: Tensor) -> Trace:
    """The same from the full logits, with torch's cross-entropy and autograd."""
    with _looped_experts(model):
        return _plain_trace(model, tokens, layout, targets, weights)


def _plain_trace(model: Transformer, tokens: Tensor, layout: Layout, targets: Tensor, weights: Tensor) -> Trace:
    routed: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor], out: tuple[Tensor, Tensor, Tensor]) -> None:
        routed.append((out[1], out[2]))

    routers = [module.router for module in model.modules() if isinstance(module, MoE)]
    hooks = [router.register_forward_hook(keep) for router in routers]
    try:
        scores = model.logits(model(tokens, layout).hidden)
    finally:
        for hook in hooks:
            hook.remove()
    losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    total = (losses * weights.flatten()).sum()
    blocks = [block.ffn for stack in model.config.stacks().values() for block in stack.blocks]
    experts = [config for config in blocks if isinstance(config, MoEConfig)]
    terms, loads = total.new_zeros(()), {}
    for number, (config, (choice, logits)) in enumerate(zip(experts, routed, strict=True)):
        terms = terms + _router_losses(config, choice, logits, layout)
        loads[f"load of router {number}"] = torch.bincount(choice.flatten(), minlength=config.experts)
    trace = {"loss": total.detach(), "routers' terms": terms.detach()}
    return {**trace, **loads, **_gradients(total + terms, model)}


def _router_losses(config: MoEConfig, choice: Tensor, logits: Tensor, layout: Layout) -> Tensor:
    """One router's balance and z losses per document: n · E · Σ_e f_e p_e and Σ_t logsumexp(scores_t)²."""
    terms = logits.new_zeros(())
    for row in range(logits.shape[0]):
        for document in range(layout.documents):
            inside = layout.segment[row] == document
            if not inside.any():
                continue
            scores = logits[row, inside]
            shares = scores.softmax(-1) if config.gate == "softmax" else F.normalize(scores.sigmoid(), p=1, dim=-1)
            chosen = torch.bincount(choice[row, inside].flatten(), minlength=config.experts).to(scores.dtype)
            balance = (chosen / chosen.sum() * shares.mean(0)).sum() * config.experts
            z = scores.logsumexp(-1).square().sum()
            terms = terms + config.balance * len(scores) * balance + config.z * z
    return terms


def _gradients(loss: Tensor, model: Transformer, within: tuple[str, ...] = ("",)) -> Trace:
    """The gradients of the loss for parameters whose names contain one of some parts; 0 for unused ones."""
    named = ((name, parameter) for name, parameter in model.named_parameters() if any(part in name for part in within))
    leaves = {name: parameter for name, parameter in named if parameter.requires_grad}
    frozen = not leaves or not loss.requires_grad
    gradients = [None] * len(leaves) if frozen else torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        f"gradient of {name}": torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def _compare(case: str, actual: Trace, expected: Mapping[str, Tensor]) -> Comparison:
    largest = max(
        (float(tensor.abs().max()) for place, tensor in expected.items() if place.startswith("gradient")), default=0.0
    )
    return Comparison(case, actual, dict(expected), min_scale=SMALLEST * max(largest, 1.0))


@contextmanager
def _attention_dropout(model: Transformer, rate: float) -> Iterator[None]:
    """Enable attention dropout alone, with a fixed seed."""
    dropouts = [module.dropout for module in model.modules() if isinstance(module, Kernel)]
    previous = [(dropout, dropout.rate, dropout.training) for dropout in dropouts]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        for dropout in dropouts if rate else ():
            dropout.rate, dropout.training = rate, True
        try:
            yield
        finally:
            for dropout, previous_rate, training in previous:
                dropout.rate, dropout.training = previous_rate, training
