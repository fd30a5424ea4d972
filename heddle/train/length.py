"""How long a training is in steps, and how much of its time evaluations take."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from statistics import mean

from heddle.account.parameters import parameters
from heddle.config.train import TrainConfig
from heddle.data.corpus import Part
from heddle.data.order import evenly_spaced
from heddle.errors import HeddleError, pluralize
from heddle.tasks.task import Task, tokens_read
from heddle.train.evaluate import batch_rows

SHARE = 0.9  # share of the time for steps; the rest is for evaluations, samples and saving
PROBING = 0.06  # time of the evaluations while training, as a share of the steps' time
ENDING = 0.04  # the same of the last one, which scores all that is held out if that takes less
SCORING = 0.4  # time to score a target, as a share of the time to train on it: a forward pass, in smaller batches
MOST, FEWEST = 20, 5  # evaluations of a run, unless its user sets how often
WORTH = 256  # targets that an evaluation should score; with fewer in the time there is, there are fewer evaluations
ALWAYS = 1 << 16  # tokens that the last evaluation may read whatever the time, for a model of up to `SMALL` parameters
SMALL = 4_000_000
LOOKED_AT = 8  # steps, or batches to score, from which sizes are estimated
SAVING = 0.98  # share of the time that is not for samples and checkpoints


@dataclass(frozen=True)
class StepSize:
    """What a step reads on average.

    Attributes:
        tokens: padding and sources included.
        targets: those with a weight.
    """

    tokens: int
    targets: float


def step_size(task: Task) -> StepSize:
    """What a step reads: steps of equal rows are equal, so one is looked at; of others, the first few."""
    layout = task.spec.layout
    equal = layout == "pack" or (layout == "concatenate" and isinstance(task.spec.corpus.train, Part))
    batches = [task.batch(task.examples(step)) for step in range(1 if equal else LOOKED_AT)]
    targets = float(mean(int(batch.weights.count_nonzero()) for batch in batches))
    return StepSize(max(1, round(mean(map(tokens_read, batches)))), max(1.0, targets))


def requested_steps(train: TrainConfig, task: Task) -> int | None:
    """The steps that the settings ask for, by number or by epochs; None: as many as fit into the time.

    Raises:
        HeddleError: the data do not say how many steps an epoch has.
    """
    return train.steps if train.epochs is None else max(1, ceil(train.epochs * task.steps_per_epoch() - 1e-9))


def steps_within(seconds: float, rate: float, task: Task, every: int | None, cards: int = 1) -> int:
    """The steps that fit into this time with their evaluations, at least one.

    Args:
        seconds: the time.
        rate: tokens that are trained on in a second.
        task: what is learned.
        every: steps between evaluations, if the settings say so.
        cards: how many devices train.
    """
    tokens = seconds * SAVING * rate
    steps = max(1, int(SHARE * tokens / step_size(task).tokens))
    for _ in range(2):  # what evaluations take depends a little on the number of steps
        evaluations = Evaluations(task, steps, every, cards)
        per_step = evaluations.size.tokens
        steps = max(1, int(tokens * steps / (steps * per_step + evaluations.tokens())))
    return steps


def warmup_of(train: TrainConfig, steps: int, share: float) -> int:
    """Steps of the warmup of a training of so many steps: as set, or this share of all.

    Raises:
        HeddleError: the training is shorter than the requested warmup or decay.
    """
    warmup = ceil(share * steps) if train.warmup is None else train.warmup
    if warmup > steps:
        raise HeddleError(f"warmup = {warmup}: the run has {pluralize(steps, 'step')}; lower warmup or train longer")
    by_default = train.decay == TrainConfig.model_fields["decay"].default
    if train.schedule == "wsd" and not by_default and warmup + train.decay * steps > steps + 1:
        left = f"the warmup of {pluralize(warmup, 'step')} leaves {steps - warmup} of {steps}"
        raise HeddleError(f"decay = {train.decay} of all steps: {left}; lower decay or warmup")
    return warmup


@dataclass(frozen=True)
class Evaluations:
    """When a training evaluates, and how much: a share of its time.

    Attributes:
        task: what is learned and scored.
        steps: of the training.
        interval: steps between evaluations, if the settings say so.
        cards: how many devices train; one of them evaluates while the others wait.
    """

    task: Task
    steps: int
    interval: int | None = None
    cards: int = 1

    @property
    def cost(self) -> float:
        """Time to score a target, as a share of the time in which all cards train on one."""
        return SCORING * self.cards

    @cached_property
    def size(self) -> StepSize:
        """What a step reads."""
        return step_size(self.task)

    @cached_property
    def every(self) -> int:
        """Steps between evaluations: as set, else so that there are twenty, or fewer that score enough to mean something."""
        if self.interval is not None:
            return self.interval
        needed = self._read(WORTH * self.size.tokens / self.size.targets)[1]
        count = int(PROBING * self.steps * self.size.tokens / self.cost / needed)
        return ceil(self.steps / min(MOST, max(FEWEST, count)))

    @cached_property
    def probe(self) -> int:
        """Targets to score in an evaluation while training; `Task.held_out` counts them."""
        return self._probe[0]

    @cached_property
    def ending(self) -> int:
        """Targets to score at the end."""
        return self._ending[0]

    def tokens(self) -> float:
        """Tokens whose training takes as long as all evaluations."""
        return self.cost * (ceil(self.steps / self.every) * self._probe[1] + self._ending[1])

    @cached_property
    def _probe(self) -> tuple[int, float]:
        return self._read(PROBING * self.every * self.size.tokens / self.cost)

    @cached_property
    def _ending(self) -> tuple[int, float]:
        always = ALWAYS * min(1.0, SMALL / parameters(self.task.spec.model).total)
        return self._read(max(ENDING * self.steps * self.size.tokens / self.cost, always))

    def _read(self, tokens: float) -> tuple[int, float]:
        """How many targets to ask for so that an evaluation reads about so many tokens, and how many it then reads.

        What a target is differs among tasks, and so how many tokens are read for one: a sample is looked at.
        """
        most = max(1, round(tokens))
        for _ in range(4):
            batches = self.task.held_out(batch_rows(self.task.spec.model.context), most).batches
            looked_at = [batches[place] for place in evenly_spaced(len(batches), min(len(batches), LOOKED_AT))]
            read = len(batches) * mean(tokens_read(self.task.batch(each)) for each in looked_at)
            if read <= 1.1 * tokens or most == 1:
                break
            most = max(1, int(most * tokens / read))
        return most, float(read)
