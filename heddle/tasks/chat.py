"""Conversations: predict the assistant's messages and their ends, from all that comes before (Ouyang et al. 2022, 3.5)."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import exp

import numpy as np
import torch

from heddle.config.tasks import ChatConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.records import WRITTEN, Records
from heddle.data.sources.examples import LABEL, MESSAGES
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout
from heddle.tasks.accuracy import CountingCrossEntropy
from heddle.tasks.extent import Extent
from heddle.tasks.isolation import check_isolation
from heddle.tasks.records import Lengths, RecordTask, padded_layout
from heddle.tasks.sequences import PaddedTexts, Slices, answered, in_rows
from heddle.tasks.task import DataSpec, ExampleIndices
from heddle.text.chat_template import ANSWERS, ChatTemplate
from heddle.text.tokenizer import Tokenizer

SHOWN = 2  # conversations in a sample


class ChatTask(RecordTask):
    """Conversations, of which a decoder alone predicts the assistant's messages, each with the special token that ends it.

    What comes before an answer is just what generation is prompted with. A conversation that is longer than the context ends with
    the last answer that fits, so nothing is cut inside a message; one whose first answer does not fit has no target. With the
    layout `pack`, whole conversations share a row as segments, which do not see each other. `remarks` says what is cut.

    Raises:
        HeddleError: the model has another chat template, or the template does not show which tokens are the assistant's.
    """

    def __init__(self, config: ChatConfig, spec: DataSpec) -> None:
        if spec.tokenizer is None:
            raise HeddleError("the task 'chat' needs the tokenizer of the texts, for its special tokens")
        chat = config.chat(spec.model.chat)
        if spec.model.chat not in (None, chat):
            raise HeddleError("the task's chat template is not the model's: leave out template, tokens and date")
        # In this process: each of maybe millions of conversations is rendered several times, by a template that the user has
        # chosen to train with, and Ctrl-C ends one that does not end.
        self.template = ChatTemplate.of(chat, spec.tokenizer)
        self.template.check()
        self.end = self.template.ends[0]
        self._fitting: dict[int, Lengths] = {}
        super().__init__(config, spec)

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each conversation's row: all up to the last target, which is only predicted."""
        return np.maximum(self._kept(records) - 1, 1)

    def targets(self, records: Records) -> Lengths:
        """Int[R], how many ids of each conversation are predicted."""
        column = records.columns[LABEL]
        kept, starts = self._kept(records), column.offsets[:-1]
        before = np.concatenate([[0], np.cumsum(column.values > 0)])
        found: Lengths = before[starts + kept] - before[np.minimum(starts + 1, starts + kept)]
        return found

    def asked(self, records: Records) -> Lengths:
        """Int[R], how many ids of each conversation are the assistant's."""
        column = records.columns[LABEL]
        before = np.concatenate([[0], np.cumsum(column.values != 0)])
        found: Lengths = before[column.offsets[1:]] - before[column.offsets[:-1]]
        return found

    def extent(self) -> Extent:
        """How many of the ids of held-out answers are scored; those that are joined with their prompts are not cut off."""
        found, values = super().extent(), self.spec.records(held_out=True).columns[LABEL].values
        joined = int((values < 0).sum())
        return replace(found, cut=found.cut - joined, unscored=joined)

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows of the conversations, padded at their ends."""
        records = self.spec.records(examples.held_out)
        found = self.rows(examples.held_out).records(examples.places)
        numbers, counts = np.concatenate(found), np.array([len(each) for each in found])
        ids, label = records.columns[MESSAGES], records.columns[LABEL]
        kept, starts = self._kept(records)[numbers], ids.offsets[numbers]
        sizes = np.maximum(kept - 1, 1)
        after = np.minimum(starts + 1, len(ids.values) - sizes)
        read, follow, answer = (
            PaddedTexts.of(Slices(values, first, sizes)).ids
            for values, first in ((ids.values, starts), (ids.values, after), (label.values, after))
        )
        counted = (answer > 0) & np.repeat(kept > 0, sizes)
        shares = [each.tolist() for each in np.split(sizes, np.cumsum(counts)[:-1])]  # of the conversations in each row
        filled, packed = [sum(each) for each in shares], self.spec.layout == "pack"
        width = self.spec.length if packed else max(1, *filled)
        targets = in_rows(np.where(counted, follow, IGNORED), filled, width, IGNORED)
        return Batch(
            tokens=torch.from_numpy(in_rows(read, filled, width, self.end)),
            layout=Layout.packed(shares, width) if packed else padded_layout(filled, width),
            targets=torch.from_numpy(targets),
            weights=torch.from_numpy((targets != IGNORED).astype(np.float32)),
        )

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CountingCrossEntropy:
        """-log p of the targets, for a causal decoder."""
        model.check_predicts_next()
        if self.spec.layout == "pack":
            check_isolation(model, "pack", self.spec.length)
        return CountingCrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), and the share of targets with the highest score."""
        return {"perplexity": exp(min(means["loss"], 700.0)), "accuracy": means["accuracy"]}

    def remarks(self) -> list[str]:
        """How many conversations are cut, are no target at all, or have answers that are none."""
        records, said = self.spec.records(held_out=False), self.rows(held_out=False).remarks()
        column, kept = records.columns[LABEL], self._kept(records)
        last = np.zeros(len(records), dtype=np.int64)  # where the last answer ends
        record, stops, numbers = _answers(records)
        np.maximum.at(last, record[numbers > 0], stops[numbers > 0])
        cut, whole = int(((kept < last) & (kept > 0)).sum()), len(records)
        context = self.spec.length
        if cut:
            said.append(
                f"{cut:,} of {whole:,} conversations ({cut / whole:.1%}) are longer than context = {context}: they end with "
                "their last answer that fits"
            )
        if lost := int(((kept == 0) & (last > 0)).sum()):
            said.append(
                f"{lost:,} of {whole:,} conversations ({lost / whole:.1%}) are left out: their first answer does not fit into "
                f"context = {context}"
            )
        if silent := int((last == 0).sum()):
            said.append(f"{silent:,} of {whole:,} conversations have no answer to learn")
        if joined := int((numbers < 0).sum()):
            said.append(
                f"{joined:,} of {len(numbers):,} answers are no target: the tokenizer joins their beginning with what comes before"
            )
        there = int((column.values > 0).sum())
        learned = int(self.targets(records).sum())
        return [*said, f"{learned:,} tokens of answers to learn, {learned / max(there, 1):.1%} of all"]

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Held-out conversations up to their first answer, with the most probable one, token by token, and [the right one]."""
        records = self.spec.records(held_out=True)
        there = np.flatnonzero(self.targets(records))
        chosen = np.random.default_rng(seed).choice(there, min(SHOWN, len(there)), replace=False)
        lines = []
        for record in sorted(chosen.tolist()):
            messages = messages_of(records, record)
            first = next(number for number, message in enumerate(messages) if message["role"] == ANSWERS)
            prompt = self.template.render(messages[:first], add_generation_prompt=True)
            room = min(tokens, self.spec.length - len(prompt))
            answer = tokenizer.decode(answered(model, prompt, None, self.end, room)) if room > 0 else ""
            asked = messages[first - 1]["content"] if first else ""
            lines.append(f"{asked} → {answer} [{messages[first]['content']}]")
        return "\n".join(lines)

    def _kept(self, records: Records) -> Lengths:
        """Int[R], how many ids of each conversation are read or predicted: up to the last answer that fits, 0 if none does."""
        if id(records) not in self._fitting:
            kept = np.zeros(len(records), dtype=np.int64)
            record, stops, numbers = _answers(records)
            fits = (numbers > 0) & (stops <= self.spec.length + 1)
            np.maximum.at(kept, record[fits], stops[fits])
            self._fitting[id(records)] = kept
        return self._fitting[id(records)]


def _answers(records: Records) -> tuple[Lengths, Lengths, Lengths]:
    """Of each answer: its record, where it ends there, and its number, which is negative if it is no target."""
    column = records.columns[LABEL]
    values = np.asarray(column.values)
    of_record = np.repeat(np.arange(len(records)), column.lengths)
    ends = np.ones(len(values), dtype=bool)
    ends[:-1] = (values[1:] != values[:-1]) | (of_record[1:] != of_record[:-1])
    places = np.flatnonzero(ends & (values != 0))
    return of_record[places], places + 1 - column.offsets[of_record[places]], values[places].astype(np.int64)


def messages_of(records: Records, record: int) -> list[Mapping[str, str]]:
    """The messages of a conversation, as they were written."""
    pairs = json.loads(records.columns[WRITTEN][record].tobytes())
    return [{"role": role, "content": content} for role, content in pairs]
