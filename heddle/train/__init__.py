"""Training: task, objective, optimizer, one step, the loop around it, and what is decided before anything is spent."""

from heddle.train.evaluate import Evaluation as Evaluation
from heddle.train.evaluate import evaluate as evaluate
from heddle.train.fit import fit as fit
from heddle.train.journal import Report as Report
from heddle.train.loss import cross_entropy as cross_entropy
from heddle.train.next_token import NextTokenTask as NextTokenTask
from heddle.train.objective import CrossEntropy as CrossEntropy
from heddle.train.objective import Loss as Loss
from heddle.train.objective import NextToken as NextToken
from heddle.train.optimizer import Optimizer as Optimizer
from heddle.train.plan import Plan as Plan
from heddle.train.plan import plan as plan
from heddle.train.prepare import prepare as prepare
from heddle.train.session import Session as Session
from heddle.train.session import open_session as open_session
from heddle.train.step import train_step as train_step
from heddle.train.task import Examples as Examples
from heddle.train.task import HeldOut as HeldOut
from heddle.train.task import Reading as Reading
from heddle.train.task import Task as Task
from heddle.train.tasks import make_task as make_task
from heddle.train.trainer import Interrupted as Interrupted
from heddle.train.trainer import Trainer as Trainer

__all__ = [
    "CrossEntropy",
    "Evaluation",
    "Examples",
    "HeldOut",
    "Interrupted",
    "Loss",
    "NextToken",
    "NextTokenTask",
    "Optimizer",
    "Plan",
    "Reading",
    "Report",
    "Session",
    "Task",
    "Trainer",
    "cross_entropy",
    "evaluate",
    "fit",
    "make_task",
    "open_session",
    "plan",
    "prepare",
    "train_step",
]
