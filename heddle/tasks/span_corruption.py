"""Span corruption: predict spans removed from a text (Raffel et al. 2020, 3.1.4: T5)."""

from collections.abc import Iterator
from math import exp

import numpy as np
import numpy.typing as npt
import torch

from heddle.config.tasks import SpanCorruptionConfig
from heddle.data.batch import Batch
from heddle.data.order import held_out_windows, windows, windows_per_epoch
from heddle.errors import HeddleError, pluralize
from heddle.generate.translate import SENTINEL
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.tasks.extent import Extent
from heddle.tasks.metrics import CountingCrossEntropy
from heddle.tasks.sequences import greedy_answer, marks_of
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices, Task, listed, stream, window_batches, window_places
from heddle.text.tokenizer import Tokenizer

LEAST = 4  # windows in a sample; fewer would not give a standard error

Ids = npt.NDArray[np.int64]


class SpanCorruptionTask(Task):
    """Windows of a text from which spans are missing: an encoder-decoder reads the rest and predicts the spans.

    In the source, the k-th missing span is replaced by the sentinel `<extra_id_k>`, from k = 0. The target is each sentinel
    followed by its span, then the end of text, which closes the last span as in the released code of T5:

        text      the warp is held and the weft is thrown
        source    the warp <extra_id_0> and the weft <extra_id_1> end
        target    <extra_id_0> is held <extra_id_1> is thrown end

    As there, a window of n tokens has round(share · n) missing tokens in round(missing / span) spans; every way to cut the
    missing tokens and the others into so many spans is equally likely, and a window begins with kept tokens and ends with a span.
    The spans are a function of the seed and the example's number. A window is as long as its source and target fit into the
    context: 568 tokens for a context of 512.

    Raises:
        HeddleError: the tokenizer lacks an end of text or has too few sentinels, or the training text is too short.
    """

    def __init__(self, config: SpanCorruptionConfig, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.marks = marks_of(config.kind, spec)
        assert spec.tokenizer is not None
        self.window = self._longest()
        self.sentinels = self._sentinels(spec.tokenizer, self.spans(self.window)[1])
        tokens = None if spec.corpus.train is None else len(spec.part(held_out=False).tokens)
        if tokens is not None and tokens <= self.window:
            raise HeddleError(
                f"context = {spec.length} reads windows of {self.window} tokens, but training has "
                f"{pluralize(tokens, 'token')}: set a smaller context, or give more text"
            )

    def spans(self, length: int) -> tuple[int, int]:
        """How many tokens are missing from a window of `length`, at least 2, and in how many spans."""
        missing = min(max(round(self.config.share * length), 1), length - 1)
        # At least one kept token separates two spans.
        return missing, min(max(round(missing / self.config.span), 1), length - missing)

    def widths(self, length: int) -> tuple[int, int]:
        """Ids of the source and of the target of a window of `length`, with their ends."""
        missing, count = self.spans(length)
        return len(self.marks.begin) + length - missing + count + 1, len(self.marks.start) - 1 + missing + count + 1

    def examples(self, step: int) -> ExampleIndices:
        """The windows of one step: every window once per epoch, in an order keyed by (seed, epoch), each time with other spans."""
        rows = self.spec.rows
        starts = windows(len(self.spec.part(held_out=False).tokens), self.window, self.spec.seed, step, rows)
        return ExampleIndices(starts, length=self.window, keys=np.arange(step * rows, (step + 1) * rows))

    def batch(self, examples: ExampleIndices) -> Batch:
        """The windows without their spans, and the spans. All rows are equally long."""
        keys = examples.places if examples.keys is None else examples.keys
        pairs = [
            self.corrupted(int(start), examples.length, examples.held_out, int(key))
            for start, key in zip(examples.places, keys, strict=True)
        ]
        source, target = (torch.from_numpy(np.stack(column)) for column in zip(*pairs, strict=True))
        # Copies: views would carry the memory of the whole buffer through every move between devices.
        tokens, targets = target[:, :-1].contiguous(), target[:, 1:].contiguous()
        weights, layout = torch.ones(targets.shape), Layout.whole(*tokens.shape)
        return Batch(tokens, layout, targets, weights, source, Layout.whole(*source.shape))

    def corrupted(self, start: int, length: int, held_out: bool, key: int) -> tuple[Ids, Ids]:
        """The encoder's and the decoder's ids of one window; the decoder's include the end, which is predicted last."""
        text = self.spec.part(held_out).tokens[start : start + length].astype(np.int64)
        rng = np.random.default_rng([self.spec.seed, held_out, key])
        missing, count = self.spans(length)
        kept_lengths, missing_lengths = _cut(length - missing, count, rng), _cut(missing, count, rng)
        ends = np.cumsum(np.stack([kept_lengths, missing_lengths], axis=1).ravel())
        pieces = np.split(text, ends[:-1])  # kept, missing, kept, missing, …
        sentinels = self.sentinels[:count, None]
        source = [part for pair in zip(pieces[::2], sentinels, strict=True) for part in pair]
        target = [part for pair in zip(sentinels, pieces[1::2], strict=True) for part in pair]
        begin, opening, end = (
            np.array(ids, dtype=np.int64) for ids in (self.marks.begin, self.marks.start, [self.marks.end])
        )
        return np.concatenate([begin, *source, end]), np.concatenate([opening, *target, end])

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Windows that do not overlap, with the same spans every time. A last window of one token is left out."""
        tokens = len(self.spec.part(held_out=True).tokens)
        per_window = self.widths(self.window)[1]
        count = None if most is None else max(LEAST, round(most / per_window))
        # A window of next-token prediction scores one token less than it reads; here every token may be missing.
        windows = held_out_windows(tokens + 1, self.window, count)
        scored = [(start, stop) for start, stop in windows if stop - start > 1]
        if not scored:
            raise HeddleError(f"the text to score has {pluralize(tokens, 'token')}; span corruption needs at least 2")
        return EvalSet(window_batches(scored, rows, self.window), sum(stop - start for start, stop in scored) / tokens)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CountingCrossEntropy:
        """-log p of the target's ids, for an encoder-decoder."""
        if model.encoder is None or model.decoder is None:
            raise HeddleError(
                "the task 'span_corruption' needs an encoder-decoder: it reads a source and predicts a target"
            )
        model.language_head()
        return CountingCrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), and the share of targets with the highest score."""
        return {"perplexity": exp(min(means["loss"], 700.0)), "accuracy": means["accuracy"]}

    def extent(self) -> Extent:
        """How many of the held-out tokens are in windows."""
        part = self.spec.part(held_out=True)
        return Extent(len(part.tokens), unscored=len(part.tokens) - self.size(held_out=True), examples=part.documents)

    def places(self, examples: ExampleIndices) -> Ids:
        """Each token's number in the text: all are read, and any of them may be a target."""
        return window_places(examples)

    def size(self, held_out: bool) -> int:
        """All tokens are read, except one that would be alone in the last held-out window."""
        tokens = len(self.spec.part(held_out).tokens)
        return tokens - 1 if held_out and tokens % self.window == 1 else tokens

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All windows of an epoch."""
        count = windows_per_epoch(len(self.spec.part(held_out=False).tokens), self.window)
        return stream(self, number * count, count)

    def steps_per_epoch(self) -> float:
        """Steps that read the text once, in windows longer than the context."""
        return len(self.spec.part(held_out=False).tokens) / (self.spec.rows * self.window)

    def describe(self, examples: ExampleIndices) -> str:
        """Where the windows start."""
        return f"windows that start at {'validation' if examples.held_out else 'training'} tokens {listed(examples)}"

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """The beginning of the validation text with spans filled in: [the model's], or [the model's / the original]."""
        length = min(tokens, self.window, len(self.spec.part(held_out=True).tokens))
        if length < 2:
            return None
        source, target = self.corrupted(0, length, True, seed)
        answer = greedy_answer(model, [], source.tolist(), self.marks.end, 2 * len(target))
        predicted, actual = self._by_sentinel(answer), self._by_sentinel(target[len(self.marks.start) : -1].tolist())
        text, previous = b"", None
        for id in source[len(self.marks.begin) : -1].tolist():
            piece = b""
            for each in actual.get(id, [id]):
                piece, previous = piece + tokenizer.after(previous, each), each
            if id in actual:
                guess, original = tokenizer.decode(predicted.get(id, [])).strip().encode(), piece.strip()
                piece = piece[: len(piece) - len(piece.lstrip())] + b"["
                piece += guess + (b"" if guess == original else b" / " + original) + b"]"
            text += piece
        return text.decode(errors="replace")

    def _by_sentinel(self, ids: list[int]) -> dict[int, list[int]]:
        """The spans of a target by their sentinels; what comes before the first belongs to none."""
        spans: dict[int, list[int]] = {}
        sentinels, latest = set(self.sentinels.tolist()), -1
        for id in ids:
            if id in sentinels:
                latest = id
                spans.setdefault(latest, [])
            elif latest >= 0:
                spans[latest].append(id)
        return spans

    def _longest(self) -> int:
        """The longest window whose source and target fit into the context."""
        length = 2
        if max(self.widths(length)) > self.spec.length:
            raise HeddleError(
                f"context = {self.spec.length} is too short for a window: it must be at least {max(self.widths(length))}"
            )
        while max(self.widths(length + 1)) <= self.spec.length:
            length += 1
        return length

    def _sentinels(self, tokenizer: Tokenizer, count: int) -> Ids:
        """The ids of the sentinels that a window needs."""
        names = [SENTINEL.format(number) for number in range(count)]
        missing = [name for name in names if name not in tokenizer.special]
        if missing:
            raise HeddleError(
                f"context = {self.spec.length} needs {pluralize(count, 'sentinel')}, but the tokenizer has no "
                f"{missing[0]}: add it and those after it to special_tokens, train a tokenizer, or set a smaller context"
            )
        return np.array([tokenizer.special[name] for name in names], dtype=np.int64)


def _cut(length: int, parts: int, rng: np.random.Generator) -> Ids:
    """Lengths of `parts` non-empty parts that add up to `length`; every choice is equally likely."""
    cuts = np.sort(rng.choice(length - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [length]]))
