"""Toys of the lectures: the size of one that sorts letters, and one that learns to translate with a decoder alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config import TransformerConfig, preset
from heddle.model import Transformer, build
from tests.running import unchecked

Written = Callable[[Tensor], Tensor]


def share_right(config: TransformerConfig, every: Tensor, written: Written, steps: int) -> float:
    """Train on rows [source, written(source)], the loss on what is written only; the share of all sources written right."""
    generator = torch.Generator().manual_seed(0)
    model, start = build(config), every.shape[1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min((step + 1) / 20, 1 - step / steps)
        source = every[torch.randint(len(every), (64,), generator=generator)]
        row = torch.cat((source, written(source)), 1)
        hidden = model(row[:, :-1]).hidden[:, start - 1 :]
        optimizer.zero_grad()
        F.cross_entropy(model.logits(hidden).flatten(0, 1), row[:, start:].flatten()).backward()
        optimizer.step()
    return (greedy(model, every, written(every).shape[1]) == written(every)).all(1).float().mean().item()


@torch.no_grad()
def greedy(model: Transformer, rows: Tensor, steps: int) -> Tensor:
    """What comes after each row."""
    start = rows.shape[1]
    for _ in range(steps):
        rows = torch.cat((rows, model.logits(model(rows).hidden[:, -1]).argmax(-1)[:, None]), 1)
    return rows[:, start:]


@pytest.mark.lecture("L3-39")
def test_the_toy_of_the_visualisation_has_its_sizes() -> None:
    """Six letters of three kinds; 85,584 numbers, or 85,728 with a head of its own. recipes/sorting.py teaches it to sort."""
    config = preset("bycroft-nano")
    sizes = [
        sum(p.numel() for p in build(c, "meta").parameters()) for c in (config, config.override({"head.tied": False}))
    ]
    assert sizes == [85_584, 85_728]
    assert (config.vocab_size, config.dim, config.decoder.depth, config.context) == (3, 48, 3, 11)


@pytest.mark.lecture("L1-81", "D-24")
def test_a_decoder_alone_learns_to_translate() -> None:
    """Four digits, <start_translation>, their words from last to first, <end>; both marks are one id each."""
    turn, end = 10, 11
    digits = torch.cartesian_prod(*[torch.arange(5)] * 4)
    every = torch.cat((digits, torch.full((len(digits), 1), turn)), 1)

    def words(source: Tensor) -> Tensor:
        return torch.cat((source[:, :4].flip(1) + 5, torch.full((len(source), 1), end)), 1)

    block = {"mixer": {"kind": "attention", "heads": 4}}
    stack = {"depth": 2, "block": block, "entry": {"positions": "learned"}}
    sizes = {"vocab_size": 12, "dim": 48, "context": 10, "initial": {"std": 0.1}}
    with unchecked():
        assert share_right(TransformerConfig.of({**sizes, "decoder": stack}), every, words, steps=80) >= 0.99
