"""Text in, text out: the engine with a tokenizer at both ends."""

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
from heddle.generate.logprobs import SampledToken
from heddle.generate.speculative import DraftSource
from heddle.generate.stream import Finish
from heddle.model.transformer import Transformer
from heddle.text import TextStream, Tokenizer


@displayed(".text")
@dataclass(frozen=True)
class Piece:
    """The next piece of one row's text.

    Attributes:
        row: the number of its prompt.
        text: whole characters; the pieces of a row, concatenated, are its text. Only the last piece may be empty.
        tokens: how many tokens the row has drawn so far.
        finish: why the row ends here, or None: `end` of text, a `stop` text, the `length` asked for, a full `context`.
        drawn: the tokens since the row's last piece, with their log probabilities.
    """

    row: int
    text: str
    tokens: int
    finish: Finish | None
    drawn: tuple[SampledToken, ...] = ()


@checked()
def complete(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    seeds: Sequence[int] | None = None,
    proposer: DraftSource | None = None,
) -> Iterator[Piece]:
    """Yield the text that follows each prompt, piece by piece; several prompts continue together.

    Special tokens written out in a prompt are ordinary text. A text ends before the first of `sampling.stop`, wherever tokens
    start and end; text that may be the start of a stop text is held back until that is decided. An imported model starts a
    text as its published tokenizer does, and ends at any of its end ids. Ids without text are never drawn. Guesses of a proposer
    change no text, only how long it takes.

    Raises:
        HeddleError: as in `Engine`; or a prompt has text that the tokenizer does not know.
    """
    engine = text_engine(model, tokenizer, prompts, sampling, seeds, proposer)
    last = [row.text.ids[-1] if prompt else None for row, prompt in zip(engine.waiting, prompts, strict=True)]
    texts = [RowText(tokenizer, sampling.stop, previous) for previous in last]
    drawn: list[list[SampledToken]] = [[] for _ in texts]
    while engine:
        for event in raise_if_failed(engine.step()):
            text = texts[event.row]
            if text.finish is not None:  # guessed tokens after a stop text, from the same step
                continue
            piece = text.push(event.token, event.finish)
            drawn[event.row].append(SampledToken(event.token, event.logprob, event.top))
            if text.finish == "stop":
                engine.leave({event.row})
            if piece or text.finish:
                yield Piece(event.row, piece, text.tokens, text.finish, tuple(drawn[event.row]))
                drawn[event.row].clear()


def text_engine(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    sampling: SamplingConfig,
    seeds: Sequence[int] | None = None,
    proposer: DraftSource | None = None,
) -> Engine:
    """The engine behind `complete`, with the same arguments and errors."""
    ids = [[*opening(model, tokenizer, prompt), *prompt_ids(tokenizer, prompt)] for prompt in prompts]
    end = tokenizer.end_of_text if model.config.ids is None else None  # an imported model has its end ids in its config
    return Engine.of(
        model, ids, sampling, end, seeds, tokenizer.vocab_size, proposer=proposer, guides=Guides(tokenizer)
    )


def start_ids(model: TransformerConfig, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """The ids that a text without a prompt starts from: in training, they come before each document, and predict its first token.

    Those that a published tokenizer puts before a text, or the one that its model names; else the end of text, as the one of the
    document before (D-24). None without a token for it.
    """
    ids, end = model.ids, None if tokenizer is None else tokenizer.end_of_text
    if ids is not None and tokenizer is not None and tokenizer.begins:
        return tokenizer.begins
    first = end if ids is None or ids.begin is None else ids.begin
    return () if first is None else (first,)


def opening(model: Transformer, tokenizer: Tokenizer, prompt: str | Sequence[int]) -> tuple[int, ...]:
    """The ids before a prompt's own, where it is a text: those of a published tokenizer, and those that start a text if there is
    no prompt, or if every prompt is the beginning of a text (`TransformerConfig.prompts`).

    Before a prompt of ids there are only the latter, unless it begins with them.
    """
    ids, start = model.config.ids, start_ids(model.config, tokenizer)
    if not prompt and (ids is None or model.config.prompts == "needed"):
        return ()  # `Decoding` starts the text, or refuses it
    if not isinstance(prompt, str):
        return start if model.config.prompts == "beginning" and tuple(prompt[: len(start)]) != start else ()
    if not prompt or model.config.prompts == "beginning":
        return start
    return () if ids is None else tokenizer.begins


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt, as training would encode it, with nothing before or after them.

    Raises:
        HeddleError: it has text that the tokenizer does not know.
    """
    return tokenizer.encode(prompt)


def banned_runs(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The runs of ids that write these texts, at the beginning of a text and after a blank, for `SamplingConfig.banned`.

    A text that the model writes with other tokens than its tokenizer, which is rare, is not among them.

    Raises:
        HeddleError: a text is empty, or the tokenizer does not know it.
    """
    runs: dict[tuple[int, ...], None] = {}
    for text in texts:
        if not text.strip():
            raise HeddleError("a text to ban must have more than blanks")
        found = [tuple(tokenizer.encode(text))]
        with suppress(HeddleError):  # a tokenizer without blanks
            found.append(tuple(tokenizer.encode(f" {text}")))
        known = [run for run in found if getattr(tokenizer, "unknown", None) not in run]
        if found[0] not in known:
            raise HeddleError(f"the tokenizer does not know {text!r}, so it is never written")
        runs |= dict.fromkeys(known)
    return tuple(runs)


def spelled(tokenizer: Tokenizer, id: int) -> str:
    """What an id spells, for display. One that the tokenizer has no text for, as padded models have, is shown as its number."""
    return tokenizer.piece(id) if id < tokenizer.vocab_size else f"<{id}>"


@checked()
def generate_text(model: Transformer, tokenizer: Tokenizer, prompt: str, **sampling: Unpack[SamplingSettings]) -> str:
    """The text that follows one prompt. Keywords are those of `SamplingConfig`, such as `max_tokens=100, temperature=0`.

    An imported model's `config.decoding` says what others default to.

    Raises:
        HeddleError: as in `complete`; or a keyword is unknown or its value impossible.
    """
    wanted = completed(SamplingConfig, sampling, model.config.decoding, "sampling")
    return "".join(piece.text for piece in complete(model, tokenizer, [prompt], wanted))


class RowText:
    """One row's text as its tokens come: whole characters, without a stop text.

    Args:
        tokenizer: the model's.
        stop: texts that end the row.
        previous: the last id of its prompt.
        forced: an id that the model is forced to begin with, which is no part of the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], previous: int | None = None, forced: int | None = None
    ) -> None:
        self.characters = TextStream(tokenizer, previous)
        self.stop, self.forced = stop, forced
        self.held = ""
        self.tokens = 0
        self.finish: Finish | None = None

    def push(self, token: int, finish: Finish | None) -> str:
        """The text that is certain after one more token, which is the last if `finish` is set."""
        self.tokens += 1
        self.finish = finish
        if finish != "end" and not (self.tokens == 1 and token == self.forced):
            self.held += self.characters.push(token)
        self.held += self.characters.flush() if finish else ""
        # Of several stop texts the first to be complete counts, so that token boundaries do not matter.
        found = [(start + len(stop), start) for stop in self.stop if (start := self.held.find(stop)) >= 0]
        if found:
            self.finish = "stop"
            return self.held[: min(found)[1]]
        certain = len(self.held) if finish else len(self.held) - self._open()
        text, self.held = self.held[:certain], self.held[certain:]
        return text

    def _open(self) -> int:
        """How many characters at the end may be the start of a stop text."""
        longest = min(len(self.held), max(map(len, self.stop), default=1) - 1)
        lengths = range(longest, 0, -1)
        return next((n for n in lengths if any(stop.startswith(self.held[-n:]) for stop in self.stop)), 0)
