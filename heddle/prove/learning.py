"""The checks of what training computes: its loss is that of what predicts, and its gradients are the same in every kernel.

Everything here runs in fp64: the code is that of fp32, and rounding then hides nothing and is blamed for nothing.
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

SMALLEST = 1e-6  # of the largest gradient: a parameter whose own is smaller may be all rounding, as a bias of keys is
RATE = 0.25  # of attention weights that are dropped where dropping is tried
MIXING = (".mixer.", ".cross.", ".relative.")  # where the names of parameters say that a kernel's gradient arrives
DROPPING = ("reference", "plain", "auto")  # the kernels that draw one number for each weight, all in one order


def training_loss(subject: Subject) -> Iterator[Comparison]:
    """What training minimises, and its gradient, is plain cross-entropy of the scores that prediction gives (L1-24).

    With the terms that routers add, written out document by document; for rows as training cuts them, and for packed ones
    whose targets count more, less or not at all.
    """
    model = copy.deepcopy(subject.model).double()
    try:
        model.check_predicts_next()
        objective = CrossEntropy(model)
    except HeddleError as refused:
        raise NotApplicable(f"training has no objective for it: {refused}") from None
    rows = subject.tokens(3, subject.length + 1)
    tokens, targets = rows[:, :-1], rows[:, 1:]
    weights = torch.ones(tokens.shape)
    wanted = _plain_loss(model, tokens, Layout.whole(*tokens.shape), targets, weights)
    found = _objective(objective, next_token_batch(rows.numpy()))
    yield _compared("whole rows", found, wanted)
    first = max(1, subject.length // 3)
    lengths = [length for length in (first, subject.length - first) if length]
    layout = subject.prefixed(Layout.packed([lengths] * 3, subject.length))
    weights = torch.rand(tokens.shape, generator=subject.generator)
    weights = weights.masked_fill(weights < 0.3, 0.0)
    wanted = _plain_loss(model, tokens, layout, targets, weights)
    batch = Batch(tokens, layout, targets.masked_fill(weights == 0, IGNORED), weights)
    yield _compared("packed rows, uneven targets", _objective(objective, batch), wanted)
    yield _compared("in micro-batches", _objective(objective, *batch.split(3)), wanted)


def kernel_gradients(subject: Subject) -> Iterator[Comparison]:
    """All attention kernels teach the same, padded rows included, and where attention weights are dropped as well."""
    if not (attentions(subject.config) or subject.both):
        raise NotApplicable("no layer has attention")
    tokens, width = subject.tokens(2), subject.length
    layout = subject.prefixed(Layout.padded([width, max(1, width // 2)], width))
    wanted: dict[bool, Trace] = {}
    weight: Tensor | None = None
    for kernel in ("reference", *[name for name in KERNELS if name != "reference"]):
        try:
            config = with_kernel(subject.config, kernel)
        except HeddleError:  # the kernel cannot do what this model asks of it
            continue
        model = build(config).eval()
        model.load_state_dict(subject.model.state_dict())
        model.double()
        for drops in (False, True):
            if drops and kernel not in DROPPING:
                continue
            with _dropping(model, RATE if drops else 0.0):
                hidden = subject.hidden(tokens, layout, model=model)
                real = hidden[layout.segment >= 0]
                if weight is None:
                    weight = torch.randn(real.shape, generator=subject.generator, dtype=real.dtype)
                found = {"hidden": real.detach(), **_gradients((real * weight).sum(), model, MIXING)}
            if kernel == "reference":
                wanted[drops] = found
            else:
                yield _compared(f"{kernel}, weights dropped" if drops else kernel, found, wanted[drops])


def _objective(objective: CrossEntropy, *batches: Batch) -> Trace:
    """What training computes of micro-batches: the loss, what routers add to it, their loads, and every gradient."""
    losses = [objective(batch) for batch in batches]
    total, extra = sum(loss.total for loss in losses), sum(loss.extra for loss in losses)
    loads = [sum(each) for each in zip(*(loss.loads for loss in losses), strict=True)]
    found = {"loss": total.detach(), "routers' terms": extra.detach()}
    found |= {f"load of router {number}": load for number, load in enumerate(loads)}
    return found | _gradients(total + extra, objective.model)


@contextmanager
def _looping(model: Transformer) -> Iterator[None]:
    """Experts one after another, differentiated by torch: the grouped ones have derivatives written by hand."""
    all_experts = [module.experts for module in model.modules() if isinstance(module, MoE)]
    before = [experts.dispatch for experts in all_experts]
    for experts in all_experts:
        experts.dispatch = "loop"
    try:
        yield
    finally:
        for experts, dispatch in zip(all_experts, before, strict=True):
            experts.dispatch = dispatch


def _plain_loss(model: Transformer, tokens: Tensor, layout: Layout, targets: Tensor, weights: Tensor) -> Trace:
    """The same from the model's predicted scores, all of them at once, by torch's own loss and derivatives."""
    with _looping(model):
        return _plain_trace(model, tokens, layout, targets, weights)


def _plain_trace(model: Transformer, tokens: Tensor, layout: Layout, targets: Tensor, weights: Tensor) -> Trace:
    kept: list[tuple[Tensor, Tensor]] = []

    def keep(module: nn.Module, inputs: tuple[Tensor], out: tuple[Tensor, Tensor, Tensor]) -> None:
        kept.append((out[1], out[2]))

    routers = [module.router for module in model.modules() if isinstance(module, MoE)]
    hooks = [router.register_forward_hook(keep) for router in routers]
    try:
        scores = model.logits(model(tokens, layout).hidden)
    finally:
        for hook in hooks:
            hook.remove()
    surprise = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    total = (surprise * weights.flatten()).sum()
    blocks = [block.ffn for stack in model.config.stacks().values() for block in stack.blocks]
    experts = [config for config in blocks if isinstance(config, MoEConfig)]
    terms, loads = total.new_zeros(()), {}
    for number, (config, (choice, logits)) in enumerate(zip(experts, kept, strict=True)):
        terms = terms + _terms(config, choice, logits, layout)
        loads[f"load of router {number}"] = torch.bincount(choice.flatten(), minlength=config.experts)
    found = {"loss": total.detach(), "routers' terms": terms.detach()}
    return {**found, **loads, **_gradients(total + terms, model)}


def _terms(config: MoEConfig, choice: Tensor, logits: Tensor, layout: Layout) -> Tensor:
    """One router's balance and z losses, document by document: n · E · Σ_e f_e p_e and Σ_t logsumexp(scores_t)²."""
    terms = logits.new_zeros(())
    for row in range(logits.shape[0]):
        for document in range(layout.documents):
            here = layout.segment[row] == document
            if not here.any():
                continue
            scores = logits[row, here]
            shares = scores.softmax(-1) if config.gate == "softmax" else F.normalize(scores.sigmoid(), p=1, dim=-1)
            chosen = torch.bincount(choice[row, here].flatten(), minlength=config.experts).to(scores.dtype)
            even = (chosen / chosen.sum() * shares.mean(0)).sum() * config.experts
            z = scores.logsumexp(-1).square().sum()
            terms = terms + config.balance * len(scores) * even + config.z * z
    return terms


def _gradients(loss: Tensor, model: Transformer, within: tuple[str, ...] = ("",)) -> Trace:
    """By parameter whose name holds one of some parts, the gradient of a number; 0 where it does not depend on it."""
    named = ((name, each) for name, each in model.named_parameters() if any(part in name for part in within))
    leaves = {name: parameter for name, parameter in named if parameter.requires_grad}
    frozen = not leaves or not loss.requires_grad
    found = [None] * len(leaves) if frozen else torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        f"gradient of {name}": torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def _compared(what: str, found: Trace, wanted: Mapping[str, Tensor]) -> Comparison:
    largest = max(
        (float(each.abs().max()) for place, each in wanted.items() if place.startswith("gradient")), default=0.0
    )
    return Comparison(what, found, dict(wanted), least=SMALLEST * max(largest, 1.0))


@contextmanager
def _dropping(model: Transformer, rate: float) -> Iterator[None]:
    """Drop attention weights, and nothing else, the same ones every time."""
    dropouts = [module.dropout for module in model.modules() if isinstance(module, Kernel)]
    before = [(dropout, dropout.rate, dropout.training) for dropout in dropouts]
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        for dropout in dropouts if rate else ():
            dropout.rate, dropout.training = rate, True
        try:
            yield
        finally:
            for dropout, usual, training in before:
                dropout.rate, dropout.training = usual, training
