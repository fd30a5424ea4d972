"""Training: from text to a run directory, and from there to trained weights.

In reading order:

- `task`: the interface of what a run learns (`Task`); `next_token`, `masked`, `prefix_lm`, `translation`, `chat`,
  `span_corruption`, `classification`, `token_classification`, `regression` and `contrastive` are tasks, `tasks` is their table.
- `records`: tasks whose examples are records, in rows that `record_rows` makes; `sequences`: those with a source; `labelled`: those
  that learn labels of texts, framed by `framing`. `confusion` and `spans` compute what they report. `apart` refuses models that mix
  what shares a row.
- `objective`: from a batch to a sum and a count (`CrossEntropy`); `loss` computes it chunk by chunk; `accuracy` also counts
  the targets predicted right.
- `optimizer`: fp32 masters, and which optimizer updates which parameter; `muon` updates matrices, `norms` measures gradients.
- `schedule`: learning rates over time.
- `step`: one training step (`train_step`).
- `evaluate`: the loss of what was held out.
- `plan`: sizes, steps and precision, chosen by measurement before a run.
- `prepare`: makes a run directory: tokenizer, token store, plan.
- `moving`: an exponential moving average of the weights (`MovingAverage`).
- `outcome`: which weights a run publishes, and when it stops early.
- `training`: what every training is: its step, its evaluation, the weights to use (`Training`).
- `session`: opens a run directory, new or at its newest checkpoint (`Session`); `ranks` connects several processes.
- `trainer`: the loop over steps, evaluations and checkpoints (`Trainer`); `report` is what it reports, `journal` writes
  it, `load` how evenly experts are used.
- `extend`: continues a run for longer than planned; `changeable` has the settings that may then differ.
- `sweep`: several runs, one at a time; `spread`: how far their results lie apart.
- `compare`: runs side by side; `export` and `plot` read their metrics for other programs and for people; `curves` draws them.
- `show`: what a step reads, to look at (`show_step`).
- `runtime`: allocator, and the seed of each step; `diagnose`: finds where a loss became NaN or infinite.
- `fit`: training in memory, without files; `batches` is the task of a user's own batches, `history` what it returns, `live` its
  progress; `suited` makes a tokenizer and a model for a task and its data.

`prepare(config, run)` and then `Trainer(run).run()` train a run, as `heddle train` does. `fit(model, tokenizer, data)` trains a
model in place.
"""

from heddle.train.chat import ChatTask as ChatTask
from heddle.train.classification import ClassificationTask as ClassificationTask
from heddle.train.compare import compare_runs as compare_runs
from heddle.train.compare import runs_in as runs_in
from heddle.train.contrastive import ContrastiveTask as ContrastiveTask
from heddle.train.evaluate import Evaluation as Evaluation
from heddle.train.evaluate import evaluate as evaluate
from heddle.train.export import write_csv as write_csv
from heddle.train.export import write_events as write_events
from heddle.train.extend import extend as extend
from heddle.train.fit import fit as fit
from heddle.train.history import History as History
from heddle.train.loss import cross_entropy as cross_entropy
from heddle.train.masked import MaskedTask as MaskedTask
from heddle.train.moving import MovingAverage as MovingAverage
from heddle.train.multi_label import MultiLabelTask as MultiLabelTask
from heddle.train.next_token import NextTokenTask as NextTokenTask
from heddle.train.objective import CrossEntropy as CrossEntropy
from heddle.train.objective import Loss as Loss
from heddle.train.optimizer import Optimizer as Optimizer
from heddle.train.outcome import Published as Published
from heddle.train.plan import Plan as Plan
from heddle.train.plan import plan as plan
from heddle.train.plot import plot_runs as plot_runs
from heddle.train.prefix_lm import PrefixLMTask as PrefixLMTask
from heddle.train.prepare import prepare as prepare
from heddle.train.regression import RegressionTask as RegressionTask
from heddle.train.report import Report as Report
from heddle.train.session import Session as Session
from heddle.train.session import open_session as open_session
from heddle.train.show import show_step as show_step
from heddle.train.span_corruption import SpanCorruptionTask as SpanCorruptionTask
from heddle.train.spread import Spread as Spread
from heddle.train.spread import spread as spread
from heddle.train.step import train_step as train_step
from heddle.train.suited import model_for as model_for
from heddle.train.suited import tokenizer_for as tokenizer_for
from heddle.train.sweep import Member as Member
from heddle.train.sweep import spreads as spreads
from heddle.train.sweep import sweep as sweep
from heddle.train.task import Examples as Examples
from heddle.train.task import HeldOut as HeldOut
from heddle.train.task import Reading as Reading
from heddle.train.task import Task as Task
from heddle.train.tasks import make_task as make_task
from heddle.train.token_classification import TokenClassificationTask as TokenClassificationTask
from heddle.train.trainer import Interrupted as Interrupted
from heddle.train.trainer import Trainer as Trainer
from heddle.train.training import StopTraining as StopTraining
from heddle.train.translation import TranslationTask as TranslationTask

__all__ = [
    "ChatTask",
    "ClassificationTask",
    "ContrastiveTask",
    "CrossEntropy",
    "Evaluation",
    "Examples",
    "HeldOut",
    "History",
    "Interrupted",
    "Loss",
    "MaskedTask",
    "Member",
    "MovingAverage",
    "MultiLabelTask",
    "NextTokenTask",
    "Optimizer",
    "Plan",
    "PrefixLMTask",
    "Published",
    "Reading",
    "RegressionTask",
    "Report",
    "Session",
    "SpanCorruptionTask",
    "Spread",
    "StopTraining",
    "Task",
    "TokenClassificationTask",
    "Trainer",
    "TranslationTask",
    "compare_runs",
    "cross_entropy",
    "evaluate",
    "extend",
    "fit",
    "make_task",
    "model_for",
    "open_session",
    "plan",
    "plot_runs",
    "prepare",
    "runs_in",
    "show_step",
    "spread",
    "spreads",
    "sweep",
    "tokenizer_for",
    "train_step",
    "write_csv",
    "write_events",
]
