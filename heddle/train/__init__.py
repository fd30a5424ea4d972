"""The loop in memory: one step, the optimizers, schedules, evaluation, `fit`. It knows no run directory.

In reading order:

- `optimizer`: fp32 masters, and which optimizer updates which parameter; `muon` updates matrices, `gradient_norms` measures.
- `schedule`: learning rates over time; `length`: how many steps a training has, and when it evaluates.
- `step`: one training step (`train_step`).
- `evaluate`: the loss of what was held out.
- `training`: what every training is: its step, its evaluation, the weights to use (`Training`). `ema` keeps an exponential moving
  average of the weights, `model_selection` says which weights are final and when to stop early, `expert_load` how evenly experts
  are used, `diagnose` finds where a loss became NaN or infinite, `ahead` makes the next batch while a GPU computes.
- `rates`, `sizes`: how fast this machine trains a model; how many rows or tokens a step has.
- `runtime`: allocator, and the seed of each step.
- `fit`: a training in memory; `history` is what it returns, `report` its events, `live` its progress, `curves` draws it.

`fit(model, tokenizer, data)` trains a model in place; `heddle.runs` trains a run directory.
"""

from heddle.train.ema import MovingAverage as MovingAverage
from heddle.train.evaluate import Evaluation as Evaluation
from heddle.train.evaluate import evaluate as evaluate
from heddle.train.fit import fit as fit
from heddle.train.history import History as History
from heddle.train.model_selection import SelectedWeights as SelectedWeights
from heddle.train.optimizer import Optimizer as Optimizer
from heddle.train.report import Report as Report
from heddle.train.step import train_step as train_step
from heddle.train.training import StopTraining as StopTraining

__all__ = [
    "Evaluation",
    "History",
    "MovingAverage",
    "Optimizer",
    "Report",
    "SelectedWeights",
    "StopTraining",
    "evaluate",
    "fit",
    "train_step",
]
