"""Rows of tokens from a text: as one stream, a document per row, or several documents in a row.

A task only decides the targets of the rows. `data.layout` chooses how rows are made:

    concatenate   windows of the concatenated text, which cross the ends of documents (L0-89)
    documents     a row for each document, of which only the first tokens are read (L0-18, L0-19)
    pack          several documents in a row that do not attend to each other; long ones are cut, and nothing is dropped
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from heddle.data.batch import IGNORED, next_token_batch
from heddle.data.corpus import Part
from heddle.data.order import held_out_windows, windows, windows_per_epoch
from heddle.data.stream import Stream
from heddle.errors import HeddleError, pluralize
from heddle.generate.text import start_ids
from heddle.nn.layout import Layout
from heddle.tasks.extent import Extent
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, listed, window_batches, window_places

SHORTEST = 4  # tokens of a context worth advising
LEAST = 4  # rows in a sample; fewer would not give a standard error

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenRows:
    """Rows of a text.

    Attributes:
        tokens: Int[B T], ids; 0 at padding.
        following: Int[B T], the id after each token in its row or document, or `IGNORED` if it must not be predicted.
        layout: positions and segments of the tokens.
    """

    tokens: Ids
    following: Ids
    layout: Layout


class TextRows(ABC):
    """The rows that a task reads of a text, in an order that is a function of (seed, step).

    Args:
        spec: the text and the sizes.
        ahead: 1 if the task predicts the token after each one, so that rows need to have it, and the last token of a text is not
            read; 0 if it predicts tokens of the row.

    Attributes:
        length: maximum tokens per row.
        start: the ids before a document's first token, which predict it as in generation without a prompt.

    Raises:
        HeddleError: there is too little text for a single row.
    """

    def __init__(self, spec: DataSpec, ahead: int) -> None:
        self.spec, self.ahead, self.length = spec, ahead, spec.length
        self.start = start_ids(spec.model, spec.tokenizer) if ahead else ()

    @abstractmethod
    def examples(self, step: int) -> ExampleIndices:
        """The rows of step `step` (from 0): each row once per epoch, in an order keyed by (seed, epoch)."""

    @abstractmethod
    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Rows that score each held-out token at most once, as `Task.held_out` returns them."""

    @abstractmethod
    def read(self, examples: ExampleIndices) -> TokenRows:
        """Read the rows."""

    @abstractmethod
    def beginning(self, most: int) -> ExampleIndices:
        """One row from the beginning of the held-out text, of about `most` tokens or more."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> float:
        """Steps in which all training rows are read once."""

    @abstractmethod
    def numbers(self, examples: ExampleIndices) -> Ids:
        """The numbers of the rows or their tokens, as `Task.places` returns them."""

    @abstractmethod
    def size(self, held_out: bool) -> int:
        """How many such numbers a part has."""

    def shapes(self) -> list[tuple[int, int]]:
        """(rows, tokens per row) of the largest batches of a step."""
        return [(self.spec.rows, self.length)]

    def epoch(self) -> int | None:
        """Rows of an epoch; None: steps have different numbers of rows."""
        return None

    @property
    @abstractmethod
    def held_out_text(self) -> tuple[int, float]:
        """Targets in the held-out text, and its UTF-8 bytes per target, without the parts that the layout never reads."""

    def bits_per_byte(self, loss: float) -> float:
        """Bits per UTF-8 byte of the held-out text at `loss` nats per target, comparable across tokenizers.

        A loss over a sample of the targets is converted at the rate of all.
        """
        return loss / log(2) / self.held_out_text[1]

    def bits_per_character(self, loss: float) -> dict[str, float]:
        """The same per character (Unicode's code points), by the bytes per character of the held-out text; empty if unknown."""
        part = self.spec.part(held_out=True)
        return (
            {"bits_per_character": self.bits_per_byte(loss) * part.bytes / part.characters} if part.characters else {}
        )

    def bytes_scored(self, share: float) -> int:
        """UTF-8 bytes of the held-out text that a share of the targets covers."""
        targets, each = self.held_out_text
        return round(targets * share * each)

    def extent(self) -> Extent:
        """How much of the held-out text the layout reads: by default, everything."""
        return Extent(self.held_out_text[0], examples=self.spec.part(held_out=True).documents)

    @abstractmethod
    def remarks(self) -> list[str]:
        """How much of the training text is not read, and how much is padding, one line each."""

    @abstractmethod
    def describe(self, examples: ExampleIndices) -> str:
        """Describe where the rows are."""

    def _bytes(self, part: Part) -> int:
        """UTF-8 bytes of the text that the targets of a part cover."""
        return part.bytes if self.start and part.begins else part.target_bytes

    def _keys(self, step: int) -> Ids:
        """A number for each row of a step, unique among all steps."""
        return np.arange(step * self.spec.rows, (step + 1) * self.spec.rows)


class Concatenated(TextRows):
    """Windows of the text as one stream of tokens; documents are separated by the end-of-text id, and may meet in a window.

    If the task predicts the next token, the stream is a ring (`heddle.data.stream`), so that the first document, like all others,
    is predicted from the ids that start a text. The place of an example is its first token.
    """

    def __init__(self, spec: DataSpec, ahead: int) -> None:
        super().__init__(spec, ahead)
        self._streams: dict[bool, Stream] = {}
        if spec.corpus.train is not None:
            held_out = None if spec.corpus.validation is None else spec.part(held_out=True)
            check_length(spec.part(held_out=False), held_out, self.length)

    def examples(self, step: int) -> ExampleIndices:
        text = self.stream(held_out=False)
        starts = windows(text.length, self.length, self.spec.seed, step, self.spec.rows, text.ring)
        return ExampleIndices(starts, length=self.length, keys=self._keys(step))

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Windows that do not overlap, every target once: window k reads tokens k·length … (k+1)·length (L1-24)."""
        part = self.spec.part(held_out=True)
        targets = self.held_out_text[0]
        if targets < 1:
            raise HeddleError(
                f"the text to score has {len(part.tokens)} token(s); it needs at least 2, one to read and one to predict"
            )
        number = None if most is None or most >= targets else max(LEAST, -(-most // self.length))
        scored = held_out_windows(targets + 1, self.length, number)
        return EvalSet(window_batches(scored, rows, self.length), sum(stop - start for start, stop in scored) / targets)

    def read(self, examples: ExampleIndices) -> TokenRows:
        """Each window and, if the task predicts the next token, the token after it."""
        text, length = self.stream(examples.held_out), examples.length
        places = examples.places[:, None] + np.arange(length + self.ahead)
        ids = text.at(places)
        if not self.ahead:
            return TokenRows(ids, np.full_like(ids, IGNORED), Layout.whole(len(ids), length))
        batch = next_token_batch(ids)
        following = batch.targets.numpy().copy()  # of a single row it shares memory with the tokens
        if text.ring and not text.closes:
            following[places[:, 1:] % text.length == 0] = IGNORED  # the first id does not end the last document
        return TokenRows(batch.tokens.numpy(), following, batch.layout)

    def stream(self, held_out: bool) -> Stream:
        """The text to score, or the one to train on, as a stream."""
        if held_out not in self._streams:
            self._streams[held_out] = Stream(self.spec.part(held_out), self.start)
        return self._streams[held_out]

    def beginning(self, most: int) -> ExampleIndices:
        length = min(most, self.length, self.held_out_text[0])
        return ExampleIndices(np.zeros(1, dtype=np.int64), held_out=True, length=length)

    def numbers(self, examples: ExampleIndices) -> Ids:
        """Each target's position in the stream: if the next token is predicted, one to the right of the inputs."""
        text, numbers = self.stream(examples.held_out), window_places(examples) + self.ahead
        return numbers % text.length if text.ring else numbers

    def size(self, held_out: bool) -> int:
        text = self.stream(held_out)
        return text.length - (self.ahead and not (text.ring and (text.closes or not held_out)))

    def epoch(self) -> int:
        """As many windows as fit, with room to shift them unless the text is a ring."""
        text = self.stream(held_out=False)
        return windows_per_epoch(text.length, self.length, text.ring)

    @property
    def steps_per_epoch(self) -> float:
        return self.epoch() / self.spec.rows

    @property
    def held_out_text(self) -> tuple[int, float]:
        targets, part = self.size(held_out=True), self.spec.part(held_out=True)
        return targets, self._bytes(part) / max(targets if self.ahead else part.targets, 1)

    def remarks(self) -> list[str]:
        """How much of a short text one epoch does not read."""
        size, tokens = self.size(held_out=False), self.stream(held_out=False).length
        read = self.epoch() * self.length
        if size - read <= 0.1 * size:
            return []
        return [
            f"each epoch reads {read:,} of the training text's {size:,} targets, different ones each time: "
            f"the text is {tokens / self.length:.1f} windows of context = {self.length} long"
        ]

    def describe(self, examples: ExampleIndices) -> str:
        return f"windows that start at {'validation' if examples.held_out else 'training'} tokens {listed(examples)}"


def check_length(train: Part, held_out: Part | None, context: int) -> None:
    """Refuse a context that one of the text's parts cannot fill, and advise one that both can."""
    sizes = [len(part.tokens) for part in (train, held_out) if part is not None]
    longest = min(sizes) - 1  # a window and the token after it
    if longest < context:
        also = "" if held_out is None else f" and validation {len(held_out.tokens):,}"
        # A shorter context would not be useful advice.
        shorter = f"set context={longest} or less, or " if longest >= SHORTEST else ""
        raise HeddleError(
            f"context = {context}, but training has {pluralize(len(train.tokens), 'token')}{also}: {shorter}give more text"
        )
