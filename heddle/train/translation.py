"""Sequence to sequence: predict a target text from a source text, in an encoder-decoder or in a decoder alone (L1-74 … L1-82)."""

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heddle.config.tasks import TranslationConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.accuracy import CountingCrossEntropy
from heddle.train.records import Lengths, RecordTask, padded, padded_layout
from heddle.train.sequences import Marks, greedy
from heddle.train.task import Examples, Reading

SHOWN = 3  # translations in a sample

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PairRow:
    """The ids of one pair as a model reads them; all are empty for a row of padding.

    Attributes:
        source: what the encoder reads; empty for a decoder alone.
        ids: what the decoder reads and, from the second on, predicts.
        known: how many of these come before the target's own.
        first: the place that predicts the first id that counts.
    """

    source: Ids
    ids: Ids
    known: int
    first: int


class TranslationTask(RecordTask):
    """Pairs of texts: the source is read, the target is predicted token by token, and then its end.

    An encoder-decoder's encoder reads `source end`, and its decoder reads `start target` and predicts `target end`; a step's
    `batch_tokens` bound its sources and its targets separately (as Vaswani et al. 2017, 5.1, count them). A decoder alone
    reads `source <start_translation> target` in one row, and predicts what comes after the boundary or, with `source_loss`,
    every token (L1-81). With `decoder.prefix = true`, what comes up to the boundary is its prefix.

    Texts beyond the context are cropped at their ends, in one row first the source, down to half of the context. A
    cropped target has no end to predict. `remarks` says how many are cropped.

    Raises:
        HeddleError: the tokenizer lacks a special token, an option does not apply, or the context holds no pair.
    """

    def __init__(self, config: TranslationConfig, reading: Reading) -> None:
        self.paired = reading.model.encoder is not None
        self.scores_all = self.paired or config.source_loss
        self.marks = Marks.of(config.kind, reading)
        if self.paired and config.source_loss:
            raise HeddleError(
                "source_loss applies to a decoder alone, since an encoder predicts nothing: leave it out, or set family=decoder"
            )
        self.prefix = not self.paired and reading.model.last()[1].prefix
        if self.prefix and config.source_loss:
            raise HeddleError(
                "source_loss predicts each token of the source from those before it, but with decoder.prefix = true it sees "
                "those after it too: leave one of them out"
            )
        least = len(self.marks.begin) + len(self.marks.start) + 2
        if reading.length < least:
            raise HeddleError(f"context = {reading.length} holds no pair of texts: it must be at least {least}")
        super().__init__(config, reading)

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each record's row; of its longer row, if source and target have one each."""
        kept, _ = self._fitting(records)
        return np.maximum(self._inputs(records), len(self.marks.begin) + kept + 1 if self.paired else 0)

    def targets(self, records: Records) -> Lengths:
        """Int[R], how many ids of each record are predicted."""
        kept, _ = self._fitting(records)
        return self._inputs(records) - (0 if self.scores_all else len(self.marks.begin) + kept)

    def batch(self, examples: Examples) -> Batch:
        """The rows of the pairs, padded at their ends."""
        records = self.reading.records(examples.held_out)
        rows = [self.row(records, int(place)) for place in examples.places]
        inputs = [row.ids[:-1] for row in rows]
        tokens = padded(inputs, self.marks.end)
        targets = padded(
            [np.where(np.arange(1, len(row.ids)) > row.first, row.ids[1:], IGNORED) for row in rows], IGNORED
        )
        layout = padded_layout(inputs, tokens.shape[1])
        if self.prefix:
            layout = layout.prefixed(torch.tensor([[row.known] for row in rows]))
        source, source_layout = None, None
        if self.paired:
            sources = padded([row.source for row in rows], self.marks.end)
            source = torch.from_numpy(sources)
            source_layout = padded_layout([row.source for row in rows], sources.shape[1])
        return Batch(
            tokens=torch.from_numpy(tokens),
            layout=layout,
            targets=torch.from_numpy(targets),
            weights=torch.from_numpy((targets != IGNORED).astype(np.float32)),
            source=source,
            source_layout=source_layout,
        )

    def row(self, records: Records, number: int) -> PairRow:
        """The ids of one record; `EMPTY` gives a row of padding."""
        none = np.empty(0, dtype=np.int64)
        if number == EMPTY:
            return PairRow(none, none, 0, 0)
        pair = (records.columns[name][number] for name in ("source", "target"))
        source, target = (ids.astype(np.int64) for ids in pair)
        kept, _ = self._cropped(len(source), len(target))
        source = np.concatenate([np.array(self.marks.begin, dtype=np.int64), source[:kept]])
        target = np.concatenate([np.array(self.marks.start), target, [self.marks.end]])
        most = self.reading.length + 1
        if self.paired:
            return PairRow(np.append(source, self.marks.end), target[:most], len(self.marks.start), 0)
        known = len(source) + len(self.marks.start)
        return PairRow(none, np.concatenate([source, target])[:most], known, 0 if self.scores_all else known - 1)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CountingCrossEntropy:
        """-log p of the targets, for a model that scores tokens from left to right."""
        if model.decoder is None or (model.encoder is not None, model.decoder.prefix) != (self.paired, self.prefix):
            raise HeddleError("the task 'translation' needs an encoder-decoder or a decoder, the one it was made for")
        model.language_head()
        return CountingCrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), and the share of targets with the highest score."""
        return {"perplexity": exp(min(means["loss"], 700.0)), "accuracy": means["accuracy"]}

    def remarks(self) -> list[str]:
        """How many texts are cropped."""
        records, said = self.reading.records(held_out=False), []
        for name, kept in zip(("source", "target"), self._fitting(records), strict=True):
            cropped = int((kept < records.columns[name].lengths).sum())
            if cropped:
                end = " and their ends are not learned" if name == "target" else ""
                said.append(
                    f"{cropped:,} of {len(records):,} {name}s ({cropped / len(records):.1%}) do not fit into "
                    f"context = {self.reading.length}: they are cropped{end}"
                )
        return said

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Held-out sources, each with the most probable target, token by token, and [the right one]."""
        records = self.reading.records(held_out=True)
        chosen = np.random.default_rng(seed).choice(len(records), min(SHOWN, len(records)), replace=False)
        lines = []
        for number in sorted(chosen.tolist()):
            source, target = (tokenizer.decode(records.columns[name][number].tolist()) for name in ("source", "target"))
            answer = tokenizer.decode(self.answer(model, self.row(records, number), tokens))
            lines.append(f"{source} → {answer} [{target}]")
        return "\n".join(lines)

    def answer(self, model: Transformer, row: PairRow, most: int) -> list[int]:
        """The most probable target of a row's source, token by token, without its end."""
        known = row.ids[: row.known].tolist()
        room = min(most, self.reading.length - len(known))
        return greedy(model, known, row.source.tolist() if self.paired else None, self.marks.end, room)

    def _inputs(self, records: Records) -> Lengths:
        """Int[R], how many ids of each record the decoder reads."""
        kept, _ = self._fitting(records)
        before = 0 if self.paired else len(self.marks.begin) + kept
        return np.minimum(before + len(self.marks.start) + records.columns["target"].lengths, self.reading.length)

    def _fitting(self, records: Records) -> tuple[Lengths, Lengths]:
        """Int[R] twice, how many ids of each source and of each target fit."""
        kept = self._cropped(*(records.columns[name].lengths for name in ("source", "target")))
        return np.asarray(kept[0]), np.asarray(kept[1])

    def _cropped(self, source: Any, target: Any) -> tuple[Any, Any]:
        """How many ids of a source and of a target fit, from their lengths: numbers or arrays."""
        room = self.reading.length - len(self.marks.begin) - 1  # the boundary, or the source's end
        if self.paired:
            return np.minimum(source, room), np.minimum(target, self.reading.length + 1 - len(self.marks.start))
        kept = np.minimum(source, np.maximum(room - target, room // 2))
        return kept, np.minimum(target, room + 1 - kept)
