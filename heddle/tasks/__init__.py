"""Training tasks: a module per task, how examples become rows, the objective and its loss.

In reading order:

- `task`: the interface of a task (`Task`); `table` has a row per task and makes them (`make_task`).
- `next_token`, `masked`, `prefix_lm`: tasks that read plain text. `texts` is their base class.
- `translation`, `span_corruption`, `chat`: tasks with a source or a prompt. `sequences` has their common functions.
- `classification`, `multi_label`, `token_classification`, `regression`: tasks that learn labels. `labelled` is their base class,
  `metrics` computes what is reported.
- `contrastive`: texts to vectors.
- `records`: the base class of tasks whose examples are records.
- `rows`: how texts and records become rows of tokens.
- `own_batches`, `own_loss`: the user's own batches and losses.
- `objective`: from a batch to a sum and a count (`CrossEntropy`); `loss` computes it chunk by chunk, `recurring` rounds numbers of
  targets to sizes that recur.
- `extent`: how much of the held-out data a score covers; `isolation` refuses models that mix the documents of a row.
"""

from heddle.tasks.chat import ChatTask as ChatTask
from heddle.tasks.classification import ClassificationTask as ClassificationTask
from heddle.tasks.contrastive import ContrastiveTask as ContrastiveTask
from heddle.tasks.loss import cross_entropy as cross_entropy
from heddle.tasks.masked import MaskedTask as MaskedTask
from heddle.tasks.multi_label import MultiLabelTask as MultiLabelTask
from heddle.tasks.next_token import NextTokenTask as NextTokenTask
from heddle.tasks.objective import CrossEntropy as CrossEntropy
from heddle.tasks.objective import Loss as Loss
from heddle.tasks.prefix_lm import PrefixLMTask as PrefixLMTask
from heddle.tasks.regression import RegressionTask as RegressionTask
from heddle.tasks.span_corruption import SpanCorruptionTask as SpanCorruptionTask
from heddle.tasks.table import make_task as make_task
from heddle.tasks.task import DataSpec as DataSpec
from heddle.tasks.task import EvalSet as EvalSet
from heddle.tasks.task import ExampleIndices as ExampleIndices
from heddle.tasks.task import Task as Task
from heddle.tasks.token_classification import TokenClassificationTask as TokenClassificationTask
from heddle.tasks.translation import TranslationTask as TranslationTask

__all__ = [
    "ChatTask",
    "ClassificationTask",
    "ContrastiveTask",
    "CrossEntropy",
    "DataSpec",
    "EvalSet",
    "ExampleIndices",
    "Loss",
    "MaskedTask",
    "MultiLabelTask",
    "NextTokenTask",
    "PrefixLMTask",
    "RegressionTask",
    "SpanCorruptionTask",
    "Task",
    "TokenClassificationTask",
    "TranslationTask",
    "cross_entropy",
    "make_task",
]
