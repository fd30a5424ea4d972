"""Which weights a run publishes, and when it stops early.

One rule: a run publishes the weights of its last step. With `ema` it evaluates, saves and publishes their moving average in their
place. With `patience` it publishes the weights of the evaluation with the lowest validation loss (with `ema`, the moving average at
that step), and with `average = N` the mean of the last N checkpoints that `save_every` plans. `average` cannot be combined with the
other two. The final score is that of the published weights.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from heddle.config.saved import Chosen
from heddle.config.train import TrainConfig
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize


@displayed()
@dataclass(frozen=True)
class BestSoFar:
    """The evaluation with the lowest validation loss so far; of equal ones, the first.

    Attributes:
        step: its step.
        loss: its validation loss, nats per target.
        waited: evaluations since then.
        steps: the steps that the run then had in all; a run that continues with another number counts anew.
    """

    step: int
    loss: float
    waited: int
    steps: int

    def to_dict(self) -> dict[str, Any]:
        """As a checkpoint stores it."""
        return asdict(self)


def update(best: BestSoFar | None, step: int, loss: float, steps: int) -> BestSoFar:
    """The best evaluation after one more, at `step`."""
    if best is None or loss < best.loss:
        return BestSoFar(step, loss, 0, steps)
    return replace(best, waited=best.waited + 1)


def restore(state: dict[str, Any], train: TrainConfig, chosen: Chosen) -> BestSoFar | None:
    """The best evaluation that a checkpoint knows of, for a run that continues."""
    if train.patience is None or not state.get("best"):
        return None
    best = BestSoFar(**state["best"])
    return best if best.steps == chosen.steps else replace(best, waited=0, steps=chosen.steps)


@displayed()
@dataclass(frozen=True)
class SelectedWeights:
    """What the published weights are.

    Attributes:
        kind: `last`, `best` or `average`.
        steps: the step, or the steps of the checkpoints that are averaged.
        ema: share that the moving average keeps, if the weights are one.
        loss: validation loss of the best evaluation.
    """

    kind: str
    steps: tuple[int, ...]
    ema: float | None = None
    loss: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the manifest stores it."""
        return {"kind": self.kind, "steps": list(self.steps), "ema": self.ema, "loss": self.loss}

    def __str__(self) -> str:
        moving = "" if self.ema is None else f"the moving average (ema = {self.ema}) of "
        if self.kind == "average":
            return f"the mean of the checkpoints of steps {', '.join(map(str, self.steps))}"
        if self.kind == "best":
            return f"{moving}the weights of step {self.steps[0]}, which had the lowest validation loss, {self.loss:.4f}"
        return f"{moving}the weights of step {self.steps[0]}"


def describe(train: TrainConfig) -> str:
    """What a run with these settings will publish, in words; nothing for the last weights."""
    moving = [] if train.ema is None else [f"publishes a moving average of the weights (ema = {train.ema})"]
    mean = [] if train.average is None else [f"publishes the mean of the last {train.average} checkpoints"]
    waits = "" if train.patience is None else pluralize(train.patience, "evaluation")
    early = [f"stops after {waits} without a lower validation loss, publishes the best"] if waits else []
    return "; ".join([*moving, *mean, *early])


def selected_weights(train: TrainConfig, chosen: Chosen, step: int, best: BestSoFar | None) -> SelectedWeights:
    """What a run publishes that ends at `step`, by the rule above."""
    if train.average is not None:
        return SelectedWeights("average", averaged_steps(train, chosen))
    if train.patience is not None and best is not None:
        return SelectedWeights("best", (best.step,), train.ema, best.loss)
    return SelectedWeights("last", (step,), train.ema)


def averaged_steps(train: TrainConfig, chosen: Chosen) -> tuple[int, ...]:
    """The steps of the checkpoints to average: the last that `save_every` plans, and no others, such as one saved at a stop."""
    if train.average is None:
        return ()
    planned = range(chosen.save_every, chosen.steps, chosen.save_every)
    return (*planned[max(0, len(planned) - train.average + 1) :], chosen.steps)


def check_outcome(train: TrainConfig, chosen: Chosen) -> None:
    """Refuse settings that cannot take effect in a run of this length.

    Raises:
        HeddleError: it has too few checkpoints for `average`, or too few evaluations for `patience`.
    """
    steps = averaged_steps(train, chosen)
    if train.average is not None and len(steps) < train.average:
        raise HeddleError(
            f"average = {train.average}: {pluralize(chosen.steps, 'step')} with a checkpoint every {chosen.save_every} "
            f"make {len(steps)}; lower average or save_every"
        )
    check_patience(train, chosen.steps, chosen.evaluate_every)


def check_patience(train: TrainConfig, steps: int, evaluate_every: int) -> None:
    """Refuse a patience that could never end a training of this length.

    Raises:
        HeddleError: there are too few evaluations.
    """
    evaluations = -(-steps // evaluate_every)
    if train.patience is not None and train.patience >= evaluations:
        raise HeddleError(
            f"patience = {train.patience}: the run has {pluralize(evaluations, 'evaluation')}, so it could never stop "
            "early; lower patience or evaluate_every"
        )
