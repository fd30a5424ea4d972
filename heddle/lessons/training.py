"""Train a small model on a tiny task, in seconds."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from heddle.lessons.tasks import NOT_SCORED, Task
from heddle.model import Transformer

LAST = 20  # steps whose losses are averaged
TESTED = 256  # rows on which the trained model is tried


@dataclass(frozen=True)
class Learned:
    """What a model learned.

    Attributes:
        losses: the loss of each step, in nats.
        accuracy: the share of scored targets that it predicts on rows of its own.
        rows: the share of rows in which it predicts all of them.
    """

    losses: tuple[float, ...]
    accuracy: float
    rows: float

    @property
    def loss(self) -> float:
        """The mean loss of the last steps."""
        return sum(self.losses[-LAST:]) / len(self.losses[-LAST:])


def logits_of(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """The logits of every token, [B T V]."""
    return model.logits(model(ids).hidden)


def learn(
    model: Transformer, task: Task, steps: int, *, rate: float = 1e-2, warmup: int = 0, rows: int = 32, seed: int = 0
) -> Learned:
    """Train a model with AdamW on a task, and try it on rows that it has not seen.

    Args:
        model: an encoder or a decoder, changed in place and left in evaluation mode.
        task: what it learns.
        steps: batches.
        rate: learning rate, reached after `warmup` steps, then constant.
        rows: of a batch.
        seed: of the batches; the model's weights have theirs.
    """
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), rate)
    losses = []
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / (warmup + 1))
        ids, targets = task.draw(rows, generator)
        loss = F.cross_entropy(logits_of(model, ids).flatten(0, 1), targets.flatten(), ignore_index=NOT_SCORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    ids, targets = task.draw(TESTED, torch.Generator().manual_seed(seed + 1_000_000))
    with torch.no_grad():
        is_right = logits_of(model, ids).argmax(-1) == targets
    scored = targets != NOT_SCORED
    return Learned(
        losses=tuple(losses),
        accuracy=(is_right & scored).sum().item() / scored.sum().item(),
        rows=(is_right | ~scored).all(1).double().mean().item(),
    )
