"""Embeddings of texts, learned from pairs that belong together: a text is nearest to its own pair, among the pairs of others.

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
from heddle.tasks.framing import frame_of
from heddle.tasks.grouped_rows import GroupedRecords
from heddle.tasks.isolation import check_isolation
from heddle.tasks.objective import CrossEntropy, Loss
from heddle.tasks.records import Chosen, Lengths, RecordTask, padded
from heddle.tasks.task import DataSpec, ExampleIndices, Target, stream
from heddle.text.tokenizer import Tokenizer

TEXTS = ("text", "pair", "negative")
SHOWN = 3  # texts in a sample
TOLD = 0.005  # share of texts that lose their end from which on a user is told


class Contrast(CrossEntropy):
    """InfoNCE in both directions, each group of pairs by itself.

    Of a group of N texts x, their pairs y and, if there are any, their hard negatives z, with s(a, b) = cos(a, b) / temperature:
    the loss of text n is the mean of -log exp s(x_n, y_n) / Σ_m (exp s(x_n, y_m) + exp s(x_n, z_m)) and
    -log exp s(x_n, y_n) / Σ_m exp s(x_m, y_n).

    Equal texts are no negatives of each other: the sums leave out what equals the text itself, and every text that is a right
    answer because it is the other side of an equal text in the group. So a question's candidates are the answers that are wrong.

    Args:
        model: a model whose head is an embedding of each text.
        temperature: what cosines are divided by.
        texts: 2, or 3 with hard negatives.
    """

    def __init__(self, model: Transformer, temperature: float, texts: int) -> None:
        super().__init__(model)
        self.temperature, self.texts = temperature, texts

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """How often a text's own pair is the nearest of all candidates, and the sum of 1 / its rank; ties count against it."""
        scores, _ = self._scores(features, batch)
        right = scores.gather(-1, batch.targets.clamp(min=0)[..., None])
        rank = (scores >= right).sum(-1)
        found = {"accuracy": rank == 1, "mean_reciprocal_rank": 1 / rank.clamp(min=1)}
        return {name: (each * batch.weights).sum(1) for name, each in found.items()}

    def nearest(self, batch: Batch) -> Tensor:
        """Int[B N], the number of the candidate that is nearest to each text: of a pair, or N and more of a hard negative."""
        features, _ = self._features(batch)
        return self._scores(features, batch)[0].argmax(-1)

    def _features(self, batch: Batch) -> tuple[Tensor, tuple[Routing, ...]]:
        """Float[B N K E], the vectors of the K texts of each pair; an absent pair's are 0."""
        hidden, routings = self.model(batch.tokens, batch.layout, types=batch.types)
        assert self.model.head is not None
        vectors = self.model.head.features(*unpack_rows(hidden, batch.layout))
        found = vectors.unflatten(0, (len(batch.tokens), -1))
        absent = batch.targets.shape[1] * self.texts - found.shape[1]
        return F.pad(found, (0, 0, 0, absent)).unflatten(1, (-1, self.texts)), routings

    def _outputs(self, features: Tensor) -> Tensor:
        return features

    def _scores(self, features: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Float[B N C] from texts to the candidates, pairs first, and Float[B N N] from pairs to texts; -inf for absent ones, and
        for those that are as right as the text's own pair."""
        x = F.normalize(features.to(wide_dtype(features.dtype)), dim=-1)
        text, pair = x[..., 0, :], x[..., 1, :]
        candidates = torch.cat([x[..., number, :] for number in range(1, self.texts)], dim=-2)
        there = batch.targets != IGNORED
        absent = ~torch.cat([there] * (self.texts - 1), dim=-1)[..., None, :]
        forth, back = text @ candidates.mT / self.temperature, pair @ text.mT / self.temperature
        outside, without = absent, ~there[..., None, :]
        if batch.texts is not None:
            of_text, of_pair = (batch.texts[:, number :: self.texts] for number in range(2))
            of_candidates = torch.cat([batch.texts[:, number :: self.texts] for number in range(1, self.texts)], dim=-1)
            own = batch.targets.clamp(min=0)
            outside = outside | also_right(of_text, of_pair, of_candidates, own)
            without = without | also_right(of_pair, of_text, of_text, own)
        return forth.masked_fill(outside, -torch.inf), back.masked_fill(without, -torch.inf)

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


def also_right(
    texts: Int[Tensor, "B N"], others: Int[Tensor, "B N"], candidates: Int[Tensor, "B C"], own: Int[Tensor, "B N"]
) -> Bool[Tensor, "B N C"]:
    """Which candidates are no wrong answers to a text, apart from its own: those that equal the text, or the other side of a text
    that equals it. All are numbers of texts.

    Args:
        texts: the texts.
        others: the other side of each.
        candidates: what the texts are compared with.
        own: which candidate is each text's own.
    """
    equal = (texts[:, :, None] == texts[:, None]).float()
    answers = (others[:, :, None] == candidates[:, None]).float()
    right = (equal @ answers > 0) | (texts[:, :, None] == candidates[:, None])
    return right.scatter(-1, own[..., None], False)


class ContrastiveTask(RecordTask):
    """Pairs of a `text` and its `pair`, perhaps with a `negative`, which is near the text but not its pair.

    A group of pairs is a row of a batch, with each text as a segment, and a text is compared with the others of its group only.
    So the loss is a sum over rows, however a batch is cut into micro-batches or among ranks.

    Raises:
        HeddleError: there are too few pairs for a group, or the context has no room for a text.
    """

    def __init__(self, config: ContrastiveConfig, reading: DataSpec) -> None:
        self.frame = frame_of(reading, 1)
        parts = [part for part in (reading.corpus.train, reading.corpus.validation) if isinstance(part, Records)]
        self.names = TEXTS if any("negative" in part.columns for part in parts) else TEXTS[:2]
        for part in parts:
            if len(part) < 2:
                raise HeddleError(
                    f"a part has {len(part)} pair: pairs are told unpack_rows, so there must be at least 2 in each"
                )
        super().__init__(config, reading)

    def rows(self, held_out: bool) -> GroupedRecords:
        """The groups of the pairs to score, or of those to train on."""
        if held_out not in self._rows:
            records = self.reading.records(held_out)
            lengths, targets = self.lengths(records), self.targets(records)
            self._rows[held_out] = GroupedRecords(self.reading, lengths, targets, held_out, self.config.group)
        found = self._rows[held_out]
        assert isinstance(found, GroupedRecords)
        return found

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of the texts of each pair."""
        found: Lengths = np.sum([np.minimum(each, self.reading.length) for each in self._needed(records)], axis=0)
        return found

    def targets(self, records: Records) -> Lengths:
        """Int[R], one for each pair."""
        return np.ones(len(records), dtype=np.int64)

    def shortened(self, records: Records) -> Chosen:
        """Bool[R], of which pairs a text is longer than the context."""
        found: Chosen = np.any([each > self.reading.length for each in self._needed(records)], axis=0)
        return found

    def epoch(self, number: int) -> Iterator[ExampleIndices]:
        """All groups of an epoch."""
        if self.reading.corpus.train is None:
            return iter(())
        rows = self.rows(held_out=False)
        return stream(self, number * rows.groups, rows.groups, rows.rows)

    def batch(self, examples: ExampleIndices) -> Batch:
        """A row for each group; the target of pair n is candidate n."""
        records, rows = self.reading.records(examples.held_out), self.rows(examples.held_out)
        found = rows.records(examples.places)
        texts = [
            [self.frame.alone(records.columns[name][record]) for record in group.tolist() for name in self.names]
            for group in found
        ]
        ids = [[id for text in group for id in text] for group in texts]
        targets = padded([np.arange(len(group)) for group in found], IGNORED, rows.largest)
        tokens = padded(ids, 0)
        layout = Layout.packed([[len(text) for text in group] for group in texts], tokens.shape[1])
        weights = torch.from_numpy((targets != IGNORED).astype(np.float32))
        # Within its group, where texts are compared: so a number does not depend on the rows beside it.
        named = [[group.index(text) for text in group] for group in texts]
        equal = torch.from_numpy(padded(named, IGNORED, rows.largest * len(self.names)))
        return Batch(torch.from_numpy(tokens), layout, torch.from_numpy(targets), weights, texts=equal)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> Contrast:
        """The contrast of a model with an embedding of each text."""
        head = model.config.head
        if not isinstance(head, EmbeddingHeadConfig) or len(model.config.stacks()) != 1:
            raise HeddleError("the task 'contrastive' needs an encoder or a decoder with an embedding head that pools")
        if label_smoothing or z_loss:
            raise HeddleError("label_smoothing and z_loss have no effect on the task 'contrastive': leave them out")
        check_isolation(model, "pack", self.reading.length)
        return Contrast(model, self.config.temperature, len(self.names))

    def remarks(self) -> list[str]:
        """How pairs are grouped, and how many texts are longer than the context."""
        share = float(
            np.mean([each > self.reading.length for each in self._needed(self.reading.records(held_out=False))])
        )
        said = self.rows(held_out=False).remarks()
        if self.reading.corpus.validation is not None and (few := self.rows(held_out=True).too_few):
            said.append(few)
        prompts = getattr(self.reading.model.head, "prompts", {})
        if prompts:
            said.append(
                f"the model's prompts ({', '.join(prompts)}) come before no text: write one into the records to learn with it"
            )
        if share >= TOLD:
            said.append(
                f"{share:.1%} of the training texts are longer than context = {self.reading.length}: they lose their ends"
            )
        return said

    def name_of(self, target: Target, tokenizer: Tokenizer) -> str:
        """The number of a candidate."""
        assert not isinstance(target, list)
        return f"pair {int(target)}"

    @torch.no_grad()
    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """A few held-out texts, each with the nearest pair of its group, and [the right one] where that is another."""
        group = np.random.default_rng(seed).choice(self.rows(held_out=True).groups, 1)
        (records,) = self.rows(held_out=True).records(group)
        batch, training = self.batch(ExampleIndices(group, held_out=True)).to(model.device), model.training
        model.eval()
        nearest = self.objective(model).nearest(batch)[0].tolist()
        model.train(training)
        lines, columns = [], self.reading.records(held_out=True).columns
        for place, record in enumerate(records[:SHOWN].tolist()):
            chosen, name = (
                nearest[place] % batch.targets.shape[1],
                self.names[1 + nearest[place] // batch.targets.shape[1]],
            )
            texts = columns["text"][record], columns[name][int(records[chosen])], columns["pair"][record]
            said = [" ".join(tokenizer.decode(ids[:tokens].tolist()).split()) for ids in texts]
            right = "" if nearest[place] == place else f" [{said[2]}]"
            lines.append(f"{said[0]} → {said[1]}{right}")
        return "\n".join(lines)

    def _needed(self, records: Records) -> list[Lengths]:
        """Int[R] for each text of a pair, the ids that it would have if nothing were cut off."""
        return [records.columns[name].lengths + self.frame.marks(1) for name in self.names]
