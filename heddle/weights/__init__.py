"""Weights on disk: run directories and checkpoints, written completely or not at all; import and export of published families."""

from heddle.weights.convert import export_model as export_model
from heddle.weights.convert import import_model as import_model
from heddle.weights.run import Loaded as Loaded
from heddle.weights.run import load as load
from heddle.weights.run import newest_valid as newest_valid
from heddle.weights.run import publish as publish
from heddle.weights.run import read_config as read_config
from heddle.weights.run import read_state as read_state
from heddle.weights.run import save as save
from heddle.weights.run import save_checkpoint as save_checkpoint
from heddle.weights.vectors import Coverage as Coverage
from heddle.weights.vectors import read_vectors as read_vectors
from heddle.weights.vectors import take_over_vectors as take_over_vectors

__all__ = [
    "Coverage",
    "Loaded",
    "export_model",
    "import_model",
    "load",
    "newest_valid",
    "publish",
    "read_config",
    "read_state",
    "read_vectors",
    "save",
    "save_checkpoint",
    "take_over_vectors",
]
