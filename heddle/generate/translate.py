"""Translation by an encoder-decoder or by a decoder alone (L1-74 … L1-82).

`Marks` are the special ids around the texts of a pair, in training and in translation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from heddle.checks import at_least, checked
from heddle.config.decoding import BeamConfig, completed
from heddle.config.ids import SpecialIds
from heddle.config.keywords import BeamSettings
from heddle.config.model import TransformerConfig
from heddle.config.tasks import SpanCorruptionConfig, TaskSettings, TranslationConfig
from heddle.display import displayed
from heddle.errors import HeddleError, TextError, pluralize
from heddle.generate.beam import SEARCHES_PER_PASS, Hypothesis, beam_search
from heddle.generate.logprobs import Finish
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer

BOUNDARY = "<start_translation>"  # between source and target in a decoder alone (L1-81)
SENTINEL = "<extra_id_{}>"  # stands for a missing span; T5's names


@dataclass(frozen=True)
class Marks:
    """The ids around the texts of a pair.

    Attributes:
        begin: before a source: the ids of a published tokenizer, else none.
        start: before a target. For a decoder alone the boundary. For an encoder-decoder the id that its decoder starts with (the
            end of text, unless an imported model has another) and the id that the model must generate first, if any.
        end: after a target, and for an encoder-decoder after a source.
    """

    begin: tuple[int, ...]
    start: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, model: TransformerConfig, tokenizer: Tokenizer) -> "Marks":
        """The ids for a model and its tokenizer.

        Raises:
            HeddleError: the tokenizer has no end of text or, for a decoder alone, no boundary token.
        """
        ids = model.ids or SpecialIds()
        end = next(iter(ids.ends()), tokenizer.end_of_text)
        if end is None:
            raise HeddleError("the tokenizer has no token that ends a text: add <|endoftext|> to special_tokens")
        if model.encoder is None:
            if BOUNDARY not in tokenizer.special:
                raise HeddleError(
                    f"the tokenizer has no token between source and target, which a decoder alone needs: "
                    f"add {BOUNDARY} to special_tokens, or train a tokenizer"
                )
            return cls(tokenizer.begins, (tokenizer.special[BOUNDARY],), end)
        start = end if ids.decoder_start is None else ids.decoder_start
        return cls(tokenizer.begins, (start, *(() if ids.forced_begin is None else (ids.forced_begin,))), end)


@displayed(".text")
@dataclass(frozen=True)
class Translation:
    """One translation of a source.

    Attributes:
        text: the target text.
        score: see `Hypothesis`.
        logprob: natural log of the text's probability, as in `Hypothesis`.
        tokens: number of generated ids, including the end.
        finish: `end`; `length` or `context`, if the text is cut off; or `broken`, if no valid token could follow.
    """

    text: str
    score: float
    logprob: float
    tokens: int
    finish: Finish


def learned_sources(task: TaskSettings | None) -> bool:
    """Whether a run with this task can answer a source: it translates or fills in spans, or has no task, like an imported model."""
    return task is None or isinstance(task, TranslationConfig | SpanCorruptionConfig)


def sentinels(task: TaskSettings | None, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The sentinel tokens for missing spans that a source may contain, for a run that fills in spans or an imported T5.

    For other models their names are ordinary text, as in training.
    """
    if task is not None and not isinstance(task, SpanCorruptionConfig):
        return ()
    names = [SENTINEL.format(number) for number in range(len(tokenizer.special))]
    return tuple(name for name in names if name in tokenizer.special)


@checked(rows=at_least(1))
def translate(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    config: BeamConfig | None = None,
    crop: bool = False,
    rows: int = SEARCHES_PER_PASS,
    progress: Callable[[int, int], None] | None = None,
    special: Collection[str] = (),
    **beam: Unpack[BeamSettings],
) -> list[tuple[Translation, ...]]:
    """Translate each source by beam search. Return its `best` best translations, best first.

    A source can be any text that the model answers: a sentence, a question, an article to summarise. The translation of an empty
    source is empty.

    Args:
        model: an encoder-decoder, or a decoder that was trained with the task `translation`.
        tokenizer: the model's.
        sources: texts.
        config: the strategy; None: from the keywords.
        crop: whether to cut off the ends of sources that do not fit, as training does, instead of raising an error.
        rows: number of sources that share each forward pass.
        progress: called with the number of translated sources and the total.
        special: names of special tokens that a source may contain, such as `sentinels`. Other names are ordinary text.
        beam: the strategy as keywords of `BeamConfig`, such as `beams=2, best=2`, instead of `config`. Other settings come from
            `config.decoding` of an imported model, else from the defaults of `BeamConfig`: five beams.

    Raises:
        HeddleError: the model cannot translate, a source does not fit into its context, a keyword is unknown or its value
            invalid, or there are both a config and keywords.
    """
    if config is not None and beam:
        raise HeddleError(
            f"translate: config and {', '.join(beam)} exclude each other; give a config or keywords, not both"
        )
    config = completed(BeamConfig, beam, model.config.decoding, "translate") if config is None else config
    if model.decoder is None:
        raise HeddleError("this model has no decoder, so it cannot translate")
    if tokenizer.vocab_size > model.vocab_size:
        model.check_vocabulary(tokenizer.vocab_size)
    marks = Marks.of(model.config, tokenizer)
    nonempty = {number: text for number, text in enumerate(sources) if text.strip()}
    encoded = source_ids(model.config, tokenizer, marks, nonempty, crop, special)
    # An encoder-decoder starts from empty prompts. A decoder alone reads the source as its prompt.
    prompts, encoder_ids = list(encoded.values()), None
    if model.encoder is not None:
        prompts, encoder_ids = [[] for _ in encoded], prompts
    end = tokenizer.end_of_text if model.config.ids is None else None  # an imported model has its end ids in its config
    translations: list[tuple[Translation, ...]] = [(Translation("", 0.0, 0.0, 0, "end"),)] * len(sources)
    numbers, special_ids = list(encoded), _without_text(model.config, marks)
    searched = beam_search(model, prompts, config, end, tokenizer.vocab_size, encoder_ids, rows)
    for done, (number, hypotheses) in enumerate(searched, start=1):
        translations[numbers[number]] = tuple(_translation(best, tokenizer, special_ids) for best in hypotheses)
        if progress is not None:
            progress(done, len(encoded))
    return translations


def source_ids(
    config: TransformerConfig,
    tokenizer: Tokenizer,
    marks: Marks,
    sources: Mapping[int, str],
    crop: bool = False,
    special: Collection[str] = (),
) -> dict[int, list[int]]:
    """The encoder's input for each source, or the prompt of a decoder alone, by the sources' numbers.

    Raises:
        HeddleError: a source does not fit, and `crop` is not set.
    """
    has_encoder = config.encoder is not None
    after = (marks.end,) if has_encoder else marks.start
    room = config.context - len(marks.begin) - len(after)
    cropped_length = room if has_encoder else max(1, room // 2)  # a decoder alone needs room for the target too
    result = {}
    texts = sources.values()
    encoded = [tokenizer.encode(text, special) for text in texts] if special else tokenizer.encode_batch(texts)
    for number, ids in zip(sources, encoded, strict=True):
        if len(ids) > room:
            if not crop:
                fault = f"has {pluralize(len(ids), 'token')}, but the model has room for {room}"
                raise TextError("source", number, f"{fault}; shorten it, or crop it (--crop, in Python crop=True)")
            ids = ids[:cropped_length]
        result[number] = [*marks.begin, *ids, *after]
    return result


def _without_text(config: TransformerConfig, marks: Marks) -> set[int]:
    """Special ids that a target may contain and that are not part of its text."""
    ids = config.ids or SpecialIds()
    special = (*marks.begin, *marks.start, marks.end, ids.begin, ids.padding, *ids.ends())
    return {id for id in special if id is not None}


def _translation(hypothesis: Hypothesis, tokenizer: Tokenizer, special_ids: set[int]) -> Translation:
    text = tokenizer.decode([id for id in hypothesis.ids if id not in special_ids])
    return Translation(text, hypothesis.score, hypothesis.logprob, len(hypothesis.ids), hypothesis.finish)
