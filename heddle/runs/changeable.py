"""The settings of a run that may change while it trains; every other one decides what is learned, or how."""

from heddle.config.saved import SavedConfig
from heddle.config.train import LENGTHS

CHANGEABLE = (
    *(*LENGTHS, "threads", "evaluate_every", "save_every", "keep", "patience", "start_timeout", "step_timeout"),
    "checkpoint_activations",  # which changes the memory, not a number
    "accumulate",  # which changes only rounding, and the masks of dropout; see `heddle.runs.extend` for the exception
)


def resume_identity(config: SavedConfig) -> SavedConfig:
    """A run's config without the settings that may change: equal for all checkpoints of one run."""
    if config.train is None or config.chosen is None:
        return config
    defaults = {name: type(config.train).model_fields[name].default for name in CHANGEABLE}
    train = config.train.model_copy(update=defaults)
    once = dict.fromkeys(("steps", "threads", "evaluate_every", "save_every"), 1)
    layout = type(config.parallel)()
    return config.model_copy(
        update={"train": train, "parallel": layout, "chosen": config.chosen.model_copy(update=once)}
    )
