"""Training contenders: a step of each is one update of equal models by AdamW from a batch of equal size."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.bench.hugging_face import published_model
from heddle.bench.timing import Work
from heddle.config.model import TransformerConfig
from heddle.config.train import TrainConfig
from heddle.data.batch import next_token_batch
from heddle.model.build import build
from heddle.model.device import compile_graphs
from heddle.model.linear import use_products
from heddle.tasks.objective import CrossEntropy
from heddle.train.compiling import compile_objective
from heddle.train.optimizer import Optimizer
from heddle.train.rates import pick_products
from heddle.train.step import train_step

RATE, CLIP = 1e-4, 1.0
TRAIN = TrainConfig.of({"optimizer": "adamw", "clip": CLIP})


@dataclass(frozen=True)
class TrainingJob:
    """What is trained: a model, where, in which precision, and the tokens of a row."""

    config: TransformerConfig
    device: torch.device
    precision: str
    length: int

    def ids(self, rows: int) -> Any:
        """Random ids, one more than the tokens of a row."""
        return np.random.default_rng(0).integers(self.config.vocab_size, size=(rows, self.length + 1))


def heddle_trains(job: TrainingJob, rows: int, compiled: bool = False) -> Work:
    """A step as `heddle train` runs it."""
    model = build(job.config, job.device)
    tokens = rows * job.length
    by_onednn = () if compiled else pick_products("auto", job.config, tokens, job.device.type, job.precision)
    use_products(model, by_onednn)
    optimizer = Optimizer(model.train(), TRAIN, RATE, job.precision)
    objective: Any = CrossEntropy(model)
    minimised = compile_objective(objective, dynamic=False) if compiled else objective
    batch = next_token_batch(job.ids(rows)).to(job.device)

    def tensors() -> Iterable[Tensor]:
        states = _states(optimizer.optimizers)
        return chain(model.parameters(), model.buffers(), optimizer.masters.values(), states)

    return Work(partial(train_step, minimised, optimizer, batch, 1, 1.0, CLIP), tensors, _count(model))


def plain_loop(job: TrainingJob, rows: int) -> Work:
    """heddle's model in the usual loop, compiled: all logits, cross-entropy, autocast, fp32 weights."""
    model = build(job.config, job.device)
    return _usual_loop(job, rows, model, lambda tokens: model.logits(model(tokens).hidden))


def transformers_trains(job: TrainingJob, rows: int, compiled: bool = False) -> Work:
    """Hugging Face's model in the usual loop."""
    model = published_model(job.config, job.device, torch.float32)
    return _usual_loop(job, rows, model, lambda tokens: model(tokens, use_cache=False).logits, compiled)


def _usual_loop(
    job: TrainingJob, rows: int, model: nn.Module, logits: Callable[[Tensor], Tensor], compiled: bool = True
) -> Work:
    model.train()
    decayed = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    fused = job.device.type in ("cpu", "cuda")
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=TRAIN.betas, eps=1e-10, fused=fused)
    ids = torch.from_numpy(job.ids(rows)).to(job.device)
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits(tokens).float().flatten(0, 1), targets.flatten())

    minimised = compile_graphs(loss, dynamic=False) if compiled else loss

    def step() -> Tensor:
        with torch.autocast(job.device.type, torch.bfloat16, enabled=job.precision == "bf16"):
            value = minimised(tokens, targets)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return Work(step, lambda: chain(model.parameters(), model.buffers(), _states([optimizer])), _count(model))


def _states(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


TRAINERS: dict[str, Callable[[TrainingJob, int], Work]] = {
    "heddle": heddle_trains,
    "heddle, compiled": partial(heddle_trains, compiled=True),
    "plain loop, compiled": plain_loop,
    "transformers, compiled": partial(transformers_trains, compiled=True),
    "transformers": transformers_trains,
}
