"""Sequence to sequence: predict a target text from a source text, in an encoder-decoder or in a decoder alone (L1-74 … L1-82)."""

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
from heddle.tasks.accuracy import CountingCrossEntropy
from heddle.tasks.isolation import check_isolation
from heddle.tasks.records import Chosen, Lengths, RecordTask, padded_layout
from heddle.tasks.sequences import Ids, PaddedTexts, Slices, answered, in_rows, marks_of
from heddle.tasks.task import DataSpec, ExampleIndices
from heddle.text.tokenizer import Tokenizer

SHOWN = 3  # translations in a sample


@dataclass(frozen=True)
class PairRow:
    """The ids of one pair as a model reads them.

    Attributes:
        source: what the encoder reads; empty for a decoder alone.
        ids: what the decoder reads and, from the second on, predicts.
        known: how many of these come before the target's own.
    """

    source: Ids
    ids: Ids
    known: int


class TranslationTask(RecordTask):
    """Pairs of texts: the source is read, the target is predicted token by token, and then its end.

    An encoder-decoder's encoder reads `source end`, and its decoder reads `start target` and predicts `target end`; a step's
    `batch_tokens` bound its sources and its targets separately (as Vaswani et al. 2017, 5.1, count them). A decoder alone
    reads `source <start_translation> target` in one row, and predicts what comes after the boundary or, with `source_loss`,
    every token (L1-81). With `decoder.prefix = true`, what comes up to the boundary is its prefix. With the layout `pack`, several
    of its pairs share a row as segments, which do not see each other.

    Texts beyond the context are cropped at their ends, in one row first the source, down to half of the context. A
    cropped target has no end to predict. `remarks` says how many are cropped.

    Raises:
        HeddleError: the tokenizer lacks a special token, an option does not apply, or the context holds no pair.
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
            raise HeddleError(f"context = {spec.length} holds no pair of texts: it must be at least {least}")
        super().__init__(config, spec)

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each record's row; of its longer row, if source and target have one each."""
        kept, _ = self._fitting(records)
        return np.maximum(self._inputs(records), len(self.marks.begin) + kept + 1 if self.paired else 0)

    def targets(self, records: Records) -> Lengths:
        """Int[R], how many ids of each record are predicted."""
        kept, _ = self._fitting(records)
        return self._inputs(records) - (0 if self.scores_all else len(self.marks.begin) + kept)

    def asked(self, records: Records) -> Lengths:
        """Int[R], how many ids of each record would be predicted if nothing were cropped."""
        source, target = (records.columns[name].lengths for name in ("source", "target"))
        before = len(self.marks.begin) + source if self.scores_all and not self.paired else 0
        found: Lengths = before + len(self.marks.start) + target
        return found

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], of which pairs the source or the target, with its end, is cropped."""
        kept, _ = self._fitting(records)
        found: Chosen = (kept < records.columns["source"].lengths) | (self.targets(records) < self.asked(records))
        return found

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows of the pairs, padded at their ends."""
        records = self.spec.records(examples.held_out)
        found = self.rows(examples.held_out).records(examples.places)
        numbers, counts = np.concatenate(found), np.array([len(each) for each in found])
        texts, known = self._decoded(records, numbers)
        inside, read = within(texts.lengths), texts.lengths - 1
        sizes = np.split(read, np.cumsum(counts)[:-1])  # of the pairs in each row
        filled, packed = [int(each.sum()) for each in sizes], self.spec.layout == "pack"
        width = self.spec.length if packed else max(1, *filled)
        counted = inside >= np.repeat(np.ones_like(known) if self.scores_all else known, texts.lengths)
        tokens = in_rows(texts.ids[inside < np.repeat(read, texts.lengths)], filled, width, self.marks.end)
        targets = in_rows(np.where(counted, texts.ids, IGNORED)[inside > 0], filled, width, IGNORED)
        layout = Layout.packed([each.tolist() for each in sizes], width) if packed else padded_layout(filled, width)
        sources: dict[str, Any] = {}
        if self.paired:
            read_first = self._sources(records, numbers)
            lengths = [int(each.sum()) for each in np.split(read_first.lengths, np.cumsum(counts)[:-1])]
            source = in_rows(read_first.ids, lengths, max(1, *lengths), self.marks.end)
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
        texts, known = self._decoded(records, only)
        source = self._sources(records, only).ids if self.paired else texts.ids[:0]
        return PairRow(source, texts.ids, int(known[0]))

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CountingCrossEntropy:
        """-log p of the targets, for a model that scores tokens from left to right."""
        if model.decoder is None or (model.encoder is not None, model.decoder.prefix) != (self.paired, self.prefix):
            raise HeddleError("the task 'translation' needs an encoder-decoder or a decoder, the one it was made for")
        model.language_head()
        if self.spec.layout == "pack":
            check_isolation(model, "pack", self.spec.length)
        return CountingCrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), and the share of targets with the highest score."""
        return {"perplexity": exp(min(means["loss"], 700.0)), "accuracy": means["accuracy"]}

    def remarks(self) -> list[str]:
        """How many texts are cropped and, of packed ones, how much is padding."""
        records, said = self.spec.records(held_out=False), self.rows(held_out=False).remarks()
        for name, kept in zip(("source", "target"), self._fitting(records), strict=True):
            cropped = int((kept < records.columns[name].lengths).sum())
            if cropped:
                end = " and their ends are not learned" if name == "target" else ""
                lost = 1 - kept.sum() / records.columns[name].lengths.sum()
                said.append(
                    f"{cropped:,} of {len(records):,} {name}s ({cropped / len(records):.1%}) do not fit into "
                    f"context = {self.spec.length}: they are cropped{end}; {lost:.2%} of all tokens of {name}s are lost"
                )
        return said

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Held-out sources, each with the most probable target, token by token, and [the right one]."""
        records = self.spec.records(held_out=True)
        chosen = np.random.default_rng(seed).choice(len(records), min(SHOWN, len(records)), replace=False)
        lines = []
        for number in sorted(chosen.tolist()):
            source, target = (tokenizer.decode(records.columns[name][number].tolist()) for name in ("source", "target"))
            answer = tokenizer.decode(self.answer(model, self.row(records, number), tokens))
            lines.append(f"{source} → {answer} [{target}]")
        return "\n".join(lines)

    def answer(self, model: Transformer, row: PairRow, most: int) -> list[int]:
        """The most probable target of a row's source, token by token, without its end."""
        known = [] if self.paired else row.ids[: row.known].tolist()
        source = row.source.tolist() if self.paired else None
        found = answered(model, known, source, self.marks.end, most)
        return found[len(self.marks.start) - 1 :]  # without the id that an imported model must generate first

    def _decoded(self, records: Records, numbers: Ids) -> tuple[PaddedTexts, Ids]:
        """What the decoder reads of these records and, from the second id on, predicts; and Int[N], ids before the target's own."""
        source, target = self._kept(records, numbers)
        start, end = (Slices.same(ids, len(numbers)) for ids in (self.marks.start, (self.marks.end,)))
        before = [] if self.paired else [Slices.same(self.marks.begin, len(numbers)), source]
        known = sum((part.sizes for part in before), start.sizes)
        # A cropped target has no end.
        has_end = (known + target.sizes <= self.spec.length).astype(np.int64)
        return PaddedTexts.of(*before, start, target, replace(end, sizes=has_end)), known

    def _sources(self, records: Records, numbers: Ids) -> PaddedTexts:
        """What the encoder reads of these records."""
        begin, end = (Slices.same(ids, len(numbers)) for ids in (self.marks.begin, (self.marks.end,)))
        return PaddedTexts.of(begin, self._kept(records, numbers)[0], end)

    def _kept(self, records: Records, numbers: Ids) -> list[Slices]:
        """As much of the sources and of the targets of these records as fits."""
        columns = [records.columns[name] for name in ("source", "target")]
        starts = [column.offsets[numbers] for column in columns]
        sizes = [column.offsets[numbers + 1] - start for column, start in zip(columns, starts, strict=True)]
        return [
            Slices(column.values, start, size)
            for column, start, size in zip(columns, starts, self._cropped(*sizes), strict=True)
        ]

    def _prefixed(self, layout: Layout, counts: Ids, known: Ids) -> Layout:
        """The layout of rows of `counts` pairs, with what is known of each pair as its prefix if the model reads prefixes."""
        if not self.prefix:
            return layout
        lengths = np.zeros((len(counts), max(1, *counts)), dtype=np.int64)
        lengths[np.arange(lengths.shape[1]) < counts[:, None]] = known
        return layout.prefixed(torch.from_numpy(lengths))

    def _inputs(self, records: Records) -> Lengths:
        """Int[R], how many ids of each record the decoder reads."""
        kept, _ = self._fitting(records)
        before = 0 if self.paired else len(self.marks.begin) + kept
        return np.minimum(before + len(self.marks.start) + records.columns["target"].lengths, self.spec.length)

    def _fitting(self, records: Records) -> tuple[Lengths, Lengths]:
        """Int[R] twice, how many ids of each source and of each target fit."""
        kept = self._cropped(*(records.columns[name].lengths for name in ("source", "target")))
        return np.asarray(kept[0]), np.asarray(kept[1])

    def _cropped(self, source: Any, target: Any) -> tuple[Any, Any]:
        """How many ids of a source and of a target fit, from their lengths: numbers or arrays."""
        room = self.spec.length - len(self.marks.begin) - 1  # the boundary, or the source's end
        if self.paired:
            return np.minimum(source, room), np.minimum(target, self.spec.length + 1 - len(self.marks.start))
        kept = np.minimum(source, np.maximum(room - target, room // 2))
        return kept, np.minimum(target, room + 1 - kept)
