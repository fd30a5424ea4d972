"""Two short trainings of a language model of the homework: does it see the next token, and does it learn to reverse a text?"""

from collections.abc import Callable
from math import log
from typing import Any

import torch
from torch import Tensor

from heddle.lessons.tasks import DIGITS, KINDS, LENGTH, REVERSED, random_tokens, reversals

HONEST = log(KINDS) - 0.03  # a loss below it has seen the next token
LEARNED = 0.95  # share of reversed digits
WIDTH, HEADS, DEPTH, ROWS, RATE = 32, 4, 2, 32, 1e-2
LAST = 20  # steps whose losses are averaged

Draw = Callable[[int, torch.Generator], Tensor]


def train(kind: Any, vocabulary: int, draw: Draw, steps: int, seed: int = 0) -> tuple[Any, float]:
    """A model of a class, trained on rows that `draw` makes, and its mean loss over the last steps."""
    torch.manual_seed(seed)
    model = kind(vocab=vocabulary, dim=WIDTH, heads=HEADS, depth=DEPTH, context=LENGTH).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    generator, losses = torch.Generator().manual_seed(seed), list[float]()
    for _ in range(steps):
        loss = model.loss(draw(ROWS, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), sum(losses[-LAST:]) / LAST


def learn(kind: Any, seed: int = 0) -> dict[str, float]:
    """The loss on random tokens, and the share of reversed digits that a model of a class gets right."""
    _, loss = train(kind, KINDS, random_tokens, 150, seed)
    model, _ = train(kind, DIGITS + 1, reversals, 300, seed)
    rows = reversals(256, torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        best = model(rows[:, :-1])[:, -REVERSED:].argmax(-1)
    return {"loss on random tokens": loss, "digits reversed": (best == rows[:, -REVERSED:]).double().mean().item()}
