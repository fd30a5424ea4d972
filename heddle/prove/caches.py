"""The checks of a cache: generation, however a text is cut and whatever rows are beside it, computes what one pass computes."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from heddle.config.decoding import EngineConfig, SamplingConfig
from heddle.config.ids import SpecialIds
from heddle.config.model import LanguageHeadConfig
from heddle.generate import generate
from heddle.generate.engine import Engine
from heddle.generate.prefill import MIN_SHARED
from heddle.nn.state import ROUND
from heddle.prove.subject import Subject, cut, joined
from heddle.prove.verdict import Comparison, NotApplicable


def cached_one_by_one(subject: Subject) -> Iterator[Comparison]:
    """Generation, token by token through a cache, computes what training computed at once (L2-08)."""
    subject.needs_decoder()
    tokens = subject.tokens(2)
    yield Comparison("one by one", subject.stepped(tokens, range(1, tokens.shape[1])), subject.whole(tokens))


def cached_in_chunks(subject: Subject) -> Iterator[Comparison]:
    """A prompt read in chunks of any size, then single tokens, is the same text."""
    subject.needs_decoder()
    tokens = subject.tokens(2)
    length = tokens.shape[1]
    for cuts in ([length // 3], [1, length // 2, length // 2 + 1], [length - 2, length - 1]):
        yield Comparison(f"cut at {cuts}", subject.stepped(tokens, cuts), subject.at_once(tokens, cuts))


def growing_cache(subject: Subject) -> Iterator[Comparison]:
    """A text that outgrows a cache's first room (64 slots), or its second, stays right; so do rows beside shorter ones."""
    subject.needs_decoder()
    length = min(2 * ROUND + 6, subject.config.context)
    if length <= ROUND:
        raise NotApplicable(f"no text of this context outgrows {ROUND} slots")
    tokens = subject.tokens(3, length)
    cuts = [ROUND - 4, ROUND - 1, ROUND, ROUND + 1, 2 * ROUND, 2 * ROUND + 1]
    yield Comparison("in chunks", subject.stepped(tokens[:2], cuts), subject.at_once(tokens[:2], cuts))
    yield from read_together(subject, tokens, [ROUND - 1, 3, length])


def rolling_window(subject: Subject) -> Iterator[Comparison]:
    """What a layer forgets is what it does not see: texts at least twice as long as any window or reach stay right."""
    subject.needs_decoder()
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
    subject.needs_decoder()
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
        begun = subject.begun([calls[0][row]], length)
        alone = subject.whole(tokens[row : row + 1, :length], begun, subject.source_row(row))
        yield Comparison(f"row {row} of 3", cut(together, (slice(row, row + 1), places)), alone)


def forks(subject: Subject) -> Iterator[Comparison]:
    """Rows of a cache that are dropped, doubled or reordered continue as if alone, and leave the cache they came from as it was."""
    subject.needs_decoder()
    subject.needs_two_tokens()
    length = subject.length - 1
    tokens, lengths = subject.tokens(3), [length, max(1, length // 2), max(1, length // 3)]
    cache = subject.model.new_cache(3)
    subject.step(tokens[:, :length], cache, lengths)
    order = [2, 0, 2]
    chosen = cache.select(order)
    for name, held, rows in (("forked", chosen, order), ("left behind", cache, [0, 1, 2])):
        fed = torch.stack([tokens[row, lengths[row]] for row in rows])[:, None]
        if name == "forked":  # other tokens, so that a memory in common would show
            fed[2] = subject.others(fed[2])
        found = subject.traced(partial(subject.step, fed, held))
        for place, row in enumerate(rows):
            text = torch.cat((tokens[row, : lengths[row]], fed[place]))[None]
            alone = subject.whole(text, subject.begun([lengths[row]], text.shape[1]), subject.source_row(row))
            last = (slice(None), slice(-1, None))
            yield Comparison(f"row {row} {name}", cut(found, slice(place, place + 1)), cut(alone, last))


def joined_rows(subject: Subject) -> Iterator[Comparison]:
    """Rows that join a cache of others, longer ones and with a longer source, continue as if alone."""
    subject.needs_decoder()
    subject.needs_two_tokens()
    model, context = subject.model, subject.config.context
    long, short = min(ROUND + 6, context), max(2, min(6, context // 2))
    old, new = subject.tokens(1, long), subject.tokens(2, short)
    source = subject.source(1, min(15, context)) if subject.both else None
    first, second = model.new_cache(1), model.new_cache(2)
    subject.step(old[:, :-1], first, None, source)
    subject.step(new[:, :-1], second)
    both = second.join(first)
    found = subject.traced(lambda: subject.step(torch.cat((new[:, -1:], old[:, -1:])), both))
    last, begun = (
        (slice(None), slice(-1, None)),
        [subject.begun([size - 1] * rows, size) for rows, size in ((2, short), (1, long))],
    )
    yield Comparison("the shorter rows", cut(found, slice(0, 2)), cut(subject.whole(new, begun[0]), last))
    yield Comparison("the longer row", cut(found, slice(2, 3)), cut(subject.whole(old, begun[1], source), last))


def drawn_tokens(subject: Subject) -> Iterator[Comparison]:
    """The token loop, from prompts of different lengths, draws the best tokens of one pass over the text, as probable as there.

    They are the best of those that may be drawn: what a model's config bans never is.
    """
    subject.needs_decoder()
    if subject.both or not isinstance(subject.config.head, LanguageHeadConfig):
        raise NotApplicable("the token loop does not draw from it")
    most = subject.length
    prompts = [
        row[:length].tolist() for row, length in zip(subject.tokens(3), (1, most // 3 + 1, most // 2 + 1), strict=True)
    ]
    texts = [list(prompt) for prompt in prompts]
    said: list[list[float]] = [[], [], []]
    for event in generate(subject.model, prompts, SamplingConfig(temperature=0.0, max_tokens=max(1, most // 2))):
        texts[event.row].append(event.token)
        said[event.row].append(event.logprob)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        longest = min(len(prompt) + max(1, most // 2), subject.config.context + 1)
        read = torch.tensor([text[:-1]])
        # The loop says no types, so all are of the first.
        types, begun = subject.types(torch.zeros_like(read)), subject.begun([len(prompt)], read.shape[1])
        scores = subject.whole(read, begun, types=types)["output"][:, len(prompt) - 1 :]
        drawn = torch.tensor([text[len(prompt) :]])[..., None]
        probable = scores.log_softmax(-1).gather(-1, drawn)
        yield Comparison(
            f"probabilities of row {row}",
            {"output": probable.new_tensor(said[row])[None, :, None]},
            {"output": probable},
        )
        for step in range(scores.shape[1]):
            before = text[: len(prompt) + step]
            scores[0, step, banned(subject.config.ids, before)] = -torch.inf
            if forced := forced_ids(subject.config.ids, len(before), last=len(before) + 1 == longest):
                scores[0, step] = -torch.inf
                scores[0, step, forced] = 0.0
        chosen = scores.gather(-1, drawn)
        yield Comparison(f"row {row} of 3", {"output": chosen}, {"output": scores.amax(-1, keepdim=True)})
    longest = min(
        subject.config.context - 1, MIN_SHARED + 2
    )  # long enough for its states to be kept, if the model has room
    if longest > 1 and not subject.model.last_stack().prefix:
        tokens = subject.tokens(1)
        yield from _echoes(subject, tokens.repeat(1, -(-longest // tokens.shape[1]))[:, :longest])


def _echoes(subject: Subject, prompt: Tensor) -> Iterator[Comparison]:
    """The probabilities of a prompt's own tokens are those of one pass over it, also if the states of one like it were kept."""
    engine = Engine(subject.model, config=EngineConfig(keep=1))
    said: list[float] = []
    for echo in (False, True):
        engine.submit(prompt[0].tolist(), SamplingConfig(temperature=0.0, max_tokens=1), echo=echo)
        while engine:
            said += [each.logprob for event in engine.step() for each in event.prompt]
    scores = subject.whole(prompt, types=subject.types(torch.zeros_like(prompt)))["output"][:, :-1]
    probable = scores.log_softmax(-1).gather(-1, prompt[:, 1:, None])
    yield Comparison(
        "a prompt that is read again", {"output": probable.new_tensor(said)[None, :, None]}, {"output": probable}
    )


def forced_ids(ids: SpecialIds | None, length: int, last: bool) -> list[int]:
    """The ids of which one must follow a text of `length` ids: a model's first, or its last where the text has no more room."""
    if ids is None:
        return []
    if last and ids.forced_ends():
        return list(ids.forced_ends())
    return [ids.forced_begin] if length == 1 and ids.forced_begin is not None else []


def banned(ids: SpecialIds | None, text: Sequence[int]) -> list[int]:
    """The ids that must not follow a text: the last of each banned run whose others it ends with. Ids that end a text may."""
    if ids is None:
        return []
    runs = [run for run in ids.banned if len(run) > 1 or run[0] not in ids.ends()]
    return [run[-1] for run in runs if tuple(text[len(text) - len(run) + 1 :]) == run[:-1]]
