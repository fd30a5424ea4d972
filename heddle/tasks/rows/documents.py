"""Rows that do not cross the ends of documents: one document per row, or several that do not attend to each other."""

from functools import cached_property
from math import ceil

import numpy as np

from heddle.data.batch import IGNORED
from heddle.data.buckets import EMPTY, WIDTH, Buckets, held_out_records
from heddle.data.corpus import Part
from heddle.data.pack import Packing, Pieces, within
from heddle.data.stream import ids_at, marks_of
from heddle.errors import HeddleError, pluralize
from heddle.nn.layout import Layout
from heddle.tasks.extent import Extent
from heddle.tasks.rows.texts import (
    Ids,
    TextRows,
    TokenRows,
)
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, listed


class DocumentRows(TextRows):
    """Rows that do not cross the ends of documents.

    The end-of-text id belongs to the document before it, and also ends the last document of a text. If the task predicts the next
    token, the ids that start a text come before each document and predict its first token; its end is a target but is not read.

    Attributes:
        lengths: by part (True: held out), Int[documents], tokens of each document to read.
    """

    def __init__(self, spec: DataSpec, ahead: int) -> None:
        super().__init__(spec, ahead)
        self.lengths: dict[bool, Ids] = {}
        for held_out, part in ((False, spec.corpus.train), (True, spec.corpus.validation)):
            if part is not None:
                self.lengths[held_out] = self._lengths(spec.part(held_out))
                if not self.lengths[held_out].any():
                    name = "held-out" if held_out else "training"
                    raise HeddleError(f"no document of the {name} text has a token to predict: give more text")

    def _lengths(self, part: Part) -> Ids:
        lengths: Ids = np.diff(part.starts)
        lengths[-1] += part.separator is not None
        empty = lengths <= (part.separator is not None)
        return np.where(empty, 0, np.maximum(lengths + marks_of(part, self.start) - self.ahead, 0))

    def _fill(self, held_out: bool, pieces: Pieces, filled: Ids, width: int) -> tuple[Ids, Ids]:
        """Int[B T] twice: pieces in rows, in order, and the id after each token.

        Args:
            held_out: which part to read.
            pieces: the pieces to read, in the order of the rows.
            filled: Int[B], tokens of each row.
            width: T.
        """
        part, is_token = self.spec.part(held_out), np.arange(width) < filled[:, None]
        start = np.array(self.start, dtype=np.int64)
        before = marks_of(part, self.start)[pieces.document]
        places = np.repeat(pieces.start - before, pieces.size) + within(pieces.size)
        first = np.repeat(part.starts[pieces.document], pieces.size)
        tokens, following = np.zeros(is_token.shape, dtype=np.int64), np.full(is_token.shape, IGNORED)
        tokens[is_token] = ids_at(part, first, places, start)
        if self.ahead:
            following[is_token] = ids_at(part, first, places + 1, start)
        return tokens, following

    def _covered(self, part: Part) -> int:
        """UTF-8 bytes of the text that the targets of all documents cover."""
        return part.bytes if self.start and part.begins else int(part.target_sizes.sum())

    def _name(self, examples: ExampleIndices) -> str:
        return f"{'validation' if examples.held_out else 'training'} documents"


class Separate(DocumentRows):
    """One document per row, of which only the first `length` tokens are read (L0-18); batches are of similar length (D-32).

    A step has as many documents as fit into `DataSpec.batch_tokens`, padding included, or `DataSpec.rows`. The place of an example
    is its document, or `EMPTY` for a row of padding. If a document is cut off, the token after its last read token is not a target.
    """

    def __init__(self, spec: DataSpec, ahead: int) -> None:
        super().__init__(spec, ahead)
        if spec.corpus.train is not None:
            self.documents = np.flatnonzero(self._target_counts(held_out=False))
            sizes = np.minimum(self.lengths[False], self.length)[self.documents]
            self.buckets = Buckets(sizes, spec.rows, spec.batch_tokens, spec.multiple)

    def _target_counts(self, held_out: bool) -> Ids:
        """Int[documents], targets of each document."""
        lengths = self.lengths[held_out]
        return np.where(lengths > self.length, self.length - self.ahead, lengths)

    def examples(self, step: int) -> ExampleIndices:
        self.spec.part(held_out=False)
        numbers = self.buckets.read(step, self.spec.seed)
        places = np.where(numbers == EMPTY, EMPTY, self.documents[numbers])
        return ExampleIndices(places, keys=step * (1 << 20) + np.arange(len(numbers)))

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Every document with a target, in batches of similar length, or an even sample; cut-off tokens are not scored."""
        self.spec.part(held_out=True)
        lengths, targets = self.lengths[True], self._target_counts(held_out=True)
        batches, share = held_out_records(np.minimum(lengths, self.length), targets, rows, most)
        return EvalSet(tuple(ExampleIndices(each, held_out=True) for each in batches), share)

    def read(self, examples: ExampleIndices) -> TokenRows:
        lengths = np.where(examples.places == EMPTY, 0, self.lengths[examples.held_out][examples.places])
        filled = np.minimum(lengths, self.length)
        width = min(max(1, ceil(filled.max() / WIDTH)) * WIDTH, self.length)
        nonempty = np.flatnonzero(filled)
        pieces = Pieces(
            examples.places[nonempty], np.zeros(len(nonempty), dtype=np.int64), filled[nonempty], self.length
        )
        tokens, following = self._fill(examples.held_out, pieces, filled, width)
        following[lengths > self.length, -1] = IGNORED
        full = filled.min() == width
        layout = Layout.whole(len(filled), width) if full else Layout.padded(filled.tolist(), width)
        return TokenRows(tokens, following, layout)

    def beginning(self, most: int) -> ExampleIndices:
        return ExampleIndices(np.flatnonzero(self._target_counts(held_out=True))[:1], held_out=True)

    @property
    def steps_per_epoch(self) -> float:
        return float(self.buckets.batches)

    def shapes(self) -> list[tuple[int, int]]:
        return [(rows, min(width, self.length)) for rows, width in self.buckets.shapes()]

    def numbers(self, examples: ExampleIndices) -> Ids:
        """The documents."""
        documents: Ids = examples.places[examples.places != EMPTY]
        return documents

    def size(self, held_out: bool) -> int:
        """Documents with a target."""
        return int((self._target_counts(held_out) > 0).sum())

    @cached_property
    def held_out_text(self) -> tuple[int, float]:
        part, targets = self.spec.part(held_out=True), self._target_counts(held_out=True)
        tokenizer, cut, lost = self.spec.tokenizer, np.flatnonzero(self.lengths[True] > self.length), 0.0
        marks = marks_of(part, self.start)
        if len(cut):
            # Some whitespace belongs to no token, so a document's bytes are split in proportion to its tokens' bytes.
            ids = range(self.spec.model.vocab_size)
            token_bytes = np.array([1 if tokenizer is None else len(tokenizer.token_bytes(id)) for id in ids])
            if part.separator is not None:
                token_bytes[part.separator] = 0
            for document in cut:
                own = part.tokens[part.starts[document] : part.starts[document + 1]]
                first = 0 if marks[document] else 1  # the first of its own ids that is predicted
                sizes, fitting = token_bytes[own[first:]], self.length - max(int(marks[document]), 1)
                size = part.target_sizes[document] + (token_bytes[own[0]] if first == 0 else 0)
                lost += size * (1 - sizes[:fitting].sum() / max(sizes.sum(), 1))
        return int(targets.sum()), float((self._covered(part) - lost) / max(targets.sum(), 1))

    def extent(self) -> Extent:
        lengths, targets = self.lengths[True], self._target_counts(held_out=True)
        return Extent(
            targets=int(lengths.sum()),
            cut=int((lengths - targets).sum()),
            examples=len(lengths),
            shortened=int((lengths > self.length).sum()),
            left_out=int(((targets == 0) & (lengths > 0)).sum()),
        )

    def remarks(self) -> list[str]:
        lengths = self.lengths[False]
        cut, read = lengths > self.length, np.minimum(lengths, self.length).sum()
        padding = 1 - read / self.buckets.places
        lost = f"{1 - read / lengths.sum():.1%} of the text, the rest of those longer than {self.length} tokens, is never read"
        return [
            f"documents: {pluralize(int(cut.sum()), 'document')} of {len(lengths):,} are cut off: "
            f"{lost}; {padding:.1%} of the computed tokens are padding"
            if cut.any()
            else f"documents: no document is longer than {self.length} tokens; {padding:.1%} of the computed tokens are padding"
        ]

    def describe(self, examples: ExampleIndices) -> str:
        return f"{self._name(examples)} {listed(examples)}"


class Packed(DocumentRows):
    """Several documents per row, packed by best fit, which do not attend to each other; nothing is dropped.

    A document longer than a row is cut into pieces. If the task predicts the next token, the token after a piece's last one is a
    target although the next piece reads it, so every token is predicted exactly once. A piece does not see the pieces before it,
    and its positions start at 0.

    The place of an example is its row's number in `Packing`.
    """

    def __init__(self, spec: DataSpec, ahead: int) -> None:
        super().__init__(spec, ahead)
        self.pieces = {held_out: Pieces.of(lengths, self.length) for held_out, lengths in self.lengths.items()}
        self.packings = {
            held_out: Packing(pieces.size, self.length, None if held_out else spec.seed)
            for held_out, pieces in self.pieces.items()
        }

    def _pieces(self, examples: ExampleIndices) -> list[Ids]:
        """The pieces of each row."""
        return self.packings[examples.held_out].read(examples.places)

    def examples(self, step: int) -> ExampleIndices:
        self.spec.part(held_out=False)
        return ExampleIndices(self._keys(step))

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Rows that are always packed the same way; every target once."""
        self.spec.part(held_out=True)
        batches, share = self.packings[True].held_out(rows, self.pieces[True].size, most)
        return EvalSet(tuple(ExampleIndices(each, held_out=True) for each in batches), share)

    def read(self, examples: ExampleIndices) -> TokenRows:
        rows, all_pieces = self._pieces(examples), self.pieces[examples.held_out]
        numbers = np.concatenate(rows)
        pieces = Pieces(all_pieces.document[numbers], all_pieces.start[numbers], all_pieces.size[numbers], self.length)
        sizes = [all_pieces.size[each].tolist() for each in rows]
        tokens, following = self._fill(examples.held_out, pieces, np.array([sum(each) for each in sizes]), self.length)
        return TokenRows(tokens, following, Layout.packed(sizes, self.length))

    def beginning(self, most: int) -> ExampleIndices:
        return ExampleIndices(np.zeros(1, dtype=np.int64), held_out=True)

    def numbers(self, examples: ExampleIndices) -> Ids:
        """The rows."""
        return examples.places

    def size(self, held_out: bool) -> int:
        return self.packings[held_out].rows

    def epoch(self) -> int:
        return self.packings[False].rows

    @property
    def steps_per_epoch(self) -> float:
        return self.packings[False].rows / self.spec.rows

    @cached_property
    def held_out_text(self) -> tuple[int, float]:
        targets = int(self.lengths[True].sum())
        return targets, float(self._covered(self.spec.part(held_out=True)) / targets)

    def remarks(self) -> list[str]:
        lengths, packing = self.lengths[False], self.packings[False]
        cut = int((lengths > self.length).sum())
        return [
            f"pack: {pluralize(len(lengths), 'document')} in {pluralize(packing.rows, 'row')} of {self.length} tokens, "
            f"{packing.padding:.2%} of them padding; {cut:,} are longer than a row and are cut into pieces; nothing is dropped"
        ]

    def describe(self, examples: ExampleIndices) -> str:
        documents = np.unique(self.pieces[examples.held_out].document[np.concatenate(self._pieces(examples))])
        return f"packed rows of the {self._name(examples)} {listed(ExampleIndices(documents))}"
