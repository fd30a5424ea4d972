"""The checks, one function each: what a lecture requires of any model, said as passes that must give the same.

A check takes the subject and gives comparisons; where it does not apply it says why. The table at the end is the list.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from heddle.config.ids import SpecialIds
from heddle.config.layers import MoEConfig, RecurrentConfig
from heddle.config.model import LanguageHeadConfig, with_kernel
from heddle.config.sampling import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import generate
from heddle.model.build import build
from heddle.nn.dropout import Dropout
from heddle.nn.kernels import KERNELS
from heddle.nn.layout import Layout
from heddle.prove.learning import kernel_gradients, training_loss
from heddle.prove.subject import Subject, attentions, cut, fixed_source, joined
from heddle.prove.verdict import Comparison, NotApplicable

Check = Callable[[Subject], Iterator[Comparison]]


def causality(subject: Subject) -> Iterator[Comparison]:
    """Changing token t changes nothing before t: not one bit (L0-87)."""
    needs_decoder(subject)
    needs_two_tokens(subject)
    needs_two_ids(subject)
    tokens = subject.tokens(2)
    before = subject.whole(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        changed = tokens.clone()
        changed[:, t] = subject.others(tokens[:, t])
        past = (slice(None), slice(0, t))
        yield Comparison(f"token {t} changed", cut(subject.whole(changed), past), cut(before, past), subject.bitwise)


def gradient_to_the_future(subject: Subject) -> Iterator[Comparison]:
    """The scores at t have no gradient to tokens after t (L0-87)."""
    needs_decoder(subject)
    needs_two_tokens(subject)
    tokens, looked_up = subject.tokens(1), []

    def keep(module: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
        looked_up.append(vectors.detach().requires_grad_())
        return looked_up[-1]

    hook = subject.model.embedding.register_forward_hook(keep)
    try:
        hidden = subject.hidden(tokens)
    finally:
        hook.remove()
    x = looked_up[-1]  # an encoder's source comes first, where both have one table
    for t in sorted({0, tokens.shape[1] // 2, tokens.shape[1] - 2} & set(range(tokens.shape[1] - 1))):
        (gradient,) = torch.autograd.grad(hidden[:, t].sum(), x, retain_graph=True, allow_unused=True)
        later = torch.zeros_like(x[:, t + 1 :]) if gradient is None else gradient[:, t + 1 :]
        yield Comparison(f"position {t}", {"output": later}, {"output": torch.zeros_like(later)}, exactly=True)


def prefix(subject: Subject) -> Iterator[Comparison]:
    """The model of a prefix is the prefix of the model: f(x[:t]) = f(x)[:t] (L0-01)."""
    needs_decoder(subject)
    needs_two_tokens(subject)
    tokens = subject.tokens(2)
    whole = subject.whole(tokens)
    for t in sorted({1, 2, tokens.shape[1] // 2, tokens.shape[1] - 1} & set(range(1, tokens.shape[1]))):
        part = (slice(None), slice(0, t))
        yield Comparison(f"first {t} tokens", subject.whole(tokens[:, :t]), cut(whole, part))


def cached_one_by_one(subject: Subject) -> Iterator[Comparison]:
    """Generation, token by token through a cache, computes what training computed at once (L2-08)."""
    needs_decoder(subject)
    tokens = subject.tokens(2)
    yield Comparison("one by one", subject.stepped(tokens, range(1, tokens.shape[1])), subject.whole(tokens))


def cached_in_chunks(subject: Subject) -> Iterator[Comparison]:
    """A prompt read in chunks of any size, then single tokens, is the same text."""
    needs_decoder(subject)
    tokens = subject.tokens(2)
    whole, length = subject.whole(tokens), tokens.shape[1]
    for cuts in ([length // 3], [1, length // 2, length // 2 + 1], [length - 2, length - 1]):
        yield Comparison(f"cut at {cuts}", subject.stepped(tokens, cuts), whole)


def rolling_window(subject: Subject) -> Iterator[Comparison]:
    """What a layer forgets is what it does not see: texts at least twice as long as any window or reach stay right."""
    needs_decoder(subject)
    reaches, context = subject.reaches(), subject.config.context
    if not reaches:
        raise NotApplicable("no layer forgets")
    if reaches[0] >= context:
        raise NotApplicable(f"no layer forgets anything within the context of {context}")
    far = reaches[-1]
    length = min(2 * far + 5, context)
    tokens = subject.tokens(2, length)
    whole = subject.whole(tokens)
    # Single tokens where some layer overwrites its oldest, and where it comes round again; whatever lies between at once.
    turns = {turn + more for reach in reaches for turn in (reach, 2 * reach) for more in range(-1, 3)}
    yield Comparison("one by one at each turn", subject.stepped(tokens, sorted(turns)), whole)
    for size in (max(2, far // 2), far + 2):
        yield Comparison(f"in chunks of {size}", subject.stepped(tokens, range(1, length, size)), whole)
    yield from read_together(subject, subject.tokens(3, length), [far - 1, length, length // 2])


def rows_alone(subject: Subject) -> Iterator[Comparison]:
    """Texts of different lengths that go on together give what each gives alone."""
    needs_decoder(subject)
    most = subject.length
    yield from read_together(subject, subject.tokens(3), [most // 3, most, most // 2])


def read_together(subject: Subject, tokens: Tensor, lengths: Sequence[int]) -> Iterator[Comparison]:
    """Three rows through one cache: their first `lengths` tokens or as many as leave some over, then more, in two calls."""
    width = tokens.shape[1]
    more = [[1, 2, 1], [1, 1, 1]] if width > 3 else [[1, 1, 1]] * (width - 1)
    left = [width - sum(counts) for counts in zip(*more, strict=True)] or [width] * 3
    calls = [[min(max(1, length), most) for length, most in zip(lengths, left, strict=True)], *more]
    cache = subject.model.new_cache(3)
    done, traces = [0, 0, 0], []
    for counts in calls:
        fed = tokens.new_zeros(3, max(counts))
        for row, count in enumerate(counts):
            fed[row, :count] = tokens[row, done[row] : done[row] + count]
            done[row] += count
        traces.append(subject.traced(partial(subject.step, fed, cache, counts)))
    together = joined(traces)
    starts = [*accumulate((max(counts) for counts in calls[:-1]), initial=0)]
    for row, length in enumerate(done):
        places = [start + i for start, counts in zip(starts, calls, strict=True) for i in range(counts[row])]
        alone = subject.whole(tokens[row : row + 1, :length], source=source_row(subject, row))
        yield Comparison(f"row {row} of 3", cut(together, (slice(row, row + 1), places)), alone)


def forks(subject: Subject) -> Iterator[Comparison]:
    """Rows of a cache that are dropped, doubled or reordered go on as if alone."""
    needs_decoder(subject)
    needs_two_tokens(subject)
    length = subject.length - 1
    tokens, lengths = subject.tokens(3), [length, max(1, length // 2), max(1, length // 3)]
    cache = subject.model.new_cache(3)
    subject.step(tokens[:, :length], cache, lengths)
    order = [2, 0, 2]
    fed = torch.stack([tokens[row, lengths[row]] for row in order])[:, None]
    chosen = cache.select(order)
    found = subject.traced(lambda: subject.step(fed, chosen))
    for place, row in enumerate(order):
        alone = subject.whole(tokens[row : row + 1, : lengths[row] + 1], source=source_row(subject, row))
        last = (slice(None), slice(-1, None))
        yield Comparison(f"row {row} forked", cut(found, slice(place, place + 1)), cut(alone, last))


def drawn_tokens(subject: Subject) -> Iterator[Comparison]:
    """The tokens that the token loop draws, from prompts of different lengths, are the best of one pass over the text.

    They are the best of those that may be drawn: what a model's config bans never is.
    """
    needs_decoder(subject)
    if subject.both or not isinstance(subject.config.head, LanguageHeadConfig):
        raise NotApplicable("the token loop does not draw from it")
    most = subject.length
    prompts = [
        row[:length].tolist() for row, length in zip(subject.tokens(3), (1, most // 3 + 1, most // 2 + 1), strict=True)
    ]
    texts = [list(prompt) for prompt in prompts]
    for event in generate(subject.model, prompts, SamplingConfig(temperature=0.0, max_tokens=max(1, most // 2))):
        texts[event.row].append(event.token)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        read = torch.tensor([text[:-1]])
        # The loop says no types, so all are of the first.
        scores = subject.whole(read, types=subject.types(torch.zeros_like(read)))["output"][:, len(prompt) - 1 :]
        for step in range(scores.shape[1]):
            scores[0, step, banned(subject.config.ids, text[: len(prompt) + step])] = -torch.inf
        chosen = scores.gather(-1, torch.tensor([text[len(prompt) :]])[..., None])
        yield Comparison(f"row {row} of 3", {"output": chosen}, {"output": scores.amax(-1, keepdim=True)})


def banned(ids: SpecialIds | None, text: Sequence[int]) -> list[int]:
    """The ids that must not follow a text: the last of each banned run whose others it ends with. Ids that end a text may."""
    if ids is None:
        return []
    runs = [run for run in ids.banned if len(run) > 1 or run[0] not in ids.ends()]
    return [run[-1] for run in runs if tuple(text[len(text) - len(run) + 1 :]) == run[:-1]]


def padding(side: str) -> Check:
    """Rows filled up, after their end or before their start, give what they give alone; what fills them changes no bit."""

    def check(subject: Subject) -> Iterator[Comparison]:
        width = subject.length
        lengths = [width, max(1, width // 2), 1]
        tokens, layout = subject.tokens(3), Layout.padded(lengths, width, side)  # type: ignore[arg-type]
        padded = subject.whole(tokens, layout)
        real = layout.segment >= 0
        for row, length in enumerate(lengths):
            found = {place: tensor[row, real[row]][None] for place, tensor in padded.items()}
            alone = subject.whole(tokens[row, real[row]][None], source=source_row(subject, row))
            yield Comparison(f"row of {length}", found, alone)
        refilled = subject.whole(torch.where(real, tokens, subject.others(tokens)), layout)
        yield Comparison("other padding", cut(refilled, real), cut(padded, real), subject.bitwise)

    return check


def packing(subject: Subject) -> Iterator[Comparison]:
    """Documents side by side give what each gives alone, and changing one leaves every bit of its neighbours."""
    if subject.both:
        raise NotApplicable("an encoder-decoder has one source per row")
    needs_two_tokens(subject)
    width = subject.length
    first = max(1, width // 3)
    lengths = [[first, width - first]]
    tokens, layout = subject.tokens(1), Layout.packed(lengths, width)
    packed = subject.whole(tokens, layout)
    start = 0
    for number, length in enumerate(lengths[0]):
        part = (slice(None), slice(start, start + length))
        yield Comparison(f"document {number}", cut(packed, part), subject.whole(tokens[part]))
        changed = tokens.clone()
        changed[part] = subject.others(tokens[part])
        again, rest = subject.whole(changed, layout), layout.segment[0] != number
        yield Comparison(
            f"document {number} changed",
            cut(again, (slice(None), rest)),
            cut(packed, (slice(None), rest)),
            exactly=subject.bitwise,
        )
        start += length


def kernels(subject: Subject) -> Iterator[Comparison]:
    """All attention kernels compute one function, padded rows included."""
    if not attentions(subject.config):
        raise NotApplicable("no layer pays attention")
    tokens, layout = subject.tokens(2), Layout.padded([subject.length, max(1, subject.length // 2)], subject.length)
    real = layout.segment >= 0
    wanted: dict[str, Tensor] = {}
    for kernel in ("reference", *[name for name in KERNELS if name != "reference"]):
        try:
            config = with_kernel(subject.config, kernel)
        except HeddleError:  # the kernel cannot do what this model asks of it
            continue
        other = build(config).eval()
        other.load_state_dict(subject.model.state_dict())
        found = {place: tensor[real] for place, tensor in subject.whole(tokens, layout, model=other).items()}
        if kernel == "reference":
            wanted = found
        else:
            yield Comparison(kernel, found, wanted)


def cross_attention(subject: Subject) -> Iterator[Comparison]:
    """The encoder's output, kept once, serves every step; its padding is seen by nothing (L1-78, L1-79)."""
    if not subject.both:
        raise NotApplicable("there is no encoder and decoder")
    tokens, width = subject.tokens(3), min(12, subject.config.context)
    source, lengths = subject.source(3, width), [width, max(1, width // 2), 1]
    layout = Layout.padded(lengths, width)
    padded = subject.whole(tokens, None, source, layout)
    for row, length in enumerate(lengths):
        alone = subject.whole(tokens[row : row + 1], source=source[row : row + 1, :length])
        yield Comparison(f"source of {length}", cut(padded, slice(row, row + 1)), alone)
    real = layout.segment >= 0
    refilled = torch.where(real, source, (source + 1) % (subject.config.source_vocab_size or subject.config.vocab_size))
    yield Comparison("other padding", subject.whole(tokens, None, refilled, layout), padded, subject.bitwise)
    stepped = subject.stepped(tokens, range(1, tokens.shape[1]), source, layout)
    yield Comparison("step by step", stepped, padded)


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
    needs_two_tokens(subject)
    needs_two_ids(subject)
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
    made = torch.compile(subject.model)
    with torch.no_grad():
        found, wanted = (model(tokens, None, source, types=types).hidden for model in (made, subject.model))
    yield Comparison("compiled", {"output": found}, {"output": wanted})


def needs_decoder(subject: Subject) -> None:
    """Skip what only a decoder promises."""
    if subject.model.decoder is None:
        raise NotApplicable("only a decoder promises this")


def needs_two_tokens(subject: Subject) -> None:
    """Skip what speaks of a token before or beside another."""
    if subject.length < 2:
        raise NotApplicable("a context of 1 holds no two tokens")


def needs_two_ids(subject: Subject) -> None:
    """Skip what changes a token, where there is no other."""
    if subject.config.vocab_size < 2:
        raise NotApplicable("a vocabulary of 1 has no other token")


def source_row(subject: Subject, row: int) -> Tensor | None:
    """Row `row` of the fixed source, where there is one."""
    return fixed_source(subject, row + 1)[row:] if subject.both else None


CHECKS: dict[str, Check] = {
    "causality": causality,
    "gradient to the future": gradient_to_the_future,
    "prefix": prefix,
    "cached one by one": cached_one_by_one,
    "cached in chunks": cached_in_chunks,
    "rolling window": rolling_window,
    "rows alone": rows_alone,
    "forked rows": forks,
    "drawn tokens": drawn_tokens,
    "padding on the right": padding("right"),
    "padding on the left": padding("left"),
    "packing": packing,
    "kernels": kernels,
    "gradients of kernels": kernel_gradients,
    "cross-attention": cross_attention,
    "routing": routing,
    "seeing both ways": seeing_both_ways,
    "repeats": repeats,
    "training": training,
    "training loss": training_loss,
}
