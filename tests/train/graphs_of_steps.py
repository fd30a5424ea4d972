"""A program: how many graphs torch.compile captures of training steps, which have to have the same loss. It prints JSON."""

import json

import numpy as np
import torch

from heddle.config import sized
from heddle.config.train import TrainConfig
from heddle.data.batch import next_token_batch
from heddle.model import build
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from tests.graphs import captured


def main() -> None:
    draw = np.random.default_rng(0)
    counts = {}
    for precision, dropout in (("fp32", 0.2), ("bf16", 0.0)):
        config = sized(1, vocab_size=41, context=16, dim=32).override({"decoder.block.dropout": dropout})
        models = [build(config) for _ in range(2)]
        sides = [Optimizer(model, TrainConfig(), 1e-3, precision) for model in models]
        plain = CrossEntropy(models[0])
        compiled, graphs = captured(CrossEntropy(models[1]))
        for step in range(3):
            batch = next_token_batch(draw.integers(0, 41, (4, 17)))
            losses = []
            for objective, optimizer in zip((plain, compiled), sides, strict=True):
                torch.manual_seed(step)
                losses.append(train_step(objective, optimizer, batch, 2, 1.0, 1.0))
            # A compiler may order sums its own way; this one does not.
            assert losses[0] == losses[1], (precision, dropout, step, losses)
        counts[f"{precision} {dropout}"] = graphs.count
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
