"""How many rows, or padded tokens, a step has."""

from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.data.raw import TEXT
from heddle.errors import HeddleError, pluralize
from heddle.tasks.task import MULTIPLE, Task

TOKENS_PER_STEP = {"cpu": 4096, "mps": 16384, "cuda": 65536}


def batch_size(config: RunConfig, context: int, device: str, cards: int = 1) -> int:
    """Rows of a step whose rows are as long as the context, divided among cards.

    Raises:
        HeddleError: the requested tokens are less than a row.
    """
    train = config.train
    if train.batch_tokens is not None and not by_tokens(config) and train.batch_tokens < context * train.accumulate:
        split = f", of which a step has at least accumulate = {train.accumulate}" if train.accumulate > 1 else ""
        raise HeddleError(
            f"batch_tokens = {train.batch_tokens}: a row has context = {context} tokens{split}; "
            f"give at least {context * train.accumulate}"
        )
    least = train.accumulate * cards * (MULTIPLE if by_tokens(config) else 1)
    tokens = train.batch_tokens or TOKENS_PER_STEP[device]
    return train.batch or _multiple(max(1, round(tokens / context)), least)


def padded_tokens(config: RunConfig, default: int) -> int | None:
    """Tokens of a step, padding included, if its rows have different lengths and their number is not given."""
    return None if has_rows(config) else config.train.batch_tokens or default


def check_tokens(train: TrainConfig, task: Task) -> None:
    """Refuse fewer tokens per step than a step can have: its rows are a multiple of what ranks and micro-batches divide.

    Raises:
        HeddleError: the largest step has more tokens than requested.
    """
    if train.batch_tokens is None or task.spec.batch_tokens is None:
        return
    rows, length = max(task.shapes(), key=lambda shape: shape[0] * shape[1])
    if rows * length > 1.1 * train.batch_tokens:
        raise HeddleError(
            f"batch_tokens = {train.batch_tokens}: a step has at least {pluralize(task.spec.multiple, 'row')}, and {rows} of up "
            f"to {length} tokens have {rows * length:,}; give as many, or a shorter context, or batch"
        )


def has_rows(config: RunConfig) -> bool:
    """Whether all steps have as many rows: their number is given, or rows are equally long."""
    return config.train.batch is not None or not by_tokens(config)


def by_tokens(config: RunConfig) -> bool:
    """Whether rows have different lengths, so that a step is a number of tokens, not of rows."""
    layout = config.data.layout
    return layout == "documents" or (layout == "concatenate" and config.task.fields != TEXT)


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
