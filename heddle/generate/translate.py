"""Translation: source texts in, target texts out, by an encoder-decoder or by a decoder alone (L1-74 … L1-82).

What a model reads around the texts of a pair (`Marks`) is decided here, for training and for translating alike.
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
from heddle.generate.beam import SEARCHES, Hypothesis, beam_search
from heddle.generate.stream import Finish
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer

BOUNDARY = "<start_translation>"  # between source and target in a decoder alone (L1-81)
SENTINEL = "<extra_id_{}>"  # stands for a missing span; T5's names


@dataclass(frozen=True)
class Marks:
    """The ids around the texts of a pair.

    Attributes:
        begin: before a source: what a published tokenizer puts there, else nothing.
        start: before a target. In a decoder alone the boundary; in an encoder-decoder the id that its decoder starts with,
            which is the end of text unless an imported model has another, and the id that such a model must generate first.
        end: after a target, and in an encoder-decoder after a source.
    """

    begin: tuple[int, ...]
    start: tuple[int, ...]
    end: int

    @classmethod
    def of(cls, model: TransformerConfig, tokenizer: Tokenizer) -> "Marks":
        """The ids for a model and its tokenizer.

        Raises:
            HeddleError: the tokenizer has no id that ends a text or, for a decoder alone, no boundary.
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
        tokens: ids that were generated, the end included.
        finish: `end`; `length` or `context`, if the text is cut off; or `broken`, if no token could follow.
    """

    text: str
    score: float
    logprob: float
    tokens: int
    finish: Finish


def learned_sources(task: TaskSettings | None) -> bool:
    """Whether a run of this task answers a source: it translates, or fills in spans; or it has no task, as an imported model."""
    return task is None or isinstance(task, TranslationConfig | SpanCorruptionConfig)


def sentinels(task: TaskSettings | None, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tokens that stand for missing spans, which a source may name: those of a run that fills in spans, or of an imported T5.

    Elsewhere their names are ordinary text, as they were in training.
    """
    named = task is None or isinstance(task, SpanCorruptionConfig)
    names = [SENTINEL.format(number) for number in range(len(tokenizer.special))]
    return tuple(name for name in names if named and name in tokenizer.special)


@checked(rows=at_least(1))
def translate(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    config: BeamConfig | None = None,
    crop: bool = False,
    rows: int = SEARCHES,
    progress: Callable[[int, int], None] | None = None,
    special: Collection[str] = (),
    **beam: Unpack[BeamSettings],
) -> list[tuple[Translation, ...]]:
    """The `best` best translations of each source, best first, by beam search.

    Any text that a model answers is a source: a sentence, a question, an article to summarise. A source without a word has the
    empty translation.

    Args:
        model: an encoder-decoder, or a decoder that was trained with the task `translation`.
        tokenizer: the model's.
        sources: texts.
        config: the strategy; None: what the keywords say.
        crop: whether to cut off the ends of sources that do not fit, as training does, instead of refusing them.
        rows: sources that share each forward pass.
        progress: hears how many sources are done, and of how many.
        special: names of special tokens that a source may contain, such as `sentinels`; other names are ordinary text.
        beam: the strategy as keywords of `BeamConfig`, such as `beams=2, best=2`, instead of `config`; what they leave out is as
            the files of an imported model say (`config.decoding`), else as in `BeamConfig`: five beams.

    Raises:
        HeddleError: the model cannot translate, a source does not fit into its context, a keyword is unknown or its value
            impossible, or there are both a config and keywords.
    """
    if config is not None and beam:
        raise HeddleError(
            f"translate: config and {', '.join(beam)}: both say how to search; give a config or keywords, not both"
        )
    config = completed(BeamConfig, beam, model.config.decoding, "translate") if config is None else config
    if model.decoder is None:
        raise HeddleError("this model has no decoder, so it cannot translate")
    if tokenizer.vocab_size > model.vocab_size:
        model.check_vocabulary(tokenizer.vocab_size)
    marks = Marks.of(model.config, tokenizer)
    read = {number: text for number, text in enumerate(sources) if text.strip()}
    encoded = source_ids(model.config, tokenizer, marks, read, crop, special)
    paired = model.encoder is not None
    prompts, given = ([[] for _ in encoded], list(encoded.values())) if paired else (list(encoded.values()), None)
    end = tokenizer.end_of_text if model.config.ids is None else None  # an imported model has its end ids in its config
    found: list[tuple[Translation, ...]] = [(Translation("", 0.0, 0.0, 0, "end"),)] * len(sources)
    numbers, hidden = list(encoded), _without_text(model.config, marks)
    searched = beam_search(model, prompts, config, end, tokenizer.vocab_size, given, rows)
    for done, (number, hypotheses) in enumerate(searched, start=1):
        found[numbers[number]] = tuple(_translation(each, tokenizer, hidden) for each in hypotheses)
        if progress is not None:
            progress(done, len(encoded))
    return found


def source_ids(
    config: TransformerConfig,
    tokenizer: Tokenizer,
    marks: Marks,
    sources: Mapping[int, str],
    crop: bool = False,
    special: Collection[str] = (),
) -> dict[int, list[int]]:
    """What the encoder reads of each source, or what a decoder alone reads before the target, by the sources' numbers.

    Raises:
        HeddleError: a source does not fit, and `crop` is not set.
    """
    paired = config.encoder is not None
    after = (marks.end,) if paired else marks.start
    room = config.context - len(marks.begin) - len(after)
    kept = room if paired else max(1, room // 2)  # a decoder alone needs room for the target too
    found = {}
    texts = sources.values()
    encoded = [tokenizer.encode(text, special) for text in texts] if special else tokenizer.encode_batch(texts)
    for number, ids in zip(sources, encoded, strict=True):
        if len(ids) > room:
            if not crop:
                fault = f"has {pluralize(len(ids), 'token')}, but the model has room for {room}"
                raise TextError("source", number, f"{fault}; shorten it, or crop it (--crop, in Python crop=True)")
            ids = ids[:kept]
        found[number] = [*marks.begin, *ids, *after]
    return found


def _without_text(config: TransformerConfig, marks: Marks) -> set[int]:
    """Ids that a target may contain and that are no part of its text."""
    ids = config.ids or SpecialIds()
    known = (*marks.begin, *marks.start, marks.end, ids.begin, ids.padding, *ids.ends())
    return {id for id in known if id is not None}


def _translation(found: Hypothesis, tokenizer: Tokenizer, hidden: set[int]) -> Translation:
    text = tokenizer.decode([id for id in found.ids if id not in hidden])
    return Translation(text, found.score, found.logprob, len(found.ids), found.finish)
