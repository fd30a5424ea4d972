"""Sequence to sequence: predict a target text from a source text, with an encoder-decoder or a decoder (L1-74 … L1-82)."""

from dataclasses import dataclass, replace
from math import exp
from typing import Any

import numpy as np
import torch

from heddle.config.tasks import TranslationConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.pack import within
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.tasks.isolation import check_isolation
from heddle.tasks.metrics import CountingCrossEntropy
from heddle.tasks.records import Chosen, Lengths, RecordTask, padded_layout
from heddle.tasks.sequences import Ids, PaddedTexts, Slices, greedy_answer, in_rows, marks_of
from heddle.tasks.task import DataSpec, ExampleIndices
from heddle.text.tokenizer import Tokenizer

SAMPLE_SIZE = 3  # translations in a sample


@dataclass(frozen=True)
class PairRow:
    """The ids of one pair as a model reads them.

    Attributes:
        source: the encoder's ids; empty without an encoder.
        ids: the decoder's ids, which are predicted from the second on.
        known: how many of these come before the target's own ids.
    """

    source: Ids
    ids: Ids
    known: int


class TranslationTask(RecordTask):
    """Pairs of texts: the source is read, the target is predicted token by token, and then its end.

    An encoder reads `source end`, and its decoder reads `start target` and predicts `target end`; a step's `batch_tokens` bound its
    sources and its targets separately (as Vaswani et al. 2017, 5.1, count them). A decoder without an encoder reads
    `source <start_translation> target` in one row, and predicts the tokens after the boundary or, with `source_loss`, every token
    (L1-81). With `decoder.prefix = true`, the tokens up to the boundary are its prefix. With the layout `pack`, several pairs share
    a row as segments, which do not attend to each other.

    Texts beyond the context lose their ends; in one row, first the source, down to half of the context. A cropped target has no end
    to predict. `remarks` reports how many are cropped.

    Raises:
        HeddleError: the tokenizer lacks a special token, an option does not apply, or the context is too short for a pair.
    """

    def __init__(self, config: TranslationConfig, spec: DataSpec) -> None:
        self.paired = spec.model.encoder is not None
        self.scores_all = self.paired or config.source_loss
        self.marks = marks_of(config.kind, spec)
        if self.paired and config.source_loss:
            raise HeddleError(
                "source_loss applies to a decoder alone, since an encoder predicts nothing: leave it out, or set family=decoder"
            )
        self.prefix = not self.paired and spec.model.last()[1].prefix
        if self.prefix and config.source_loss:
            raise HeddleError(
                "source_loss predicts each token of the source from those before it, but with decoder.prefix = true it sees "
                "those after it too: leave one of them out"
            )
        least = len(self.marks.begin) + len(self.marks.start) + 2
        if spec.length < least:
            raise HeddleError(f"context = {spec.length} is too short for a pair of texts: it must be at least {least}")
        super().__init__(config, spec)

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each record's row; with an encoder, of the longer of its two rows."""
        source_lengths, _ = self._cropped_lengths(records)
        return np.maximum(self._inputs(records), len(self.marks.begin) + source_lengths + 1 if self.paired else 0)

    def targets(self, records: Records) -> Lengths:
        """Int[R], number of predicted ids of each record."""
        source_lengths, _ = self._cropped_lengths(records)
        return self._inputs(records) - (0 if self.scores_all else len(self.marks.begin) + source_lengths)

    def all_targets(self, records: Records) -> Lengths:
        """Int[R], number of predicted ids of each record before cropping."""
        source, target = (records.columns[name].lengths for name in ("source", "target"))
        before = len(self.marks.begin) + source if self.scores_all and not self.paired else 0
        counts: Lengths = before + len(self.marks.start) + target
        return counts

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], whether the source or the target, with its end, of each pair is cropped."""
        source_lengths, _ = self._cropped_lengths(records)
        is_shortened: Chosen = (source_lengths < records.columns["source"].lengths) | (
            self.targets(records) < self.all_targets(records)
        )
        return is_shortened

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows of the pairs, padded at their ends."""
        records = self.spec.records(examples.held_out)
        row_records = self.rows(examples.held_out).records(examples.places)
        numbers, counts = np.concatenate(row_records), np.array([len(each) for each in row_records])
        texts, known = self._decoder_texts(records, numbers)
        inside, read_lengths = within(texts.lengths), texts.lengths - 1
        sizes = np.split(read_lengths, np.cumsum(counts)[:-1])  # of the pairs in each row
        filled, packed = [int(each.sum()) for each in sizes], self.spec.layout == "pack"
        width = self.spec.length if packed else max(1, *filled)
        is_target = inside >= np.repeat(np.ones_like(known) if self.scores_all else known, texts.lengths)
        tokens = in_rows(texts.ids[inside < np.repeat(read_lengths, texts.lengths)], filled, width, self.marks.end)
        targets = in_rows(np.where(is_target, texts.ids, IGNORED)[inside > 0], filled, width, IGNORED)
        layout = Layout.packed([each.tolist() for each in sizes], width) if packed else padded_layout(filled, width)
        sources: dict[str, Any] = {}
        if self.paired:
            encoder_texts = self._encoder_texts(records, numbers)
            lengths = [int(each.sum()) for each in np.split(encoder_texts.lengths, np.cumsum(counts)[:-1])]
            source = in_rows(encoder_texts.ids, lengths, max(1, *lengths), self.marks.end)
            sources = {"source": torch.from_numpy(source), "source_layout": padded_layout(lengths, source.shape[1])}
        return Batch(
            tokens=torch.from_numpy(tokens),
            layout=self._prefixed(layout, counts, known),
            targets=torch.from_numpy(targets),
            weights=torch.from_numpy((targets != IGNORED).astype(np.float32)),
            **sources,
        )

    def row(self, records: Records, number: int) -> PairRow:
        """The ids of one record."""
        only = np.array([number])
        texts, known = self._decoder_texts(records, only)
        source = self._encoder_texts(records, only).ids if self.paired else texts.ids[:0]
        return PairRow(source, texts.ids, int(known[0]))

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CountingCrossEntropy:
        """-log p of the targets, for a model that scores tokens from left to right."""
        if model.decoder is None or (model.encoder is not None, model.decoder.prefix) != (self.paired, self.prefix):
            raise HeddleError(
                "the task 'translation' was made for another model: family and decoder.prefix must be the same"
            )
        model.language_head()
        if self.spec.layout == "pack":
            check_isolation(model, "pack", self.spec.length)
        return CountingCrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), and the share of targets with the highest score."""
        return {"perplexity": exp(min(means["loss"], 700.0)), "accuracy": means["accuracy"]}

    def remarks(self) -> list[str]:
        """How many texts are cropped and, of packed ones, how much is padding."""
        records, lines = self.spec.records(held_out=False), self.rows(held_out=False).remarks()
        for name, cropped_lengths in zip(("source", "target"), self._cropped_lengths(records), strict=True):
            cropped = int((cropped_lengths < records.columns[name].lengths).sum())
            if cropped:
                end = " and their ends are not learned" if name == "target" else ""
                lost_share = 1 - cropped_lengths.sum() / records.columns[name].lengths.sum()
                lines.append(
                    f"{cropped:,} of {len(records):,} {name}s ({cropped / len(records):.1%}) do not fit into "
                    f"context = {self.spec.length}: they are cropped{end}; {lost_share:.2%} of all tokens of {name}s are lost"
                )
        return lines

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Held-out sources, each with the model's greedy target and [the reference]."""
        records = self.spec.records(held_out=True)
        sampled = np.random.default_rng(seed).choice(len(records), min(SAMPLE_SIZE, len(records)), replace=False)
        lines = []
        for number in sorted(sampled.tolist()):
            source, target = (tokenizer.decode(records.columns[name][number].tolist()) for name in ("source", "target"))
            answer = tokenizer.decode(self.answer(model, self.row(records, number), tokens))
            lines.append(f"{source} → {answer} [{target}]")
        return "\n".join(lines)

    def answer(self, model: Transformer, row: PairRow, most: int) -> list[int]:
        """The greedy target of a row's source, without its end."""
        known = [] if self.paired else row.ids[: row.known].tolist()
        source = row.source.tolist() if self.paired else None
        answer = greedy_answer(model, known, source, self.marks.end, most)
        return answer[len(self.marks.start) - 1 :]  # without the id that an imported model must generate first

    def _decoder_texts(self, records: Records, numbers: Ids) -> tuple[PaddedTexts, Ids]:
        """The decoder's texts, which are predicted from the second id on; and Int[N], how many ids come before the target's own."""
        source, target = self._cropped_texts(records, numbers)
        start, end = (Slices.same(ids, len(numbers)) for ids in (self.marks.start, (self.marks.end,)))
        before = [] if self.paired else [Slices.same(self.marks.begin, len(numbers)), source]
        known = sum((part.sizes for part in before), start.sizes)
        # A cropped target has no end.
        has_end = (known + target.sizes <= self.spec.length).astype(np.int64)
        return PaddedTexts.of(*before, start, target, replace(end, sizes=has_end)), known

    def _encoder_texts(self, records: Records, numbers: Ids) -> PaddedTexts:
        """The encoder's texts."""
        begin, end = (Slices.same(ids, len(numbers)) for ids in (self.marks.begin, (self.marks.end,)))
        return PaddedTexts.of(begin, self._cropped_texts(records, numbers)[0], end)

    def _cropped_texts(self, records: Records, numbers: Ids) -> list[Slices]:
        """The sources and the targets of these records, cropped to the context."""
        columns = [records.columns[name] for name in ("source", "target")]
        starts = [column.offsets[numbers] for column in columns]
        sizes = [column.offsets[numbers + 1] - start for column, start in zip(columns, starts, strict=True)]
        return [
            Slices(column.values, start, size)
            for column, start, size in zip(columns, starts, self._crop(*sizes), strict=True)
        ]

    def _prefixed(self, layout: Layout, counts: Ids, known: Ids) -> Layout:
        """The layout of rows of `counts` pairs; if the model reads prefixes, with the first `known` ids of each pair as prefix."""
        if not self.prefix:
            return layout
        lengths = np.zeros((len(counts), max(1, *counts)), dtype=np.int64)
        lengths[np.arange(lengths.shape[1]) < counts[:, None]] = known
        return layout.prefixed(torch.from_numpy(lengths))

    def _inputs(self, records: Records) -> Lengths:
        """Int[R], ids of each record that the decoder reads."""
        source_lengths, _ = self._cropped_lengths(records)
        before = 0 if self.paired else len(self.marks.begin) + source_lengths
        return np.minimum(before + len(self.marks.start) + records.columns["target"].lengths, self.spec.length)

    def _cropped_lengths(self, records: Records) -> tuple[Lengths, Lengths]:
        """Int[R] twice, lengths of each source and each target after cropping."""
        lengths = self._crop(*(records.columns[name].lengths for name in ("source", "target")))
        return np.asarray(lengths[0]), np.asarray(lengths[1])

    def _crop(self, source: Any, target: Any) -> tuple[Any, Any]:
        """The lengths of sources and targets after cropping; numbers or arrays."""
        room = self.spec.length - len(self.marks.begin) - 1  # the boundary, or the source's end
        if self.paired:
            return np.minimum(source, room), np.minimum(target, self.spec.length + 1 - len(self.marks.start))
        source_length = np.minimum(source, np.maximum(room - target, room // 2))
        return source_length, np.minimum(target, room + 1 - source_length)
