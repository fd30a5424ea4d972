"""How a step is split so that it fits a device: into micro-batches, with checkpointed activations."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch

from heddle.account.machine import available_memory
from heddle.config.model import TransformerConfig
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.data.record_store import Store
from heddle.model.precision import DTYPES
from heddle.runs.need import ALONE, Need, Share, check_memory, check_rows, states
from heddle.runs.resolve import Resolved
from heddle.tasks.table import make_task
from heddle.tasks.task import MULTIPLE, DataSpec, Task
from heddle.text.tokenizer import Tokenizer
from heddle.train.rates import faster_precision, measurable
from heddle.train.sizes import batch_size, check_tokens, has_rows, padded_tokens

ROOM = 0.9  # share of the free memory that a choice may take; an allocator loses some between tensors


@dataclass(frozen=True)
class Step:
    """What a step reads, and the ways to compute it.

    Attributes:
        resolved: the settings.
        spec: the data, with the smallest model.
        batch: rows of a step, each as long as the context.
        share: how devices share it.
        tasks: what is learned, by the number of micro-batches; made when first needed.
        needs: what micro-batches look like, by their number.
    """

    resolved: Resolved
    spec: DataSpec
    batch: int
    share: Share
    tasks: dict[int, Task] = field(default_factory=dict)
    needs: dict[int, Need] = field(default_factory=dict)

    @classmethod
    def of(cls, resolved: Resolved, store: Store, tokenizer: Tokenizer, cards: int) -> "Step":
        """That of the settings.

        Raises:
            HeddleError: texts are too short for it, or its rows do not fit into the memory in any way.
        """
        config, device = resolved.config, resolved.device.type
        share = Share.of(config.parallel, cards) if cards > 1 else ALONE
        smallest = resolved.model(store.vocab_size, classes=store.corpus.classes)
        spec = DataSpec.of(config.data, config.train, store.corpus, smallest, tokenizer)
        batch = batch_size(config, smallest.context, device, cards)
        padded = padded_tokens(config, batch * smallest.context)
        step = cls(resolved, replace(spec, rows=batch, batch_tokens=padded), batch, share)
        small = step.task(config.train.accumulate)
        check_tokens(config.train, small)
        last = step.ways[-1]
        check_rows(step.task(last.accumulate), step.measurable(smallest, last).train, device, share)
        return step

    @cached_property
    def ways(self) -> list[TrainConfig]:
        """The ways to compute it, in the order in which they are tried."""
        return splits(self.resolved.config, max(1, self.batch // self.share.readers), self.resolved.device.type)

    def task(self, accumulate: int) -> Task:
        """What is learned, in steps of so many micro-batches."""
        if accumulate not in self.tasks:
            spec = replace(self.spec, multiple=MULTIPLE * accumulate)
            self.tasks[accumulate] = make_task(self.resolved.config.task, spec)
        return self.tasks[accumulate]

    def need(self, accumulate: int) -> Need:
        """What its micro-batches look like."""
        if accumulate not in self.needs:
            train = self.resolved.config.train.model_copy(update={"accumulate": accumulate})
            self.needs[accumulate] = Need.of(self.task(accumulate), train, self.share)
        return self.needs[accumulate]

    def own(self, model: TransformerConfig, train: TrainConfig) -> DataSpec:
        """What one device reads of it."""
        rows, multiple = max(1, self.batch // self.share.readers), MULTIPLE * train.accumulate
        return replace(self.spec, model=model, rows=rows, multiple=multiple, batch_tokens=None)

    def measurable(self, model: TransformerConfig, train: TrainConfig) -> RunConfig:
        """The settings to measure a model with."""
        return measurable(self.resolved.config.model_copy(update={"train": train}), model)

    def bytes(self, model: TransformerConfig, precision: str, train: TrainConfig) -> int:
        """What it takes of the memory in one of the ways."""
        settings = self.measurable(model, train).train
        return self.need(train.accumulate).bytes(model, precision, settings, self.resolved.device.type)

    def fits_alone(self, model: TransformerConfig, precision: str, train: TrainConfig) -> bool:
        """Whether one device holds the whole model with its rows, so that a step can be measured."""
        if self.share.parts == 1:
            return True
        settings, device = self.measurable(model, train).train, self.resolved.device.type
        alone = replace(self.need(train.accumulate), share=ALONE)
        return alone.bytes(model, precision, settings, device) <= ROOM * available_memory(device)

    def fitted(self, model: TransformerConfig, precision: str) -> TrainConfig:
        """The way to compute it with this model."""
        there = available_memory(self.resolved.device.type)
        return first_fitting(self.ways, lambda train: self.bytes(model, precision, train), there)

    def check(self, model: TransformerConfig, precisions: Iterable[str], needs: Iterable[int]) -> None:
        """Refuse a model of which a step in each precision `needs` more bytes than are free."""
        train = self.measurable(model, self.resolved.config.train).train
        check_memory(needs, states(model, precisions, train, self.share), self.resolved.device.type, len(self.ways) > 1)

    def precision(self) -> str:
        """The requested precision, or the one that trains faster."""
        train, device, model = self.resolved.config.train, self.resolved.device.type, self.spec.model
        if train.precision != "auto":
            return train.precision
        # Measuring needs this memory too.
        self.check(model, DTYPES, (self.bytes(model, name, self.ways[-1]) for name in DTYPES))
        rows = max(1, self.batch // train.accumulate)
        return faster_precision(replace(self.own(model, train), rows=rows), device, self.measurable(model, train))


def splits(config: RunConfig, rows: int, device: str) -> list[TrainConfig]:
    """The ways to compute a step, in the order in which they are tried: on CUDA, more and more micro-batches, where the settings do
    not have any; then the same with checkpointed activations, which cost more time.

    Args:
        config: the settings.
        rows: rows of a step on one device.
        device: elsewhere than on CUDA, the only way is that of the settings.
    """
    train = config.train
    if torch.device(device).type != "cuda":
        return [train]
    most = rows if has_rows(config) else max(1, rows // MULTIPLE)
    open_ = (
        [parts for parts in range(1, most + 1) if rows % parts == 0] if train.accumulate == 1 else [train.accumulate]
    )
    return [
        train.model_copy(update={"accumulate": parts, "checkpoint_activations": checkpointed})
        for checkpointed in (False, True)
        if checkpointed >= train.checkpoint_activations
        for parts in open_
    ]


def first_fitting(ways: Sequence[TrainConfig], needed: Callable[[TrainConfig], int], there: int) -> TrainConfig:
    """The first way that leaves room on the device, else the one that needs least. More micro-batches never need more."""
    if len(ways) == 1 or needed(ways[0]) <= ROOM * there:
        return ways[0]
    for _, each in groupby(ways, key=lambda train: train.checkpoint_activations):
        group = list(each)
        if needed(group[-1]) <= ROOM * there:
            return group[bisect_left(group, True, key=lambda train: needed(train) <= ROOM * there)]
    return ways[-1]


def describe_split(settings: TrainConfig, train: TrainConfig, needed: int, there: int) -> str:
    """What was chosen so that a step fits, and why, in a line; nothing if nothing was."""
    changes = [
        f"{name}={str(getattr(train, name)).lower()}"
        for name in ("accumulate", "checkpoint_activations")
        if getattr(train, name) != getattr(settings, name)
    ]
    reason = f"a step would need {needed / 2**30:.1f} GiB of the {there / 2**30:.1f} GiB that are free"
    return f"{' '.join(changes)}, since {reason} otherwise" if changes else ""
