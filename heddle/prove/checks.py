"""The checks: what the lectures require of any model, said as passes that must give the same.

A check takes the subject and yields comparisons; where it does not apply it says why. The table at the end is the list, and the
tests of heddle's own models run the same one. Checks of a cache are in `caches`, those of what training computes in `learning`.
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
    """Changing token t changes nothing before t: not one bit (L0-87)."""
    subject.needs_decoder()
    subject.needs_two_tokens()
    subject.needs_two_ids()
    tokens = subject.tokens(2)
    before = subject.whole(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        changed = tokens.clone()
        changed[:, t] = subject.others(tokens[:, t])
        past = (slice(None), slice(0, t))
        yield Comparison(f"token {t} changed", cut(subject.whole(changed), past), cut(before, past), subject.bitwise)


def gradient_to_the_future(subject: Subject) -> Iterator[Comparison]:
    """The scores at t have no gradient to tokens after t (L0-87)."""
    subject.needs_decoder()
    subject.needs_two_tokens()
    x, hidden = subject.differentiable(subject.tokens(1))
    for t in sorted({0, x.shape[1] // 2, x.shape[1] - 2} & set(range(x.shape[1] - 1))):
        yield nothing(f"position {t}", gradient(hidden[:, t], x)[:, t + 1 :])


def reach(subject: Subject) -> Iterator[Comparison]:
    """Windows and convolutions tell a token nothing of those further away than all layers together reach."""
    subject.needs_decoder()
    told, length = subject.reachable(subject.length), subject.length
    if len(told) == length:
        raise NotApplicable("its layers reach every token")
    x, hidden = subject.differentiable(subject.tokens(1))
    for t in sorted({length // 2, length - 1}):
        beyond = [t - distance for distance in range(t + 1) if distance not in told]
        if beyond:
            yield nothing(f"position {t}", gradient(hidden[:, t], x)[:, beyond])


def gradient(outputs: Tensor, x: Tensor) -> Tensor:
    """The gradient of the outputs' sum with respect to x; 0 where they do not depend on it."""
    (found,) = torch.autograd.grad(outputs.sum(), x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def nothing(what: str, found: Tensor) -> Comparison:
    """Numbers that must be exactly 0."""
    return Comparison(what, {"output": found.detach()}, {"output": torch.zeros_like(found)}, exactly=True)


def layers_alone(subject: Subject) -> Iterator[Comparison]:
    """Each layer, called alone with a scope of its own, gives what it gives in the stack, whatever the stack's layers share.

    So does the last norm: a stack is its entry, its blocks in order, and that norm (L0-24, L0-25, L3-26).
    """
    stack, given = subject.model.last_stack(), []
    hook = stack.register_forward_pre_hook(lambda module, arguments: given.append(arguments))
    try:
        with torch.no_grad(), stack.watched() as states:
            hidden = subject.hidden(subject.tokens(2))
    finally:
        hook.remove()
    _, layout, _, memory = (*given[-1], None)[:4]
    patterns = [block.mixer.pattern for block in stack.layers()]
    relatives = [*dict.fromkeys(pattern.relative for pattern in patterns if pattern.relative)]
    for number, (block, pattern) in enumerate(zip(stack.layers(), patterns, strict=True)):
        relative = stack.relative[relatives.index(pattern.relative)] if pattern.relative else None
        with torch.no_grad():
            scope, source = pattern.scope(layout, None, relative), None
            if block.cross is not None and memory is not None:
                source = block.cross.pattern.scope(layout, memory.layout, source=memory.hidden)
            alone = block(states[number], scope, FORGETS, source).hidden
        yield Comparison("alone", {f"layer {number}": alone}, {f"layer {number}": states[number + 1]}, exactly=True)
    with torch.no_grad():
        yield Comparison("last norm", {"output": stack.final_norm(states[-1])}, {"output": hidden}, exactly=True)


def prefix(subject: Subject) -> Iterator[Comparison]:
    """The model of a prefix is the prefix of the model: f(x[:t]) = f(x)[:t] (L0-01)."""
    subject.needs_decoder()
    subject.needs_two_tokens()
    tokens = subject.tokens(2)
    whole = subject.whole(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        part = (slice(None), slice(0, t))
        yield Comparison(f"first {t} tokens", subject.whole(tokens[:, :t]), cut(whole, part))


def prefix_both_ways(subject: Subject) -> Iterator[Comparison]:
    """A prefix's first output depends on its last token, and on nothing after it (Raffel et al. 2020, 3.2.1).

    With a prefix of one token, the model is the causal one.
    """
    if not subject.prefix:
        raise NotApplicable("this model has no prefixes")
    if subject.length < 3:
        raise NotApplicable(f"a context of {subject.length} holds no prefix of two tokens and a token after it")
    subject.needs_two_ids()
    tokens, rows, length = subject.tokens(2), 2, subject.length
    end = (length + 1) // 2
    layout = subject.begun([end] * rows, length)
    before = subject.whole(tokens, layout)
    for t in (end - 1, end, length - 1):
        changed = tokens.clone()
        changed[:, t] = subject.others(tokens[:, t])
        found, first = subject.whole(changed, layout), (slice(None), slice(0, 1))
        if t < end:
            moved = (cut(found, first)["output"] != cut(before, first)["output"]).any()[None].float()
            yield Comparison(
                "last token of the prefix changed", {"output": moved}, {"output": torch.ones(1)}, exactly=True
            )
        else:
            past = (slice(None), slice(0, t))
            yield Comparison(f"token {t} changed", cut(found, past), cut(before, past), subject.bitwise)
    yield Comparison("a prefix of one", subject.whole(tokens, subject.begun([1] * rows, length)), subject.whole(tokens))


def padding(side: str) -> Check:
    """Rows filled up, after their end or before their start, give what they give alone; what fills them changes no bit."""

    def check(subject: Subject) -> Iterator[Comparison]:
        width = subject.length
        lengths = [width, max(1, width // 2), 1]
        tokens, layout = subject.tokens(3), subject.prefixed(Layout.padded(lengths, width, side))  # type: ignore[arg-type]
        padded = subject.whole(tokens, layout)
        real = layout.segment >= 0
        for row, length in enumerate(lengths):
            found = {place: tensor[row, real[row]][None] for place, tensor in padded.items()}
            one = subject.prefixed(Layout.whole(1, length))
            alone = subject.whole(tokens[row, real[row]][None], one, subject.source_row(row))
            yield Comparison(f"row of {length}", found, alone)
        refilled = subject.whole(torch.where(real, tokens, subject.others(tokens)), layout)
        yield Comparison("other padding", cut(refilled, real), cut(padded, real), subject.bitwise)

    return check


def padding_gradients(subject: Subject) -> Iterator[Comparison]:
    """Attention gives padding exactly 0, nothing that is real has a gradient to it, and every gradient is finite (D-10, L2-07).

    Also in a row that is padding alone.
    """
    width, model = subject.length, subject.model
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for side in ("right", "left"):
        layout = subject.prefixed(Layout.padded([width, max(1, width // 2), 0], width, side))
        padded = layout.segment < 0
        kept: list[Tensor] = []

        def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, kept: list[Tensor] = kept) -> None:
            kept.append(output.detach().transpose(1, 2))

        kernels = [module for module in model.last_stack().modules() if isinstance(module, Kernel)]
        hooks = [kernel.register_forward_hook(keep) for kernel in kernels]
        try:
            x, hidden = subject.differentiable(subject.tokens(3), layout)
        finally:
            for hook in hooks:
                hook.remove()
        for output in kept:
            yield nothing(f"attention of padding on the {side}", output[padded])
        of_x, *rest = torch.autograd.grad(hidden[~padded].square().sum(), [x, *learned], allow_unused=True)
        yield nothing(f"padding on the {side}", (torch.zeros_like(x) if of_x is None else of_x)[padded])
        bad = sum(int((~each.isfinite()).sum()) for each in (hidden, of_x, *rest) if each is not None)
        yield nothing(f"numbers that are not finite, padding on the {side}", torch.tensor([bad]))


def packing(subject: Subject) -> Iterator[Comparison]:
    """Documents side by side give what each gives alone, and changing one leaves every bit of its neighbours."""
    if subject.both:
        raise NotApplicable("an encoder-decoder has one source per row")
    subject.needs_two_tokens()
    width = subject.length
    first = max(1, width // 3)
    lengths = [[first, width - first], [max(1, width - first - 1)]]  # the second row ends in padding
    tokens, layout = subject.tokens(2), subject.prefixed(Layout.packed(lengths, width))
    packed = subject.whole(tokens, layout)
    for row, documents in enumerate(lengths):
        for number in range(len(documents)):
            inside = (torch.arange(2)[:, None] == row) & (layout.segment == number)
            found = {place: tensor[inside][None] for place, tensor in packed.items()}
            one = subject.prefixed(Layout.whole(1, int(inside.sum())))
            yield Comparison(f"document {number} of row {row}", found, subject.whole(tokens[inside][None], one))
            again = subject.whole(torch.where(inside, subject.others(tokens), tokens), layout)
            rest = (layout.segment >= 0) & ~inside
            what = f"document {number} of row {row} changed"
            yield Comparison(what, cut(again, rest), cut(packed, rest), subject.bitwise)


def kernels(subject: Subject) -> Iterator[Comparison]:
    """All attention kernels compute one function, padded rows included."""
    if not (attentions(subject.config) or subject.both):
        raise NotApplicable("no layer has attention")
    tokens, width = subject.tokens(2), subject.length
    layout = subject.prefixed(Layout.padded([width, max(1, width // 2)], width))
    real = layout.segment >= 0
    wanted: dict[str, Tensor] = {}
    for kernel in ("reference", *[name for name in KERNELS if name != "reference"]):
        try:
            config = with_kernel(subject.config, kernel)
        except HeddleError:  # the kernel cannot do what this model asks of it
            continue
        other = build(config, dtype=subject.dtype).eval()
        other.load_state_dict(subject.model.state_dict())
        found = {place: tensor[real] for place, tensor in subject.whole(tokens, layout, model=other).items()}
        if kernel == "reference":
            wanted = found
        else:
            yield Comparison(kernel, found, wanted)


def extra_entries(subject: Subject) -> Iterator[Comparison]:
    """Entries that fill the vocabulary up are never likely, and change no score (L0-86, D-13)."""
    config, real = subject.config, subject.config.vocab_size
    if not isinstance(config.head, LanguageHeadConfig) or config.table_rows() == real:
        raise NotApplicable("its vocabulary has no extra entries")
    tokens = subject.tokens(2)
    with torch.no_grad():
        scores = subject.model.language_head()(subject.hidden(tokens), None, subject.model.embedding.weight)[..., real:]
    yield Comparison("extra", {"output": scores}, {"output": torch.full_like(scores, -torch.inf)}, exactly=True)
    narrow = build(config.override({"pad_vocab_to": 1}), dtype=subject.dtype).eval()
    sizes, weights = narrow.state_dict(), subject.model.state_dict()
    narrow.load_state_dict({name: weight[: len(sizes[name])] for name, weight in weights.items()})
    yield Comparison("without them", subject.whole(tokens, model=narrow), subject.whole(tokens))


def cross_attention(subject: Subject) -> Iterator[Comparison]:
    """The encoder's output, kept once, serves every step; its padding is seen by nothing (L1-78, L1-79)."""
    if not subject.both:
        raise NotApplicable("there is no encoder and decoder")
    tokens, width = subject.tokens(3), min(12, subject.config.context)
    source, lengths = subject.source(3, width), [width, max(1, width // 2), 1]
    other = (source + 1) % (subject.config.source_vocab_size or subject.config.vocab_size)
    for side in ("right", "left"):
        layout = Layout.padded(lengths, width, side)
        real = layout.segment >= 0
        padded = subject.whole(tokens, None, source, layout)
        for row, length in enumerate(lengths):
            alone = subject.whole(tokens[row : row + 1], source=source[row, real[row]][None])
            what = f"source of {length}, padded on the {side}"
            yield Comparison(what, cut(padded, slice(row, row + 1)), alone)
        refilled = subject.whole(tokens, None, torch.where(real, source, other), layout)
        yield Comparison(f"other padding on the {side}", refilled, padded, subject.bitwise)
        stepped = subject.stepped(tokens, range(1, tokens.shape[1]), source, layout)
        yield Comparison(f"step by step, padded on the {side}", stepped, padded)


def routing(subject: Subject) -> Iterator[Comparison]:
    """A token's experts do not depend on what else is in the batch."""
    if not any(isinstance(b.ffn, MoEConfig) for s in subject.config.stacks().values() for b in s.blocks):
        raise NotApplicable("no layer has experts")
    tokens = subject.tokens(4)
    alone = subject.whole(tokens[:1])
    yield Comparison("beside others", cut(subject.whole(tokens), slice(0, 1)), alone)
    crowd = torch.cat((tokens[:1], tokens[1:2].expand(6, -1)))
    yield Comparison("in a crowd of equals", cut(subject.whole(crowd), slice(0, 1)), alone)


def repeats(subject: Subject) -> Iterator[Comparison]:
    """Nothing is drawn in prediction: two passes are bit-identical (L0-66)."""
    tokens = subject.tokens(2)
    yield Comparison("a second pass", subject.whole(tokens), subject.whole(tokens), exactly=True)


def training(subject: Subject) -> Iterator[Comparison]:
    """What is trained is what predicts: in training mode, with nothing dropped, a pass gives the same (L0-66)."""
    tokens = subject.tokens(3)
    trained = copy.deepcopy(
        subject.model
    ).train()  # modules such as a BatchNorm change themselves while they are trained
    for module in trained.modules():
        if isinstance(module, Dropout | nn.modules.dropout._DropoutNd):
            module.eval()
    yield Comparison("in training mode", subject.whole(tokens, model=trained), subject.whole(tokens))


def seeing_both_ways(subject: Subject) -> Iterator[Comparison]:
    """An encoder's first output depends on its last token, as the lecture requires (L1-76, L3-04)."""
    if subject.model.encoder is None or subject.model.decoder is not None:
        raise NotApplicable("this is no encoder alone")
    reach = [m.window for m in attentions(subject.config, "encoder")]
    mixers = [block.mixer for block in subject.config.last()[1].blocks]
    if None not in reach or any(isinstance(mixer, RecurrentConfig) for mixer in mixers):
        raise NotApplicable("no layer sees everything")
    subject.needs_two_tokens()
    subject.needs_two_ids()
    tokens = subject.tokens(1)
    changed = tokens.clone()
    changed[:, -1] = subject.others(tokens[:, -1])
    first = (slice(None), slice(0, 1))
    a, b = cut(subject.whole(tokens), first)["output"], cut(subject.whole(changed), first)["output"]
    moved = (a != b).any()[None].float()
    yield Comparison("last token changed", {"output": moved}, {"output": torch.ones(1)}, exactly=True)


def compiled(subject: Subject) -> Iterator[Comparison]:
    """What `torch.compile` makes of the model computes the same."""
    tokens = subject.tokens(2)
    source, types = subject.source(2) if subject.both else None, subject.types(tokens)
    made = compile_graphs(subject.model)
    with torch.no_grad():
        found, wanted = (model(tokens, None, source, types=types).hidden for model in (made, subject.model))
    yield Comparison("compiled", {"output": found}, {"output": wanted})


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
