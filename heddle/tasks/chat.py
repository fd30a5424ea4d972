"""Conversations: predict the assistant's messages and their ends from all preceding tokens (Ouyang et al. 2022, 3.5)."""

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
from heddle.tasks.extent import Extent
from heddle.tasks.isolation import check_isolation
from heddle.tasks.metrics import CountingCrossEntropy
from heddle.tasks.records import Lengths, RecordTask, padded_layout
from heddle.tasks.sequences import PaddedTexts, Slices, greedy_answer, in_rows
from heddle.tasks.task import DataSpec, ExampleIndices
from heddle.text.chat_template import ANSWERS, ChatTemplate
from heddle.text.tokenizer import Tokenizer

SAMPLE_SIZE = 2  # conversations in a sample


class ChatTask(RecordTask):
    """Conversations, in which a decoder predicts the assistant's messages, each with the special token that ends it.

    The tokens before an answer are exactly the prompt of generation. A conversation that is longer than the context ends with the
    last answer that fits, so no message is cut; one whose first answer does not fit has no target. With the layout `pack`, complete
    conversations share a row as segments, which do not attend to each other. `remarks` lists what is cut.

    Raises:
        HeddleError: the model has another chat template, or the template does not mark the assistant's tokens.
    """

    def __init__(self, config: ChatConfig, spec: DataSpec) -> None:
        if spec.tokenizer is None:
            raise HeddleError("the task 'chat' needs the tokenizer of the texts, for its special tokens")
        chat = config.chat(spec.model.chat)
        if spec.model.chat not in (None, chat):
            raise HeddleError("the task's chat template is not the model's: leave out template, tokens and date")
        # Rendered in this process: there may be millions of conversations, each rendered several times. The user chose the
        # template, and Ctrl-C ends one that loops.
        self.template = ChatTemplate.of(chat, spec.tokenizer)
        self.template.check()
        self.end = self.template.ends[0]
        self._length_cache: dict[int, Lengths] = {}
        super().__init__(config, spec)

    def lengths(self, records: Records) -> Lengths:
        """Int[R], tokens of each conversation's row: all before the last target, which is predicted but not read."""
        return np.maximum(self._fitting_lengths(records) - 1, 1)

    def targets(self, records: Records) -> Lengths:
        """Int[R], number of predicted ids of each conversation."""
        column = records.columns[LABEL]
        fitting, starts = self._fitting_lengths(records), column.offsets[:-1]
        before = np.concatenate([[0], np.cumsum(column.values > 0)])
        counts: Lengths = before[starts + fitting] - before[np.minimum(starts + 1, starts + fitting)]
        return counts

    def all_targets(self, records: Records) -> Lengths:
        """Int[R], number of the assistant's ids in each conversation, cut off or not."""
        column = records.columns[LABEL]
        before = np.concatenate([[0], np.cumsum(column.values != 0)])
        counts: Lengths = before[column.offsets[1:]] - before[column.offsets[:-1]]
        return counts

    def extent(self) -> Extent:
        """How many ids of held-out answers are scored; ids of answers that the tokenizer joins with their prompts count as
        unscored, not as cut off."""
        extent, values = super().extent(), self.spec.records(held_out=True).columns[LABEL].values
        joined = int((values < 0).sum())
        return replace(extent, cut=extent.cut - joined, unscored=joined)

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows of the conversations, padded at their ends."""
        records = self.spec.records(examples.held_out)
        row_records = self.rows(examples.held_out).records(examples.places)
        numbers, counts = np.concatenate(row_records), np.array([len(each) for each in row_records])
        ids, label = records.columns[MESSAGES], records.columns[LABEL]
        fitting, starts = self._fitting_lengths(records)[numbers], ids.offsets[numbers]
        sizes = np.maximum(fitting - 1, 1)
        next_starts = np.minimum(starts + 1, len(ids.values) - sizes)
        tokens, following, answers = (
            PaddedTexts.of(Slices(values, first, sizes)).ids
            for values, first in ((ids.values, starts), (ids.values, next_starts), (label.values, next_starts))
        )
        is_target = (answers > 0) & np.repeat(fitting > 0, sizes)
        # The sizes of the conversations in each row.
        row_sizes = [each.tolist() for each in np.split(sizes, np.cumsum(counts)[:-1])]
        filled, packed = [sum(each) for each in row_sizes], self.spec.layout == "pack"
        width = self.spec.length if packed else max(1, *filled)
        targets = in_rows(np.where(is_target, following, IGNORED), filled, width, IGNORED)
        return Batch(
            tokens=torch.from_numpy(in_rows(tokens, filled, width, self.end)),
            layout=Layout.packed(row_sizes, width) if packed else padded_layout(filled, width),
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
        """How many conversations are cut or left out, and how many answers are not targets."""
        records, lines = self.spec.records(held_out=False), self.rows(held_out=False).remarks()
        column, fitting = records.columns[LABEL], self._fitting_lengths(records)
        last = np.zeros(len(records), dtype=np.int64)  # where the last answer ends
        record, stops, numbers = _answers(records)
        np.maximum.at(last, record[numbers > 0], stops[numbers > 0])
        cut, total = int(((fitting < last) & (fitting > 0)).sum()), len(records)
        context = self.spec.length
        if cut:
            lines.append(
                f"{cut:,} of {total:,} conversations ({cut / total:.1%}) are longer than context = {context}: they end with "
                "their last answer that fits"
            )
        if unfitting := int(((fitting == 0) & (last > 0)).sum()):
            lines.append(
                f"{unfitting:,} of {total:,} conversations ({unfitting / total:.1%}) are left out: their first answer does not fit "
                f"into context = {context}"
            )
        if unanswered := int((last == 0).sum()):
            lines.append(f"{unanswered:,} of {total:,} conversations have no answer to learn")
        if joined := int((numbers < 0).sum()):
            lines.append(
                f"{joined:,} of {len(numbers):,} answers are not targets: the tokenizer joins their beginning with the prompt"
            )
        answer_tokens = int((column.values > 0).sum())
        learned = int(self.targets(records).sum())
        return [*lines, f"{learned:,} tokens of answers to learn, {learned / max(answer_tokens, 1):.1%} of all"]

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Held-out conversations up to their first answer: the last message, the model's greedy answer and [the reference]."""
        records = self.spec.records(held_out=True)
        scorable = np.flatnonzero(self.targets(records))
        sampled = np.random.default_rng(seed).choice(scorable, min(SAMPLE_SIZE, len(scorable)), replace=False)
        lines = []
        for record in sorted(sampled.tolist()):
            messages = messages_of(records, record)
            first = next(number for number, message in enumerate(messages) if message["role"] == ANSWERS)
            prompt = self.template.render(messages[:first], add_generation_prompt=True)
            room = min(tokens, self.spec.length - len(prompt))
            answer = tokenizer.decode(greedy_answer(model, prompt, None, self.end, room)) if room > 0 else ""
            question = messages[first - 1]["content"] if first else ""
            lines.append(f"{question} → {answer} [{messages[first]['content']}]")
        return "\n".join(lines)

    def _fitting_lengths(self, records: Records) -> Lengths:
        """Int[R], ids of each conversation up to the end of the last answer that fits; 0 if none does."""
        if id(records) not in self._length_cache:
            fitting = np.zeros(len(records), dtype=np.int64)
            record, stops, numbers = _answers(records)
            fits = (numbers > 0) & (stops <= self.spec.length + 1)
            np.maximum.at(fitting, record[fits], stops[fits])
            self._length_cache[id(records)] = fitting
        return self._length_cache[id(records)]


def _answers(records: Records) -> tuple[Lengths, Lengths, Lengths]:
    """For each answer: its record, where it ends there, and its number, which is negative if it is not a target."""
    column = records.columns[LABEL]
    values = np.asarray(column.values)
    of_record = np.repeat(np.arange(len(records)), column.lengths)
    ends = np.ones(len(values), dtype=bool)
    ends[:-1] = (values[1:] != values[:-1]) | (of_record[1:] != of_record[:-1])
    places = np.flatnonzero(ends & (values != 0))
    return of_record[places], places + 1 - column.offsets[of_record[places]], values[places].astype(np.int64)


def messages_of(records: Records, record: int) -> list[Mapping[str, str]]:
    """The original messages of a conversation."""
    pairs = json.loads(records.columns[WRITTEN][record].tobytes())
    return [{"role": role, "content": content} for role, content in pairs]
