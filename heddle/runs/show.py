"""What a step of a run reads, to look at: tokens, targets, segments, and which tokens each token may attend to."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.config.model import TransformerConfig
from heddle.data.batch import IGNORED, Batch
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.stack import Stack
from heddle.nn.layout import PADDING, Layout
from heddle.nn.mask import Causal, Mask, Rule
from heddle.nn.scope import Pattern
from heddle.runs.session import read_run
from heddle.tasks.task import Target, Task, tokens_read
from heddle.text.tokenizer import Tokenizer


@displayed()
@dataclass(frozen=True)
class ShownRow:
    """One row of a batch, from place `first` on; every list but the source's and the answer's has an item for each place.

    Attributes:
        tokens: ids that the model reads; of an encoder-decoder, its decoder.
        pieces: the same as text.
        targets: the id that each place predicts, or None; empty if the row has targets of another kind.
        predicts: the same as text, or as the names of classes.
        weights: of each target in the loss.
        positions: the position of each token in its segment.
        segments: the segment that each token belongs to; -1 is padding.
        source: what the encoder of an encoder-decoder reads; None for any other model.
        answer: the row's target, its name, and its weight, if the row has one target instead of one for each place; the name is
            empty if the row has none.
        first: the first place shown.
    """

    tokens: list[int]
    pieces: list[str]
    targets: list[int | None]
    predicts: list[str | None]
    weights: list[float]
    positions: list[int]
    segments: list[int]
    source: "ShownSource | None" = None
    answer: tuple[Target, str, float] | None = None
    first: int = 0


@displayed()
@dataclass(frozen=True)
class ShownSource:
    """What the encoder reads; every list has an item for each place.

    Attributes:
        tokens: ids.
        pieces: the same as text.
        positions: the position of each token.
        segments: the segment that each token belongs to; -1 is padding.
    """

    tokens: list[int]
    pieces: list[str]
    positions: list[int]
    segments: list[int]


@displayed()
@dataclass(frozen=True)
class ShownMask:
    """Which tokens of the first row each of its tokens may attend to, in the places that are shown.

    Attributes:
        stack: the stack, such as `decoder`; `decoder, cross` for its attention to the encoder's output.
        layers: the layers with this mask.
        rule: the rule, such as `Causal()`, and whether the row's prefix sees itself in both directions.
        seen: a list for each query, True where it may attend to the key.
    """

    stack: str
    layers: list[int]
    rule: str
    seen: list[list[bool]]


@displayed(".rows, .masks")
@dataclass(frozen=True)
class ShownStep:
    """What a step reads.

    Attributes:
        step: its number, from 1.
        steps: how many the run has.
        described: where its examples are, in words.
        places: places in the whole batch, those of sources included.
        targets: those that are predicted.
        rows: the first rows.
        masks: the masks of the first row, one for each rule.
    """

    step: int
    steps: int
    described: str
    places: int
    targets: int
    rows: list[ShownRow]
    masks: list[ShownMask]


@checked(step=at_least(1), rows=at_least(1), length=at_least(1), start=at_least(0))
def show_step(run: str | Path, step: int = 1, rows: int = 1, length: int = 32, start: int | None = None) -> ShownStep:
    """Read what a step of a run reads, whether or not it has been trained; the run is not changed.

    Args:
        run: a run directory.
        step: from 1, as reports count.
        rows: how many of the batch's rows to return, at most.
        length: how many places of each row, and of each source, to return.
        start: the first place of each row to return, from 0; None: the row's first target if it is not among the first `length`
            places, else 0. A source is always returned from its start.

    Raises:
        HeddleError: it is not a training run, has fewer steps or shorter rows, or its text was changed.
    """
    opened = read_run(Path(run))
    chosen = opened.chosen
    if step > chosen.steps:
        raise HeddleError(f"step = {step}: {run} has {chosen.steps} steps")
    task = opened.task()
    examples = task.examples(step - 1)
    batch = task.batch(examples)
    width = batch.tokens.shape[1]
    if start is not None and start >= width:
        raise HeddleError(f"start = {start}: the rows of step {step} have {width} places, counted from 0")
    firsts = [_first(batch, row, length) if start is None else start for row in range(min(rows, len(batch.tokens)))]
    return ShownStep(
        step=step,
        steps=chosen.steps,
        described=task.describe(examples),
        places=tokens_read(batch),
        targets=int((batch.weights > 0).sum()),
        rows=[_row(task, batch, row, first, length, opened.tokenizer) for row, first in enumerate(firsts)],
        masks=_masks(opened.config.model, batch, firsts[0], length),
    )


def _first(batch: Batch, row: int, length: int) -> int:
    """Where to begin to show a row: at its start or, if the first places predict nothing, at its first target."""
    places = torch.nonzero(batch.weights[row] > 0)
    none_in_sight = batch.weights.shape == batch.tokens.shape and len(places) > 0 and int(places[0]) >= length
    return int(places[0]) if none_in_sight else 0


def _row(task: Task, batch: Batch, row: int, first: int, length: int, tokenizer: Tokenizer) -> ShownRow:
    """One row of a batch, and its source."""
    places = slice(first, first + length)
    read = _read(batch.tokens, batch.layout, row, places, tokenizer)
    source: ShownSource | None = None
    answer: tuple[Target, str, float] | None = None
    if batch.source is not None and batch.source_layout is not None:
        source = _read(batch.source, batch.source_layout, row, slice(length), tokenizer)
    targets: list[int | None] = []
    weights: list[float] = []
    if batch.weights.shape == batch.tokens.shape:
        targets = [None if target == IGNORED else target for target in batch.targets[row, places].tolist()]
        weights = batch.weights[row, places].tolist()
    elif batch.weights.dim() == 2:
        count = int((batch.targets[row] != IGNORED).sum())
        answer = count, f"which of its {count} pairs belong together", float(batch.weights[row].max())
    else:
        target, weight = batch.targets[row].tolist(), batch.weights[row].item()
        answer = target, task.name_of(target, tokenizer) if weight else "", weight
    return ShownRow(
        tokens=read.tokens,
        pieces=read.pieces,
        targets=targets,
        predicts=[None if target is None else task.name_of(target, tokenizer) for target in targets],
        weights=weights,
        positions=read.positions,
        segments=read.segments,
        source=source,
        answer=answer,
        first=first,
    )


def _read(tokens: Tensor, layout: Layout, row: int, places: slice, tokenizer: Tokenizer) -> ShownSource:
    """Some ids of one row, their texts and their places; padding has no text."""
    ids, segments = tokens[row, places].tolist(), layout.segment[row, places].tolist()
    pieces = ["" if segment == PADDING else tokenizer.piece(id) for id, segment in zip(ids, segments, strict=True)]
    return ShownSource(ids, pieces, layout.position[row, places].tolist(), segments)


def _masks(config: TransformerConfig, batch: Batch, first: int, length: int) -> list[ShownMask]:
    """The masks of the first row's tokens from `first` on, one for each rule of the model's attention layers."""
    own = batch.layout.split(1)[0]
    source = own if batch.source_layout is None else batch.source_layout.split(1)[0]
    masks, model = [], build(config, "meta")
    both = len(config.stacks()) > 1
    for name in config.stacks():
        stack: Stack = getattr(model, name)
        queries = source if both and name == "encoder" else own
        mixers = [block.mixer.pattern for block in stack.layers()]
        crosses = [None if block.cross is None else block.cross.pattern for block in stack.layers()]
        for label, patterns, keys in ((name, mixers, queries), (f"{name}, cross", crosses, source)):
            for rule, layers in _rules(patterns).items():
                start, begin = (first if each is own else 0 for each in (queries, keys))
                width, depth = min(start + length, queries.width), min(begin + length, keys.width)
                seen = Mask(rule, queries, keys).tile(start, width, begin, depth)[0, 0].tolist()
                sees = ", a prefix both ways" if queries.horizon is not None and rule == Causal() else ""
                masks.append(ShownMask(label, layers, f"{rule}{sees}", seen))
    return masks


def _rules(patterns: list[Pattern | None]) -> dict[Rule, list[int]]:
    """The layers with each rule; layers without attention have none."""
    rules: dict[Rule, list[int]] = {}
    for layer, pattern in enumerate(patterns):
        if pattern is not None and pattern.kernel is not None:
            rules.setdefault(pattern.rule, []).append(layer)
    return rules
