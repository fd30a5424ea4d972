"""Training: objective, optimizer, one step, the loop around it, and what is decided before anything is spent."""

from heddle.train.evaluate import Evaluation as Evaluation
from heddle.train.evaluate import evaluate as evaluate
from heddle.train.fit import fit as fit
from heddle.train.journal import Report as Report
from heddle.train.loss import cross_entropy as cross_entropy
from heddle.train.objective import Loss as Loss
from heddle.train.objective import NextToken as NextToken
from heddle.train.optimizer import Optimizer as Optimizer
from heddle.train.plan import Plan as Plan
from heddle.train.plan import plan as plan
from heddle.train.prepare import prepare as prepare
from heddle.train.step import train_step as train_step
from heddle.train.trainer import Interrupted as Interrupted
from heddle.train.trainer import Trainer as Trainer

__all__ = [
    "Evaluation",
    "Interrupted",
    "Loss",
    "NextToken",
    "Optimizer",
    "Plan",
    "Report",
    "Trainer",
    "cross_entropy",
    "evaluate",
    "fit",
    "plan",
    "prepare",
    "train_step",
]
