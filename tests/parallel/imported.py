"""A program: what `heddle train` and torchrun need, imported once, for ranks that are forks (`tests/forks.py`)."""

import sys
from typing import Any

import torch._dynamo
import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
import torch.distributed.launcher.api
import torch.distributed.run  # noqa: F401

import heddle.cli.main
import heddle.cli.train
import heddle.cli.training
import heddle.parallel.pipeline
import heddle.runs.plan  # noqa: F401
from heddle.tasks.next_token import NextTokenTask
from tests import forks
from tests.parallel import engines, resharding  # noqa: F401

if __name__ == "__main__":
    # Measuring the machine and generating samples take seconds, and what is tested here does not depend on them.
    plan: Any = sys.modules["heddle.runs.plan"]
    plan.measure = lambda *args, **settings: 1e5
    plan.peak_rate = lambda *args, **settings: 1e10
    task: Any = NextTokenTask
    task.samples = lambda self, model, tokenizer, seeds, tokens: [""] * len(seeds)
    forks.serve()
