"""Checks of inference: properties that the lectures require of any model, as pairs of passes that must agree.

A check yields comparisons, or raises `NotApplicable`. `CHECKS` lists all of them; heddle's tests run the same list. Checks of the
KV cache are in `caches`, checks of loss and gradients in `learning`.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from heddle.config.layers import MoEConfig, RecurrentConfig
from heddle.config.model import LanguageHeadConfig, with_kernel
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.device import compile_graphs
from heddle.nn.dropout import Dropout
from heddle.nn.kernels import KERNELS, Kernel
from heddle.nn.layout import Layout
from heddle.nn.state import FORGETS
from heddle.prove.caches import (
    cached_in_chunks,
    cached_one_by_one,
    drawn_tokens,
    forks,
    growing_cache,
    joined_rows,
    rolling_window,
    rows_alone,
)
from heddle.prove.learning import kernel_gradients, training_loss
from heddle.prove.settings import decoding_settings
from heddle.prove.subject import Subject, attentions, cut
from heddle.prove.verdict import Comparison, NotApplicable

Check = Callable[[Subject], Iterator[Comparison]]


def causality(subject: Subject) -> Iterator[Comparison]:
    """Changing token t does not change any bit before t (L0-87)."""
    subject.require_decoder()
    subject.require_two_tokens()
    subject.require_two_ids()
    tokens = subject.tokens(2)
    before = subject.full_pass(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        changed = tokens.clone()
        changed[:, t] = subject.changed_ids(tokens[:, t])
        past = (slice(None), slice(0, t))
        yield Comparison(
            f"token {t} changed", cut(subject.full_pass(changed), past), cut(before, past), subject.bitwise
        )


def gradient_to_the_future(subject: Subject) -> Iterator[Comparison]:
    """The logits at t have no gradient with respect to tokens after t (L0-87)."""
    subject.require_decoder()
    subject.require_two_tokens()
    x, hidden = subject.differentiable(subject.tokens(1))
    for t in sorted({0, x.shape[1] // 2, x.shape[1] - 2} & set(range(x.shape[1] - 1))):
        yield expect_zero(f"position {t}", gradient(hidden[:, t], x)[:, t + 1 :])


def reach(subject: Subject) -> Iterator[Comparison]:
    """With windows and convolutions, a token does not depend on tokens beyond the reach of all layers together."""
    subject.require_decoder()
    reachable, length = subject.reachable_distances(subject.length), subject.length
    if len(reachable) == length:
        raise NotApplicable("the layers reach every token")
    x, hidden = subject.differentiable(subject.tokens(1))
    for t in sorted({length // 2, length - 1}):
        beyond = [t - distance for distance in range(t + 1) if distance not in reachable]
        if beyond:
            yield expect_zero(f"position {t}", gradient(hidden[:, t], x)[:, beyond])


def gradient(outputs: Tensor, x: Tensor) -> Tensor:
    """The gradient of the outputs' sum with respect to x; 0 where they do not depend on it."""
    (result,) = torch.autograd.grad(outputs.sum(), x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if result is None else result


def expect_zero(case: str, actual: Tensor) -> Comparison:
    """Numbers that must be exactly 0."""
    return Comparison(case, {"output": actual.detach()}, {"output": torch.zeros_like(actual)}, exact=True)


def layers_alone(subject: Subject) -> Iterator[Comparison]:
    """Each layer called alone computes the same as in the stack, whatever the layers of the stack share.

    So does the final norm: a stack is its entry, its blocks in order, and that norm (L0-24, L0-25, L3-26).
    """
    stack, calls = subject.model.last_stack(), []
    hook = stack.register_forward_pre_hook(lambda module, arguments: calls.append(arguments))
    try:
        with torch.no_grad(), stack.watched() as states:
            hidden = subject.hidden(subject.tokens(2))
    finally:
        hook.remove()
    _, layout, _, memory = (*calls[-1], None)[:4]
    patterns = [block.mixer.pattern for block in stack.layers()]
    relatives = [*dict.fromkeys(pattern.relative for pattern in patterns if pattern.relative)]
    for number, (block, pattern) in enumerate(zip(stack.layers(), patterns, strict=True)):
        relative = stack.relative[relatives.index(pattern.relative)] if pattern.relative else None
        with torch.no_grad():
            scope, source = pattern.scope(layout, None, relative), None
            if block.cross is not None and memory is not None:
                source = block.cross.pattern.scope(layout, memory.layout, source=memory.hidden)
            alone = block(states[number], scope, FORGETS, source).hidden
        yield Comparison("alone", {f"layer {number}": alone}, {f"layer {number}": states[number + 1]}, exact=True)
    with torch.no_grad():
        yield Comparison("last norm", {"output": stack.final_norm(states[-1])}, {"output": hidden}, exact=True)


def prefix(subject: Subject) -> Iterator[Comparison]:
    """The output for a prefix is the prefix of the output: f(x[:t]) = f(x)[:t] (L0-01)."""
    subject.require_decoder()
    subject.require_two_tokens()
    tokens = subject.tokens(2)
    full = subject.full_pass(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        part = (slice(None), slice(0, t))
        yield Comparison(f"first {t} tokens", subject.full_pass(tokens[:, :t]), cut(full, part))


def prefix_both_ways(subject: Subject) -> Iterator[Comparison]:
    """A prefix's first output depends on its last token, and on nothing after it (Raffel et al. 2020, 3.2.1).

    With a prefix of one token, the model is the causal one.
    """
    if not subject.has_prefix:
        raise NotApplicable("this model has no prefixes")
    if subject.length < 3:
        raise NotApplicable(
            f"a context of {subject.length} is too short for a prefix of two tokens and a token after it"
        )
    subject.require_two_ids()
    tokens, rows, length = subject.tokens(2), 2, subject.length
    end = (length + 1) // 2
    layout = subject.prompt_layout([end] * rows, length)
    before = subject.full_pass(tokens, layout)
    for t in (end - 1, end, length - 1):
        changed = tokens.clone()
        changed[:, t] = subject.changed_ids(tokens[:, t])
        actual, first = subject.full_pass(changed, layout), (slice(None), slice(0, 1))
        if t < end:
            changed_outputs = (cut(actual, first)["output"] != cut(before, first)["output"]).any()[None].float()
            yield Comparison(
                "last token of the prefix changed", {"output": changed_outputs}, {"output": torch.ones(1)}, exact=True
            )
        else:
            past = (slice(None), slice(0, t))
            yield Comparison(f"token {t} changed", cut(actual, past), cut(before, past), subject.bitwise)
    yield Comparison(
        "a prefix of one",
        subject.full_pass(tokens, subject.prompt_layout([1] * rows, length)),
        subject.full_pass(tokens),
    )


def padding(side: str) -> Check:
    """Padded rows give the same results as alone, and the ids of padding do not change any bit."""

    def check(subject: Subject) -> Iterator[Comparison]:
        width = subject.length
        lengths = [width, max(1, width // 2), 1]
        tokens, layout = subject.tokens(3), subject.with_prefix(Layout.padded(lengths, width, side))  # type: ignore[arg-type]
        padded = subject.full_pass(tokens, layout)
        real = layout.segment >= 0
        for row, length in enumerate(lengths):
            actual = {place: tensor[row, real[row]][None] for place, tensor in padded.items()}
            alone_layout = subject.with_prefix(Layout.whole(1, length))
            alone = subject.full_pass(tokens[row, real[row]][None], alone_layout, subject.source_row(row))
            yield Comparison(f"row of {length}", actual, alone)
        refilled = subject.full_pass(torch.where(real, tokens, subject.changed_ids(tokens)), layout)
        yield Comparison("other padding", cut(refilled, real), cut(padded, real), subject.bitwise)

    return check


def padding_gradients(subject: Subject) -> Iterator[Comparison]:
    """Attention outputs exactly 0 at padding, no real token has a gradient to it, and every gradient is finite (D-10, L2-07).

    This includes a row of padding alone.
    """
    width, model = subject.length, subject.model
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for side in ("right", "left"):
        layout = subject.with_prefix(Layout.padded([width, max(1, width // 2), 0], width, side))
        padded = layout.segment < 0
        outputs: list[Tensor] = []

        def keep(
            module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, outputs: list[Tensor] = outputs
        ) -> None:
            outputs.append(output.detach().transpose(1, 2))

        kernels = [module for module in model.last_stack().modules() if isinstance(module, Kernel)]
        hooks = [kernel.register_forward_hook(keep) for kernel in kernels]
        try:
            x, hidden = subject.differentiable(subject.tokens(3), layout)
        finally:
            for hook in hooks:
                hook.remove()
        for output in outputs:
            yield expect_zero(f"attention of padding on the {side}", output[padded])
        of_x, *rest = torch.autograd.grad(hidden[~padded].square().sum(), [x, *learned], allow_unused=True)
        yield expect_zero(f"padding on the {side}", (torch.zeros_like(x) if of_x is None else of_x)[padded])
        bad = sum(int((~tensor.isfinite()).sum()) for tensor in (hidden, of_x, *rest) if tensor is not None)
        yield expect_zero(f"numbers that are not finite, padding on the {side}", torch.tensor([bad]))


def packing(subject: Subject) -> Iterator[Comparison]:
    """Packed documents give the same results as alone, and changing one does not change any bit of its neighbours."""
    if subject.is_encoder_decoder:
        raise NotApplicable("an encoder-decoder has one source per row")
    subject.require_two_tokens()
    width = subject.length
    first = max(1, width // 3)
    lengths = [[first, width - first], [max(1, width - first - 1)]]  # the second row ends in padding
    tokens, layout = subject.tokens(2), subject.with_prefix(Layout.packed(lengths, width))
    packed = subject.full_pass(tokens, layout)
    for row, documents in enumerate(lengths):
        for number in range(len(documents)):
            inside = (torch.arange(2)[:, None] == row) & (layout.segment == number)
            actual = {place: tensor[inside][None] for place, tensor in packed.items()}
            alone_layout = subject.with_prefix(Layout.whole(1, int(inside.sum())))
            yield Comparison(
                f"document {number} of row {row}", actual, subject.full_pass(tokens[inside][None], alone_layout)
            )
            rerun = subject.full_pass(torch.where(inside, subject.changed_ids(tokens), tokens), layout)
            neighbours = (layout.segment >= 0) & ~inside
            case = f"document {number} of row {row} changed"
            yield Comparison(case, cut(rerun, neighbours), cut(packed, neighbours), subject.bitwise)


def kernels(subject: Subject) -> Iterator[Comparison]:
    """All attention kernels compute the same function, including padded rows."""
    if not (attentions(subject.config) or subject.is_encoder_decoder):
        raise NotApplicable("no layer has attention")
    tokens, width = subject.tokens(2), subject.length
    layout = subject.with_prefix(Layout.padded([width, max(1, width // 2)], width))
    real = layout.segment >= 0
    expected: dict[str, Tensor] = {}
    for kernel in ("reference", *[name for name in KERNELS if name != "reference"]):
        try:
            config = with_kernel(subject.config, kernel)
        except HeddleError:  # the kernel does not support this model
            continue
        other = build(config, dtype=subject.dtype).eval()
        other.load_state_dict(subject.model.state_dict())
        actual = {place: tensor[real] for place, tensor in subject.full_pass(tokens, layout, model=other).items()}
        if kernel == "reference":
            expected = actual
        else:
            yield Comparison(kernel, actual, expected)


def extra_entries(subject: Subject) -> Iterator[Comparison]:
    """Padding entries of the vocabulary have logits of -inf, and do not change other logits (L0-86, D-13)."""
    config, real = subject.config, subject.config.vocab_size
    if not isinstance(config.head, LanguageHeadConfig) or config.table_rows() == real:
        raise NotApplicable("the vocabulary is not padded")
    tokens = subject.tokens(2)
    with torch.no_grad():
        scores = subject.model.language_head()(subject.hidden(tokens), None, subject.model.embedding.weight)[..., real:]
    yield Comparison("extra", {"output": scores}, {"output": torch.full_like(scores, -torch.inf)}, exact=True)
    narrow = build(config.override({"pad_vocab_to": 1}), dtype=subject.dtype).eval()
    sizes, weights = narrow.state_dict(), subject.model.state_dict()
    narrow.load_state_dict({name: weight[: len(sizes[name])] for name, weight in weights.items()})
    yield Comparison("without them", subject.full_pass(tokens, model=narrow), subject.full_pass(tokens))


def cross_attention(subject: Subject) -> Iterator[Comparison]:
    """The cached encoder output gives the same results at every step, and its padding is masked (L1-78, L1-79)."""
    if not subject.is_encoder_decoder:
        raise NotApplicable("applies to encoder-decoders only")
    tokens, width = subject.tokens(3), min(12, subject.config.context)
    source, lengths = subject.source(3, width), [width, max(1, width // 2), 1]
    changed_source = (source + 1) % (subject.config.source_vocab_size or subject.config.vocab_size)
    for side in ("right", "left"):
        layout = Layout.padded(lengths, width, side)
        real = layout.segment >= 0
        padded = subject.full_pass(tokens, None, source, layout)
        for row, length in enumerate(lengths):
            alone = subject.full_pass(tokens[row : row + 1], source=source[row, real[row]][None])
            case = f"source of {length}, padded on the {side}"
            yield Comparison(case, cut(padded, slice(row, row + 1)), alone)
        refilled = subject.full_pass(tokens, None, torch.where(real, source, changed_source), layout)
        yield Comparison(f"other padding on the {side}", refilled, padded, subject.bitwise)
        stepped = subject.stepwise_pass(tokens, range(1, tokens.shape[1]), source, layout)
        yield Comparison(f"step by step, padded on the {side}", stepped, padded)


def routing(subject: Subject) -> Iterator[Comparison]:
    """A token's experts do not depend on the other tokens of the batch."""
    if not any(isinstance(b.ffn, MoEConfig) for s in subject.config.stacks().values() for b in s.blocks):
        raise NotApplicable("no layer has experts")
    tokens = subject.tokens(4)
    alone = subject.full_pass(tokens[:1])
    yield Comparison("with other rows", cut(subject.full_pass(tokens), slice(0, 1)), alone)
    crowd = torch.cat((tokens[:1], tokens[1:2].expand(6, -1)))
    yield Comparison("with equal rows", cut(subject.full_pass(crowd), slice(0, 1)), alone)


def repeats(subject: Subject) -> Iterator[Comparison]:
    """Inference is deterministic: two passes are bit-identical (L0-66)."""
    tokens = subject.tokens(2)
    yield Comparison("a second pass", subject.full_pass(tokens), subject.full_pass(tokens), exact=True)


def training(subject: Subject) -> Iterator[Comparison]:
    """In training mode without dropout, a pass gives the same results (L0-66)."""
    tokens = subject.tokens(3)
    trained = copy.deepcopy(
        subject.model
    ).train()  # a copy, since modules such as BatchNorm update themselves in training mode
    for module in trained.modules():
        if isinstance(module, Dropout | nn.modules.dropout._DropoutNd):
            module.eval()
    yield Comparison("in training mode", subject.full_pass(tokens, model=trained), subject.full_pass(tokens))


def seeing_both_ways(subject: Subject) -> Iterator[Comparison]:
    """An encoder's first output depends on its last token, as the lecture requires (L1-76, L3-04)."""
    if subject.model.encoder is None or subject.model.decoder is not None:
        raise NotApplicable("applies to encoder-only models")
    reach = [m.window for m in attentions(subject.config, "encoder")]
    mixers = [block.mixer for block in subject.config.last()[1].blocks]
    if None not in reach or any(isinstance(mixer, RecurrentConfig) for mixer in mixers):
        raise NotApplicable("no layer attends to the full text")
    subject.require_two_tokens()
    subject.require_two_ids()
    tokens = subject.tokens(1)
    changed = tokens.clone()
    changed[:, -1] = subject.changed_ids(tokens[:, -1])
    first = (slice(None), slice(0, 1))
    a, b = cut(subject.full_pass(tokens), first)["output"], cut(subject.full_pass(changed), first)["output"]
    changed_outputs = (a != b).any()[None].float()
    yield Comparison("last token changed", {"output": changed_outputs}, {"output": torch.ones(1)}, exact=True)


def compiled(subject: Subject) -> Iterator[Comparison]:
    """The model under `torch.compile` computes the same."""
    tokens = subject.tokens(2)
    source, types = subject.source(2) if subject.is_encoder_decoder else None, subject.types(tokens)
    compiled_model = compile_graphs(subject.model)
    with torch.no_grad():
        actual, expected = (
            model(tokens, None, source, types=types).hidden for model in (compiled_model, subject.model)
        )
    yield Comparison("compiled", {"output": actual}, {"output": expected})


CHECKS: dict[str, Check] = {
    "causality": causality,
    "gradient to the future": gradient_to_the_future,
    "reach": reach,
    "prefix": prefix,
    "prefix both ways": prefix_both_ways,
    "layers alone": layers_alone,
    "cached one by one": cached_one_by_one,
    "cached in chunks": cached_in_chunks,
    "growing cache": growing_cache,
    "rolling window": rolling_window,
    "rows alone": rows_alone,
    "forked rows": forks,
    "joined rows": joined_rows,
    "drawn tokens": drawn_tokens,
    "decoding settings": decoding_settings,
    "padding on the right": padding("right"),
    "padding on the left": padding("left"),
    "gradient of padding": padding_gradients,
    "packing": packing,
    "kernels": kernels,
    "gradients of kernels": kernel_gradients,
    "extra entries": extra_entries,
    "cross-attention": cross_attention,
    "routing": routing,
    "seeing both ways": seeing_both_ways,
    "repeats": repeats,
    "training": training,
    "training loss": training_loss,
}
