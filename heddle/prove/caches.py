"""Checks of the KV cache: generation in any chunks and with any other rows computes the same as one pass."""

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
from heddle.prove.subject import Subject, concatenate, cut
from heddle.prove.verdict import Comparison, NotApplicable


def cached_one_by_one(subject: Subject) -> Iterator[Comparison]:
    """Decoding token by token with a cache computes the same as one pass (L2-08)."""
    subject.require_decoder()
    tokens = subject.tokens(2)
    yield Comparison("one by one", subject.stepwise_pass(tokens, range(1, tokens.shape[1])), subject.full_pass(tokens))


def cached_in_chunks(subject: Subject) -> Iterator[Comparison]:
    """Chunked prefill followed by single tokens computes the same as one pass."""
    subject.require_decoder()
    tokens = subject.tokens(2)
    length = tokens.shape[1]
    for cuts in ([length // 3], [1, length // 2, length // 2 + 1], [length - 2, length - 1]):
        yield Comparison(f"cut at {cuts}", subject.stepwise_pass(tokens, cuts), subject.single_pass(tokens, cuts))


def growing_cache(subject: Subject) -> Iterator[Comparison]:
    """Results stay the same when a text outgrows the cache's allocation of 64 slots once or twice, also among shorter rows."""
    subject.require_decoder()
    length = min(2 * ROUND + 6, subject.config.context)
    if length <= ROUND:
        raise NotApplicable(f"the context fits into {ROUND} slots")
    tokens = subject.tokens(3, length)
    cuts = [ROUND - 4, ROUND - 1, ROUND, ROUND + 1, 2 * ROUND, 2 * ROUND + 1]
    yield Comparison("in chunks", subject.stepwise_pass(tokens[:2], cuts), subject.single_pass(tokens[:2], cuts))
    yield from read_together(subject, tokens, [ROUND - 1, 3, length])


def rolling_window(subject: Subject) -> Iterator[Comparison]:
    """Rolling caches only drop what no layer attends to: texts twice as long as any window give the same results."""
    subject.require_decoder()
    windows, context = subject.state_windows(), subject.config.context
    if not windows:
        raise NotApplicable("no layer has a window")
    if windows[0] >= context:
        raise NotApplicable(f"no window is shorter than the context of {context}")
    largest = windows[-1]
    length = min(2 * largest + 5, context)
    tokens = subject.tokens(2, length)
    full = subject.full_pass(tokens)
    # Single tokens around the steps where a layer starts to overwrite its oldest entries, and chunks in between.
    turns = {turn + offset for window in windows for turn in (window, 2 * window) for offset in range(-1, 3)}
    yield Comparison("one by one at each turn", subject.stepwise_pass(tokens, sorted(turns)), full)
    for size in (max(2, largest // 2), largest + 2):
        yield Comparison(f"in chunks of {size}", subject.stepwise_pass(tokens, range(1, length, size)), full)
    yield from read_together(subject, subject.tokens(3, length), [largest - 1, length, length // 2])


def rows_alone(subject: Subject) -> Iterator[Comparison]:
    """Rows of different lengths in one batch give the same results as alone."""
    subject.require_decoder()
    max_length = subject.length
    yield from read_together(subject, subject.tokens(3), [max_length // 3, max_length, max_length // 2])


def read_together(subject: Subject, tokens: Tensor, lengths: Sequence[int]) -> Iterator[Comparison]:
    """Run three rows through one cache: about `lengths` tokens first, then a few more in two calls."""
    width = tokens.shape[1]
    further_counts = [[1, 2, 1], [1, 1, 1]] if width > 3 else [[1, 1, 1]] * (width - 1)
    room = [width - sum(counts) for counts in zip(*further_counts, strict=True)] or [width] * 3
    calls = [[min(max(1, length), room_left) for length, room_left in zip(lengths, room, strict=True)], *further_counts]
    cache = subject.model.new_cache(3)
    done, traces = [0, 0, 0], []
    for counts in calls:
        inputs = tokens.new_zeros(3, max(counts))
        for row, count in enumerate(counts):
            inputs[row, :count] = tokens[row, done[row] : done[row] + count]
            done[row] += count
        traces.append(subject.trace(partial(subject.step, inputs, cache, counts)))
    together = concatenate(traces)
    starts = [*accumulate((max(counts) for counts in calls[:-1]), initial=0)]
    for row, length in enumerate(done):
        places = [start + i for start, counts in zip(starts, calls, strict=True) for i in range(counts[row])]
        begun = subject.prompt_layout([calls[0][row]], length)
        alone = subject.full_pass(tokens[row : row + 1, :length], begun, subject.source_row(row))
        yield Comparison(f"row {row} of 3", cut(together, (slice(row, row + 1), places)), alone)


def forks(subject: Subject) -> Iterator[Comparison]:
    """Rows of a forked cache continue as if alone, and the original cache is unchanged."""
    subject.require_decoder()
    subject.require_two_tokens()
    length = subject.length - 1
    tokens, lengths = subject.tokens(3), [length, max(1, length // 2), max(1, length // 3)]
    cache = subject.model.new_cache(3)
    subject.step(tokens[:, :length], cache, lengths)
    order = [2, 0, 2]
    forked = cache.select(order)
    for name, row_cache, rows in (("forked", forked, order), ("left behind", cache, [0, 1, 2])):
        inputs = torch.stack([tokens[row, lengths[row]] for row in rows])[:, None]
        if name == "forked":  # other tokens, so that shared memory would show
            inputs[2] = subject.changed_ids(inputs[2])
        actual = subject.trace(partial(subject.step, inputs, row_cache))
        for place, row in enumerate(rows):
            text = torch.cat((tokens[row, : lengths[row]], inputs[place]))[None]
            alone = subject.full_pass(
                text, subject.prompt_layout([lengths[row]], text.shape[1]), subject.source_row(row)
            )
            last = (slice(None), slice(-1, None))
            yield Comparison(f"row {row} {name}", cut(actual, slice(place, place + 1)), cut(alone, last))


def joined_rows(subject: Subject) -> Iterator[Comparison]:
    """Rows that join a cache of longer rows with a longer source continue as if alone."""
    subject.require_decoder()
    subject.require_two_tokens()
    model, context = subject.model, subject.config.context
    long, short = min(ROUND + 6, context), max(2, min(6, context // 2))
    old, new = subject.tokens(1, long), subject.tokens(2, short)
    source = subject.source(1, min(15, context)) if subject.is_encoder_decoder else None
    first, second = model.new_cache(1), model.new_cache(2)
    subject.step(old[:, :-1], first, None, source)
    subject.step(new[:, :-1], second)
    joined = second.join(first)
    actual = subject.trace(lambda: subject.step(torch.cat((new[:, -1:], old[:, -1:])), joined))
    last, layouts = (
        (slice(None), slice(-1, None)),
        [subject.prompt_layout([size - 1] * rows, size) for rows, size in ((2, short), (1, long))],
    )
    yield Comparison("the shorter rows", cut(actual, slice(0, 2)), cut(subject.full_pass(new, layouts[0]), last))
    yield Comparison("the longer row", cut(actual, slice(2, 3)), cut(subject.full_pass(old, layouts[1], source), last))


def drawn_tokens(subject: Subject) -> Iterator[Comparison]:
    """Greedy generation from prompts of different lengths picks the most probable tokens of one pass, as probable as there.

    Tokens that the model's config bans are excluded.
    """
    subject.require_decoder()
    if subject.is_encoder_decoder or not isinstance(subject.config.head, LanguageHeadConfig):
        raise NotApplicable("the token loop does not sample from this model")
    max_length = subject.length
    prompts = [
        row[:length].tolist()
        for row, length in zip(subject.tokens(3), (1, max_length // 3 + 1, max_length // 2 + 1), strict=True)
    ]
    texts = [list(prompt) for prompt in prompts]
    logprobs: list[list[float]] = [[], [], []]
    for event in generate(subject.model, prompts, SamplingConfig(temperature=0.0, max_tokens=max(1, max_length // 2))):
        texts[event.row].append(event.token)
        logprobs[event.row].append(event.logprob)
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        longest = min(len(prompt) + max(1, max_length // 2), subject.config.context + 1)
        read = torch.tensor([text[:-1]])
        # Generation passes no token types, so all are of type 0.
        types, layout = subject.types(torch.zeros_like(read)), subject.prompt_layout([len(prompt)], read.shape[1])
        scores = subject.full_pass(read, layout, types=types)["output"][:, len(prompt) - 1 :]
        sampled = torch.tensor([text[len(prompt) :]])[..., None]
        expected = scores.log_softmax(-1).gather(-1, sampled)
        yield Comparison(
            f"probabilities of row {row}",
            {"output": expected.new_tensor(logprobs[row])[None, :, None]},
            {"output": expected},
        )
        for step in range(scores.shape[1]):
            prefix = text[: len(prompt) + step]
            scores[0, step, banned(subject.config.ids, prefix)] = -torch.inf
            if forced := forced_ids(subject.config.ids, len(prefix), last=len(prefix) + 1 == longest):
                scores[0, step] = -torch.inf
                scores[0, step, forced] = 0.0
        sampled_scores = scores.gather(-1, sampled)
        yield Comparison(f"row {row} of 3", {"output": sampled_scores}, {"output": scores.amax(-1, keepdim=True)})
    longest = min(subject.config.context - 1, MIN_SHARED + 2)  # long enough for the prefix cache, if the context allows
    if longest > 1 and not subject.model.last_stack().prefix:
        tokens = subject.tokens(1)
        yield from _echoes(subject, tokens.repeat(1, -(-longest // tokens.shape[1]))[:, :longest])


def _echoes(subject: Subject, prompt: Tensor) -> Iterator[Comparison]:
    """The log probabilities of prompt tokens equal those of one pass, also with a prefix cache hit."""
    engine = Engine(subject.model, config=EngineConfig(keep=1))
    logprobs: list[float] = []
    for echo in (False, True):
        engine.submit(prompt[0].tolist(), SamplingConfig(temperature=0.0, max_tokens=1), echo=echo)
        while engine:
            logprobs += [token.logprob for event in engine.step() for token in event.prompt]
    scores = subject.full_pass(prompt, types=subject.types(torch.zeros_like(prompt)))["output"][:, :-1]
    expected = scores.log_softmax(-1).gather(-1, prompt[:, 1:, None])
    yield Comparison(
        "a prompt that is read again", {"output": expected.new_tensor(logprobs)[None, :, None]}, {"output": expected}
    )


def forced_ids(ids: SpecialIds | None, length: int, last: bool) -> list[int]:
    """The ids one of which is forced after `length` ids: the begin id at first, the end ids at the last position."""
    if ids is None:
        return []
    if last and ids.forced_ends():
        return list(ids.forced_ends())
    return [ids.forced_begin] if length == 1 and ids.forced_begin is not None else []


def banned(ids: SpecialIds | None, text: Sequence[int]) -> list[int]:
    """The ids banned after a text: the last id of each banned run whose other ids end the text. End ids are never banned alone."""
    if ids is None:
        return []
    runs = [run for run in ids.banned if len(run) > 1 or run[0] not in ids.ends()]
    return [run[-1] for run in runs if tuple(text[len(text) - len(run) + 1 :]) == run[:-1]]
