"""Text embeddings learned from pairs that belong together: a text should be nearer to its own pair than to others' pairs.

Vectors are compared by their cosine, in both directions: from texts to pairs and from pairs to texts (van den Oord et al. 2018:
InfoNCE; Henderson et al. 2017, 4; Gao et al. 2021: SimCSE).
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.tasks import ContrastiveConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model.pooling import unpack_rows
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Routing
from heddle.tasks.isolation import check_isolation
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.tasks.records import Chosen, Lengths, RecordTask, padded
from heddle.tasks.rows.framing import frame_of
from heddle.tasks.rows.records import GroupedRecords
from heddle.tasks.task import DataSpec, ExampleIndices, Target, stream
from heddle.text.tokenizer import Tokenizer

TEXTS = ("text", "pair", "negative")
SAMPLE_SIZE = 3  # texts in a sample
REPORTED_SHARE = 0.005  # share of cropped texts from which on there is a remark


class Contrast(CrossEntropy):
    """InfoNCE in both directions, each group of pairs by itself.

    Of a group of N texts x, their pairs y and, if there are any, their hard negatives z, with s(a, b) = cos(a, b) / temperature:
    the loss of text n is the mean of -log exp s(x_n, y_n) / Σ_m (exp s(x_n, y_m) + exp s(x_n, z_m)) and
    -log exp s(x_n, y_n) / Σ_m exp s(x_m, y_n).

    Equal texts are not negatives of each other: the sums leave out texts that equal the text itself, and texts that are correct
    answers because an equal text in the group has them as its other side. So a question is compared with wrong answers only.

    Args:
        model: a model whose head is an embedding of each text.
        temperature: divides the cosines.
        texts: 2, or 3 with hard negatives.
    """

    def __init__(self, model: Transformer, temperature: float, texts: int) -> None:
        super().__init__(model)
        self.temperature, self.texts = temperature, texts

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """How often a text's own pair is the nearest candidate, and the sum of 1 / its rank; ties count as wrong."""
        scores, _ = self._scores(features, batch)
        own_score = scores.gather(-1, batch.targets.clamp(min=0)[..., None])
        rank = (scores >= own_score).sum(-1)
        metrics = {"accuracy": rank == 1, "mean_reciprocal_rank": 1 / rank.clamp(min=1)}
        return {name: (each * batch.weights).sum(1) for name, each in metrics.items()}

    def nearest(self, batch: Batch) -> Tensor:
        """Int[B N], the number of the candidate nearest to each text: below N a pair, from N on a hard negative."""
        features, _ = self._features(batch)
        return self._scores(features, batch)[0].argmax(-1)

    def _features(self, batch: Batch) -> tuple[Tensor, tuple[Routing, ...]]:
        """Float[B N K E], the vectors of the K texts of each pair; an absent pair's are 0."""
        hidden, routings = self.model(batch.tokens, batch.layout, types=batch.types)
        assert self.model.head is not None
        vectors = self.model.head.features(*unpack_rows(hidden, batch.layout))
        by_row = vectors.unflatten(0, (len(batch.tokens), -1))
        absent = batch.targets.shape[1] * self.texts - by_row.shape[1]
        return F.pad(by_row, (0, 0, 0, absent)).unflatten(1, (-1, self.texts)), routings

    def _outputs(self, features: Tensor) -> Tensor:
        return features

    def _scores(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Float[B N C] from texts to the candidates, pairs first, and Float[B N N] from pairs to texts; -inf for absent candidates
        and for those that are as correct as the text's own pair."""
        x = F.normalize(features.to(wide_dtype(features.dtype)), dim=-1)
        text, pair = x[..., 0, :], x[..., 1, :]
        candidates = torch.cat([x[..., number, :] for number in range(1, self.texts)], dim=-2)
        present = batch.targets != IGNORED
        absent = ~torch.cat([present] * (self.texts - 1), dim=-1)[..., None, :]
        forth, back = text @ candidates.mT / self.temperature, pair @ text.mT / self.temperature
        excluded, excluded_back = absent, ~present[..., None, :]
        if batch.texts is not None:
            of_text, of_pair = (batch.texts[:, number :: self.texts] for number in range(2))
            of_candidates = torch.cat([batch.texts[:, number :: self.texts] for number in range(1, self.texts)], dim=-1)
            own = batch.targets.clamp(min=0)
            excluded = excluded | also_correct(of_text, of_pair, of_candidates, own)
            excluded_back = excluded_back | also_correct(of_pair, of_text, of_text, own)
        return forth.masked_fill(excluded, -torch.inf), back.masked_fill(excluded_back, -torch.inf)

    def _nats(self, features: Tensor, batch: Batch) -> Float[Tensor, "B N"]:
        """Weighted nats of each pair, the mean of both directions."""
        own = batch.targets.clamp(min=0)[..., None]
        nats = [-scores.log_softmax(-1).gather(-1, own)[..., 0] for scores in self._scores(features, batch)]
        return torch.stack(nats).mean(0) * batch.weights

    def forward(self, batch: Batch) -> Loss:
        if self.own is not None:
            return super().forward(batch)
        features, routings = self._features(batch)
        total = self._nats(features, batch).sum()
        extra = sum((routing.terms for routing in routings), torch.zeros_like(total))
        return Loss(total, total.detach(), batch.weights.sum(), extra, tuple(routing.load for routing in routings))

    def by_row(self, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        features, _ = self._features(batch)
        return {"loss": self._nats(features, batch).sum(1).detach(), **self.counts(features, batch)}


def also_correct(
    texts: Int[Tensor, "B N"], others: Int[Tensor, "B N"], candidates: Int[Tensor, "B C"], own: Int[Tensor, "B N"]
) -> Bool[Tensor, "B N C"]:
    """Which candidates, other than a text's own, must not count as wrong answers: those that equal the text, or the other side of
    an equal text. Texts are given by number.

    Args:
        texts: the texts.
        others: the other side of each text.
        candidates: the texts to compare with.
        own: which candidate is each text's own.
    """
    equal = (texts[:, :, None] == texts[:, None]).float()
    answers = (others[:, :, None] == candidates[:, None]).float()
    correct = (equal @ answers > 0) | (texts[:, :, None] == candidates[:, None])
    return correct.scatter(-1, own[..., None], False)


class ContrastiveTask(RecordTask):
    """Pairs of a `text` and its `pair`, with an optional `negative`, which is similar to the text but not its pair.

    A group of pairs is a row of a batch, with each text as a segment, and a text is compared only with others of its group. So the
    loss is a sum over rows, independent of micro-batches and ranks.

    Raises:
        HeddleError: a part has fewer than two pairs, or the context has no room for a text.
    """

    def __init__(self, config: ContrastiveConfig, spec: DataSpec) -> None:
        self.frame = frame_of(spec, 1)
        parts = [part for part in (spec.corpus.train, spec.corpus.validation) if isinstance(part, Records)]
        self.names = TEXTS if any("negative" in part.columns for part in parts) else TEXTS[:2]
        for part in parts:
            if len(part) < 2:
                raise HeddleError(
                    f"a part has {len(part)} pair: pairs are compared with each other, so each part needs at least 2"
                )
        super().__init__(config, spec)

    def rows(self, held_out: bool) -> GroupedRecords:
        """The groups of the pairs to score, or of those to train on."""
        if held_out not in self._rows:
            records = self.spec.records(held_out)
            lengths, targets = self.lengths(records), self.targets(records)
            self._rows[held_out] = GroupedRecords(self.spec, lengths, targets, held_out, self.config.group)
        rows = self._rows[held_out]
        assert isinstance(rows, GroupedRecords)
        return rows

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of the texts of each pair."""
        lengths: Lengths = np.sum([np.minimum(each, self.spec.length) for each in self._full_lengths(records)], axis=0)
        return lengths

    def targets(self, records: Records) -> Lengths:
        """Int[R], one for each pair."""
        return np.ones(len(records), dtype=np.int64)

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], whether a text of each pair is longer than the context."""
        is_shortened: Chosen = np.any([each > self.spec.length for each in self._full_lengths(records)], axis=0)
        return is_shortened

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All groups of an epoch."""
        if self.spec.corpus.train is None:
            return iter(())
        rows = self.rows(held_out=False)
        return stream(self, number * rows.groups, rows.groups, rows.rows)

    def batch(self, examples: ExampleIndices) -> Batch:
        """A row for each group; the target of pair n is candidate n."""
        records, rows = self.spec.records(examples.held_out), self.rows(examples.held_out)
        groups = rows.records(examples.places)
        texts = [
            [self.frame.single_row(records.columns[name][record]) for record in group.tolist() for name in self.names]
            for group in groups
        ]
        ids = [[id for text in group for id in text] for group in texts]
        targets = padded([np.arange(len(group)) for group in groups], IGNORED, rows.largest)
        tokens = padded(ids, 0)
        layout = Layout.packed([[len(text) for text in group] for group in texts], tokens.shape[1])
        weights = torch.from_numpy((targets != IGNORED).astype(np.float32))
        # Numbered within its group, where texts are compared, so that numbers do not depend on other rows.
        numbers = [[group.index(text) for text in group] for group in texts]
        equal = torch.from_numpy(padded(numbers, IGNORED, rows.largest * len(self.names)))
        return Batch(torch.from_numpy(tokens), layout, torch.from_numpy(targets), weights, texts=equal)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> Contrast:
        """InfoNCE, for a model with an embedding of each text."""
        head = model.config.head
        if not isinstance(head, EmbeddingHeadConfig) or len(model.config.stacks()) != 1:
            raise HeddleError("the task 'contrastive' needs an encoder or a decoder with an embedding head that pools")
        if label_smoothing or z_loss:
            raise HeddleError("label_smoothing and z_loss have no effect on the task 'contrastive': leave them out")
        check_isolation(model, "pack", self.spec.length)
        return Contrast(model, self.config.temperature, len(self.names))

    def remarks(self) -> list[str]:
        """How pairs are grouped, and how many texts are longer than the context."""
        share = float(
            np.mean([each > self.spec.length for each in self._full_lengths(self.spec.records(held_out=False))])
        )
        lines = self.rows(held_out=False).remarks()
        if self.spec.corpus.validation is not None and (too_few := self.rows(held_out=True).too_few):
            lines.append(too_few)
        prompts = getattr(self.spec.model.head, "prompts", {})
        if prompts:
            lines.append(
                f"the model's prompts ({', '.join(prompts)}) are not added to texts: write one into the records to train with it"
            )
        if share >= REPORTED_SHARE:
            lines.append(
                f"{share:.1%} of the training texts are longer than context = {self.spec.length}: they lose their ends"
            )
        return lines

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """The number of a candidate."""
        assert not isinstance(target, list)
        return f"pair {int(target)}"

    @torch.no_grad()
    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """A few held-out texts, each with the nearest pair of its group, and [its own pair] if that differs."""
        group = np.random.default_rng(seed).choice(self.rows(held_out=True).groups, 1)
        (records,) = self.rows(held_out=True).records(group)
        batch, training = self.batch(ExampleIndices(group, held_out=True)).to(model.device), model.training
        model.eval()
        nearest = self.objective(model).nearest(batch)[0].tolist()
        model.train(training)
        lines, columns = [], self.spec.records(held_out=True).columns
        for place, record in enumerate(records[:SAMPLE_SIZE].tolist()):
            chosen, name = (
                nearest[place] % batch.targets.shape[1],
                self.names[1 + nearest[place] // batch.targets.shape[1]],
            )
            texts = columns["text"][record], columns[name][int(records[chosen])], columns["pair"][record]
            printed = [" ".join(tokenizer.decode(ids[:tokens].tolist()).split()) for ids in texts]
            correction = "" if nearest[place] == place else f" [{printed[2]}]"
            lines.append(f"{printed[0]} → {printed[1]}{correction}")
        return "\n".join(lines)

    def _full_lengths(self, records: Records) -> list[Lengths]:
        """Int[R] for each text of a pair, its number of ids before cropping."""
        return [records.columns[name].lengths + self.frame.marks(1) for name in self.names]
