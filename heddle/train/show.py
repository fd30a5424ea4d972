"""What a step of a run reads, to look at: tokens, targets, segments, and which tokens each token may attend to."""

from dataclasses import dataclass
from pathlib import Path

from heddle.checks import at_least, checked
from heddle.config.model import TransformerConfig
from heddle.data.batch import IGNORED
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.stack import Stack
from heddle.nn.layout import Layout
from heddle.nn.mask import Mask, Rule
from heddle.nn.scope import Pattern
from heddle.train.session import read_run


@dataclass(frozen=True)
class ShownRow:
    """One row of a batch; every list has an item for each place.

    Attributes:
        tokens: ids that the model reads.
        pieces: the same as text.
        targets: the id that each place predicts, or None.
        predicts: the same as text.
        weights: of each target in the loss.
        positions: the position of each token in its segment.
        segments: the segment that each token belongs to; -1 is padding.
    """

    tokens: list[int]
    pieces: list[str]
    targets: list[int | None]
    predicts: list[str | None]
    weights: list[float]
    positions: list[int]
    segments: list[int]


@dataclass(frozen=True)
class ShownMask:
    """Which tokens of the first row each of its tokens may attend to.

    Attributes:
        stack: the stack, such as `decoder`.
        layers: the layers with this mask.
        rule: the rule, such as `Causal()`.
        seen: a list for each query, True where it may attend to the key.
    """

    stack: str
    layers: list[int]
    rule: str
    seen: list[list[bool]]


@dataclass(frozen=True)
class ShownStep:
    """What a step reads.

    Attributes:
        step: its number, from 1.
        steps: how many the run has.
        described: where its examples are, in words.
        places: places in the whole batch.
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


@checked(step=at_least(1), rows=at_least(1), length=at_least(1))
def show_step(run: str | Path, step: int = 1, rows: int = 1, length: int = 32) -> ShownStep:
    """Read what a step of a run reads, whether or not it has been trained; the run is not changed.

    Args:
        run: a run directory.
        step: from 1, as reports count.
        rows: how many of the batch's rows to return.
        length: how many places of each row to return.

    Raises:
        HeddleError: it is no training run, has fewer steps, or its text was changed.
    """
    opened = read_run(Path(run))
    chosen, tokenizer = opened.chosen, opened.tokenizer
    if step > chosen.steps:
        raise HeddleError(f"step = {step}: {run} has {chosen.steps} steps")
    task = opened.task()
    examples = task.examples(step - 1)
    batch = task.batch(examples)
    if batch.targets.dim() != 2:
        raise HeddleError(f"{run}: only batches with a target for each token can be shown")
    shown = []
    for row in range(min(rows, len(batch.tokens))):
        here = slice(min(length, batch.layout.width))
        tokens = batch.tokens[row, here].tolist()
        targets = [None if target == IGNORED else target for target in batch.targets[row, here].tolist()]
        shown.append(
            ShownRow(
                tokens=tokens,
                pieces=[tokenizer.piece(token) for token in tokens],
                targets=targets,
                predicts=[None if target is None else tokenizer.piece(target) for target in targets],
                weights=batch.weights[row, here].tolist(),
                positions=batch.layout.position[row, here].tolist(),
                segments=batch.layout.segment[row, here].tolist(),
            )
        )
    return ShownStep(
        step=step,
        steps=chosen.steps,
        described=task.describe(examples),
        places=batch.tokens.numel(),
        targets=int((batch.weights > 0).sum()),
        rows=shown,
        masks=_masks(opened.config.model, batch.layout, length),
    )


def _masks(config: TransformerConfig, layout: Layout, length: int) -> list[ShownMask]:
    """The masks of the first row's first tokens, one for each rule of the model's attention layers."""
    first, length = layout.split(1)[0], min(length, layout.width)
    found, model = [], build(config, "meta")
    for name in config.stacks():
        stack: Stack = getattr(model, name)
        rules: dict[Rule, list[int]] = {}
        for layer, block in enumerate(stack.layers()):
            pattern: Pattern = block.mixer.pattern
            if pattern.kernel is not None:
                rules.setdefault(pattern.rule, []).append(layer)
        for rule, layers in rules.items():
            seen = Mask(rule, first, first).tile(0, length, 0, length)[0, 0].tolist()
            found.append(ShownMask(name, layers, str(rule), seen))
    return found
