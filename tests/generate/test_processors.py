"""Processors of scores: those of Hugging Face transformers with the same name, and OpenAI's formula."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from heddle.config import SamplingConfig, SpecialIds
from heddle.errors import HeddleError
from heddle.generate.processors import (
    ForcedIds,
    LogitBias,
    MinTokens,
    NoRepeatNgram,
    PresencePenalty,
    Processor,
    RepetitionPenalty,
    TokenSequence,
    make_processors,
)

IDS = 7
NO_RULES: Any = None  # processors do not read them
BANNED = ((6,), (2, 3), (4, 4, 5))
PAIRS: dict[str, tuple[Processor, LogitsProcessor]] = {
    "repetition": (RepetitionPenalty(1.7), RepetitionPenaltyLogitsProcessor(1.7)),
    "repetition is sought": (RepetitionPenalty(0.6), RepetitionPenaltyLogitsProcessor(0.6)),
    "no id twice": (NoRepeatNgram(1), NoRepeatNGramLogitsProcessor(1)),
    "no pair twice": (NoRepeatNgram(2), NoRepeatNGramLogitsProcessor(2)),
    "no three twice": (NoRepeatNgram(3), NoRepeatNGramLogitsProcessor(3)),
    "first": (ForcedIds([4], lambda length, _: length == 1), ForcedBOSTokenLogitsProcessor(4)),
    "last": (ForcedIds([1, 5], lambda length, _: length == 5), ForcedEOSTokenLogitsProcessor(6, [1, 5])),
    "banned": (
        make_processors(SamplingConfig(), SpecialIds(banned=BANNED), {1}, None, IDS)[0],
        NoBadWordsLogitsProcessor([list(run) for run in BANNED], eos_token_id=1),
    ),
    "banned by a user": (
        make_processors(SamplingConfig(banned=BANNED), SpecialIds(), {1}, None, IDS)[0],
        NoBadWordsLogitsProcessor([list(run) for run in BANNED]),
    ),
    "biased": (LogitBias(((2, -1.5), (5, 3.0))), SequenceBiasLogitsProcessor([[[2], -1.5], [[5], 3.0]])),
}


def texts(rows: Sequence[Sequence[int]], prompt_length: int = 1) -> list[TokenSequence]:
    return [TokenSequence(number, list(ids), prompt_length, 100, 0, NO_RULES) for number, ids in enumerate(rows)]


def drawn(length: int) -> tuple[list[list[int]], Tensor]:
    draw = torch.Generator().manual_seed(length)
    return torch.randint(0, IDS, (6, length), generator=draw).tolist(), torch.randn(6, IDS, generator=draw)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_a_processor_is_the_one_of_transformers(name: str, length: int) -> None:
    processor, reference = PAIRS[name]
    rows, scores = drawn(length)
    before = scores.clone()
    sequences = texts(rows)
    assert torch.equal(processor(scores, sequences), reference(torch.tensor(rows), scores.clone()))
    if all(processor.waits(sequence, length) for sequence in sequences):
        assert torch.equal(processor(scores, sequences), scores)
    assert torch.equal(scores, before), "the given scores are left as they are"


def test_what_was_generated_costs_what_openai_says() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, of the ids that were generated."""
    rows, scores = drawn(9)
    prompt_length, presence, frequency = 3, 0.7, 0.4
    result = PresencePenalty(presence, frequency)(scores.double(), texts(rows, prompt_length))
    for row, ids in enumerate(rows):
        counts = Counter(ids[prompt_length:])
        for j in range(IDS):
            expected = scores[row, j].double() - counts[j] * frequency - (counts[j] > 0) * presence
            assert result[row, j] == pytest.approx(expected.item(), abs=1e-12)
    fresh = texts([[1, 2, 3]], prompt_length)
    assert PresencePenalty(presence, frequency)(scores[:1], fresh) is not None
    assert torch.equal(PresencePenalty(presence, frequency)(scores[:1], fresh), scores[:1])


def test_only_what_applies_is_made() -> None:
    assert make_processors(SamplingConfig(), SpecialIds(), {1}, None, IDS) == ()
    config = SamplingConfig(repetition_penalty=1.2, frequency_penalty=0.1, no_repeat_ngram=2)
    ids = SpecialIds(banned=((3,),), forced_begin=2, forced_end=(1, 4))
    kinds = [type(each).__name__ for each in make_processors(config, ids, {1}, 6, IDS)]
    assert kinds == ["RepetitionPenalty", "PresencePenalty", "NoRepeatNgram", "BlockedIds", "ForcedIds", "ForcedIds"]
    config = SamplingConfig.of({"logit_bias": {"3": -2}, "banned": [[1]]})
    assert [type(each).__name__ for each in make_processors(config, SpecialIds(), {1}, None, IDS)] == [
        "LogitBias",
        "BlockedIds",
    ]
    with pytest.raises(HeddleError, match="the id 7; ids must be from 0 to 6"):
        make_processors(SamplingConfig(logit_bias={7: 1.0}), SpecialIds(), {1}, None, IDS)
    with pytest.raises(HeddleError, match="every id is banned"):
        make_processors(config, SpecialIds(banned=tuple((id,) for id in range(IDS))), (), None, IDS)


def test_a_user_may_ban_the_end_of_a_text_and_a_model_may_not() -> None:
    scores = torch.zeros(1, IDS)
    (banning,) = make_processors(SamplingConfig(banned=((1,),)), SpecialIds(), {1}, None, IDS)
    assert banning(scores, texts([[2]])).isneginf().nonzero().tolist() == [[0, 1]]
    (published,) = make_processors(SamplingConfig(), SpecialIds(banned=((1,), (2,))), {1}, None, IDS)
    assert published(scores, texts([[2]])).isneginf().nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_forced_ids_have_their_places_whatever_was_given(length: int) -> None:
    """The first id comes after the one that starts a text, and not after the beginning of an answer; the last one at the end."""
    first, last = make_processors(SamplingConfig(), SpecialIds(forced_begin=4, forced_end=(1, 5)), (), None, IDS)
    rows, scores = drawn(length)
    references = ForcedBOSTokenLogitsProcessor(4), ForcedEOSTokenLogitsProcessor(3, [1, 5])
    expected = [each(torch.tensor(rows), scores.clone()) for each in references]
    for prompt_length in range(1, length + 1):
        grown = [replace(text, max_length=3) for text in texts(rows, prompt_length)]
        assert torch.equal(first(scores, grown), expected[0])
        assert torch.equal(last(scores, grown), expected[1])


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_shortest_text_is_counted_without_its_prompt(length: int) -> None:
    rows, scores = drawn(length)
    reference = MinNewTokensLengthLogitsProcessor(3, 2, [1, 5])
    assert torch.equal(MinTokens((1, 5), 2)(scores, texts(rows, 3)), reference(torch.tensor(rows), scores.clone()))
    whole = MinLengthLogitsProcessor(4, [1, 5])(torch.tensor(rows), scores.clone())
    assert torch.equal(MinTokens((1, 5), 4)(scores, texts(rows, 0)), whole)


def test_ids_without_text_begin_behind_the_vocabulary() -> None:
    (blocked,) = make_processors(SamplingConfig(), SpecialIds(), {6}, 4, IDS)
    assert blocked(torch.zeros(1, IDS), texts([[2]])).isneginf()[0].tolist() == [False] * 4 + [True] * 2 + [False]


def test_what_a_guide_reads_begins_behind_a_forced_id() -> None:
    """Of `[start, forced, 5, 6]`, which grew from `[start]`."""
    grown = TokenSequence(0, [2, 4, 5, 6], 1, 100, 0, NO_RULES, forced=1)
    assert grown.generated() == [5, 6]
    assert replace(grown, forced=0).generated() == [4, 5, 6]
    assert replace(grown, start=2).visible() == [5, 6]
