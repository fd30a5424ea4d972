"""Text in, text out: the engine with a tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Unpack

from heddle.checks import checked
from heddle.config.decoding import SamplingConfig, completed
from heddle.config.keywords import SamplingSettings
from heddle.config.model import TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.generate.constrain import Guides
from heddle.generate.engine import Engine, raise_if_failed
from heddle.generate.logprobs import Event, Finish
from heddle.generate.speculative import DraftSource
from heddle.model.transformer import Transformer
from heddle.text import TextStream, Tokenizer


@displayed(".text")
@dataclass(frozen=True)
class Piece:
    """The next piece of one row's text.

    Attributes:
        row: the index of its prompt.
        text: complete characters. The pieces of a row, concatenated, are its text. Only the last piece may be empty.
        tokens: number of tokens generated for the row so far.
        finish: why the row ends here, or None: `end` of text, a `stop` text, the `length` of `max_tokens`, a full `context`.
        samples: the tokens since the row's last piece, with their log probabilities.
    """

    row: int
    text: str
    tokens: int
    finish: Finish | None
    samples: tuple[Event, ...] = ()


@checked()
def complete(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    seeds: Sequence[int] | None = None,
    draft_source: DraftSource | None = None,
) -> Iterator[Piece]:
    """Yield the text after each prompt, piece by piece. All prompts are continued in one batch.

    Special tokens written out in a prompt are ordinary text. A text ends before the first of `sampling.stop`, also if that begins
    or ends inside a token. Text that may be the start of a stop text is held back until that is decided. An imported model starts
    a text as its published tokenizer does, and ends at any of its end ids. Ids without text are never sampled. A draft source
    changes the speed, not the text.

    Raises:
        HeddleError: as in `Engine`; or a prompt has text that the tokenizer does not know.
    """
    engine = text_engine(model, tokenizer, prompts, sampling, seeds, draft_source)
    tokens, samples = [0] * len(prompts), [list[Event]() for _ in prompts]
    while engine:
        for event in raise_if_failed(engine.step()):
            row = event.row
            tokens[row] += 1
            samples[row].append(event)
            if event.text or event.finish:
                yield Piece(row, event.text, tokens[row], event.finish, tuple(samples[row]))
                samples[row].clear()


def text_engine(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    seeds: Sequence[int] | None = None,
    draft_source: DraftSource | None = None,
) -> Engine:
    """The engine behind `complete`, with the same arguments and errors."""
    ids = [[*bos_prefix(model, tokenizer, prompt), *prompt_ids(tokenizer, prompt)] for prompt in prompts]
    end = tokenizer.end_of_text if model.config.ids is None else None  # an imported model has its end ids in its config
    engine = Engine.of(
        model, ids, sampling, end, seeds, tokenizer.vocab_size, draft_source=draft_source, guides=Guides(tokenizer)
    )
    for row, prompt in zip(engine.waiting, prompts, strict=True):
        row.text = TextStream(tokenizer, row.ids[-1] if prompt else None, sampling.stop)
    return engine


def start_ids(model: TransformerConfig, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The ids that a text without a prompt starts from. In training they come before each document and predict its first token.

    They are the ids that a published tokenizer puts before a text, or the begin id in the model's config. Otherwise it is the end
    of text, as if another document came before (D-24). Empty if there is no such token.
    """
    ids, end = model.ids, None if tokenizer is None else tokenizer.end_of_text
    if ids is not None and tokenizer is not None and tokenizer.begins:
        return tokenizer.begins
    first = end if ids is None or ids.begin is None else ids.begin
    return () if first is None else (first,)


def bos_prefix(model: Transformer, tokenizer: Tokenizer, prompt: str | Sequence[int]) -> tuple[int, ...]:
    """The ids to put before a prompt.

    Before a text these are the ids of a published tokenizer, and those that start a text if the prompt is empty or if every
    prompt is the beginning of a text (`TransformerConfig.prompts`). Before ids there are only the latter, unless the prompt
    begins with them.
    """
    ids, start = model.config.ids, start_ids(model.config, tokenizer)
    if not prompt and (ids is None or model.config.prompts == "needed"):
        return ()  # `DecodingRules` starts the text, or raises
    if not isinstance(prompt, str):
        return start if model.config.prompts == "beginning" and tuple(prompt[: len(start)]) != start else ()
    if not prompt or model.config.prompts == "beginning":
        return start
    return () if ids is None else tokenizer.begins


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt as in training, without special tokens.

    Raises:
        HeddleError: the tokenizer cannot encode the text.
    """
    return tokenizer.encode(prompt)


def banned_runs(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The runs of ids that spell these texts, at the beginning of a text and after a space, for `SamplingConfig.banned`.

    Only the tokenizer's own division into tokens is banned. A model can, rarely, write the same text with other tokens.

    Raises:
        HeddleError: a text is empty, or the tokenizer cannot encode it.
    """
    runs: dict[tuple[int, ...], None] = {}
    for text in texts:
        if not text.strip():
            raise HeddleError("a text to ban must not be empty or only whitespace")
        candidates = [tuple(tokenizer.encode(text))]
        with suppress(HeddleError):  # a tokenizer without a space
            candidates.append(tuple(tokenizer.encode(f" {text}")))
        known = [run for run in candidates if getattr(tokenizer, "unknown", None) not in run]
        if candidates[0] not in known:
            raise HeddleError(f"the tokenizer cannot encode {text!r}, so the model cannot write it")
        runs |= dict.fromkeys(known)
    return tuple(runs)


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """The text of an id, for display. An id beyond the tokenizer's vocabulary, as padded models have, becomes `<id>`."""
    return tokenizer.piece(id) if id < tokenizer.vocab_size else f"<{id}>"


@checked()
def generate_text(model: Transformer, tokenizer: Tokenizer, prompt: str, **sampling: Unpack[SamplingSettings]) -> str:
    """The text after one prompt. Keywords are those of `SamplingConfig`, such as `max_tokens=100, temperature=0`.

    Other settings come from `config.decoding` of an imported model, else from the defaults of `SamplingConfig`.

    Raises:
        HeddleError: as in `complete`; or a keyword is unknown or its value invalid.
    """
    config = completed(SamplingConfig, sampling, model.config.decoding, "sampling")
    return "".join(piece.text for piece in complete(model, tokenizer, [prompt], config))
