"""What tasks that read a plain text have in common: its rows are made by the layout, and a task decides their targets."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from heddle.config.data import TextLayout
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.custom import CustomMixer
from heddle.nn.layout import Layout
from heddle.train.documents import Packed, Separate
from heddle.train.rows import Concatenated, Ids, TextRows
from heddle.train.task import Examples, HeldOut, Reading, Task, stream

LAYOUTS: dict[TextLayout, type[TextRows]] = {"concatenate": Concatenated, "documents": Separate, "pack": Packed}
APART = (
    1e-2  # more than bf16 rounds: how far a document's vectors may change with its neighbours, relative to the largest
)


class TextTask(Task):
    """A task whose examples are rows of a text (`heddle.train.rows`).

    Attributes:
        ahead: 1 if it predicts the token after each one, 0 if it predicts tokens of the row.

    Raises:
        HeddleError: the training text or the held-out text is too short for a row.
    """

    ahead: ClassVar[int]

    def __init__(self, config: Any, reading: Reading) -> None:
        super().__init__(config, reading)
        self.rows = LAYOUTS[reading.layout](reading, self.ahead)

    def examples(self, step: int) -> Examples:
        """The rows of one step: every row once per epoch, in an order keyed by (seed, epoch)."""
        return self.rows.examples(step)

    def held_out(self, rows: int, most: int | None = None) -> HeldOut:
        """Rows that score every target once, or an even sample of them."""
        return self.rows.held_out(rows, most)

    def steps_per_epoch(self) -> float:
        """Steps in which every training row is read once."""
        return self.rows.steps_per_epoch

    def places(self, examples: Examples) -> Ids:
        """What the examples are, by number: the targets of windows, or documents or packed rows."""
        return self.rows.numbers(examples)

    def size(self, held_out: bool) -> int:
        """How many of these a part has."""
        return self.rows.size(held_out)

    def epoch(self, number: int) -> Iterator[Examples]:
        """All rows, which are those of whole steps if steps have different numbers of rows."""
        count, steps = self.rows.epoch(), int(self.rows.steps_per_epoch)
        if count is None:
            return map(self.examples, range(number * steps, (number + 1) * steps))
        return stream(self, number * count, count)

    def remarks(self) -> list[str]:
        """What of the text is not read, and how much is padding."""
        return self.rows.remarks()

    def describe(self, examples: Examples) -> str:
        """Where the rows are in the text."""
        return self.rows.describe(examples)

    def check_layout(self, model: Transformer) -> None:
        """Refuse a user's own mixer that mixes documents of one row, or tokens with padding.

        heddle's own mixers keep documents apart.

        Raises:
            HeddleError: a document changes with its neighbours.
        """
        if self.reading.layout != "concatenate" and any(isinstance(each, CustomMixer) for each in model.modules()):
            check_apart(model, self.reading.layout, self.reading.length)


@torch.no_grad()
def check_apart(model: Transformer, layout: str, length: int) -> None:
    """Refuse a model whose hidden vectors of a document change with the rest of the row.

    Raises:
        HeddleError: they do.
    """
    size = max(length // 2, 1)
    rows = Layout.packed([[length - size, size]], length) if layout == "pack" else Layout.padded([size], length)
    own = slice(length - size, length) if layout == "pack" else slice(size)
    ids = torch.arange(length)[None] % model.config.vocab_size
    other = (ids + 1) % model.config.vocab_size
    other[:, own] = ids[:, own]
    training = model.training
    model.eval()
    one, two = (model(each.to(model.device), rows.to(model.device)).hidden[:, own].float() for each in (ids, other))
    model.train(training)
    if (one - two).abs().max() > APART * one.abs().max():
        raise HeddleError(
            f"layout = {layout} needs mixers that keep documents and padding apart, but in this model a token changes with those "
            "of another segment: consult layout.segment in your mixer, or set layout=concatenate"
        )
