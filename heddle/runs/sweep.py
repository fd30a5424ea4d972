"""Several runs, one at a time: every combination of the values tried, and every seed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heddle.checks import SOME, checked
from heddle.config.data import CHANGES_NOTHING
from heddle.config.model import ClassifierHeadConfig
from heddle.config.run import RunConfig
from heddle.config.saved import SavedConfig
from heddle.config.sweep import SEED, Variant
from heddle.config.tasks import ChatConfig
from heddle.config.train import LENGTHS, TrainConfig
from heddle.data.raw import Tell
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.parallel.launcher import process_count
from heddle.runs.compare import differences, flat
from heddle.runs.prepare import prepare
from heddle.runs.resolve import resolve
from heddle.runs.seed_statistics import SeedStatistics, seed_statistics
from heddle.runs.session import Session
from heddle.runs.trainer import Trainer
from heddle.train.training import NotFinite, Reader
from heddle.weights.checkpoints import CONFIG, read_manifest
from heddle.weights.files import MANIFEST
from heddle.weights.run import read_config

Watch = Callable[[Session], AbstractContextManager[Reader]]
# Settings that decide how long a step takes. Where they are equal, time must not give one run more steps than another.
COSTLY = ("batch", "batch_tokens", "accumulate", "optimizer", *LENGTHS, "clip")


class First(NamedTuple):
    """The run of a series whose decisions apply to all.

    Attributes:
        run: its directory.
        config: what its user set.
        saved: what was decided.
    """

    run: Path
    config: RunConfig
    saved: SavedConfig


@displayed()
@dataclass(frozen=True)
class Member:
    """One run of a series, and what became of it.

    Attributes:
        run: its directory.
        settings: the values that it has of those tried, by dotted path.
        how: `trained` from the start, `continued` where it was stopped, `kept` as it had finished before, or `diverged`:
            its loss became NaN or infinite.
        loss: the final validation loss, nats per target; None if it diverged.
        problem: why it diverged, or None.
    """

    run: Path
    settings: Mapping[str, Any]
    how: Literal["trained", "continued", "kept", "diverged"]
    loss: float | None
    problem: str | None = None


def check_alone() -> None:
    """Refuse a series under torchrun.

    Raises:
        HeddleError: it started several processes.
    """
    if process_count() > 1:
        raise HeddleError("a series trains its runs one at a time in one process; start it without torchrun")


@checked(variants=SOME)
def sweep(
    variants: Sequence[Variant], run: str | Path, tell: Tell = lambda line: None, watch: Watch | None = None
) -> list[Member]:
    """Train the runs of a series, one at a time: `sweep(heddle.config.variants(table, seeds=3), "runs/mine")`.

    They are named after `run` and their settings: `runs/mine-learning_rate=0.001,seed0`. What the first run decided by
    measurement (depth, precision, compilation, and the number of steps where steps cost the same) applies to all. Runs with
    the same sources, settings of the text and tokenizer share its tokens, which are made once.

    Calling this again after an interruption keeps the runs that have finished and continues the one that has not; more values
    or seeds add runs. A run that diverges does not stop the others.

    Args:
        variants: the runs, with the settings in which they differ.
        run: where to put them, and how their names start.
        tell: called with one line per phase.
        watch: makes the reader of each run's reports; entered while the run trains.

    Raises:
        HeddleError: the runs do not differ in any setting, a combination cannot work, a directory has a run with other
            settings, or several processes call this under torchrun. Nothing is trained then.
        Interrupted: SIGINT or SIGTERM arrived; what was trained is saved.
    """
    if len({each.label for each in variants} - {""}) < len(variants):
        raise HeddleError("sweep: variants must differ in their settings; make it with heddle.config.variants")
    check_alone()
    planned = [(directory_of(Path(run), variant), variant) for variant in variants]
    for _, variant in planned:
        resolve(variant.config)  # refuses what cannot be trained, before anything is
    first = find_first(planned)
    outcomes = []
    for number, (path, variant) in enumerate(planned, start=1):
        tell(f"run {number} of {len(planned)}: {path}")
        if not path.exists():
            config = variant.config if first is None else alike(variant.config, first)
            prepare(config, path, tell, [each for each, _ in planned if (each / CONFIG).is_file()])
            first = first or First(path, variant.config, read_config(path))
            how: Literal["trained", "continued"] = "trained"
        else:
            how = "continued"
        outcomes.append(_train(path, variant.settings, how, tell, watch))
    return outcomes


def directory_of(base: Path, variant: Variant) -> Path:
    """Where the run of a variant is.

    Raises:
        HeddleError: there is no name to put the variant's label behind, as in `.`.
    """
    if not base.name:
        raise HeddleError(f"run = {str(base)!r}: runs of a series need a name, to which each adds what it tries")
    return base.with_name(f"{base.name}-{variant.label}")


def find_first(planned: Sequence[tuple[Path, Variant]]) -> First | None:
    """The run whose decisions apply to all, if the series was begun before: the one that was prepared as its config says.

    Raises:
        HeddleError: a directory of the series has something else, or a run with other settings.
    """
    for path, _ in planned:
        if path.exists() and not (path / CONFIG).is_file():
            raise HeddleError(f"{path} exists and is not a run; choose another --name")
    there = [First(path, variant.config, read_config(path)) for path, variant in planned if path.exists()]
    problem = ""
    for first in there:
        others = ((each.run, other_settings(each, alike(each.config, first))) for each in there)
        wrong = next(((path, settings) for path, settings in others if settings), None)
        if wrong is None:
            return first
        problem = problem or f"{wrong[0]} exists and has other settings: {', '.join(wrong[1])}; choose another --name"
    if problem:
        raise HeddleError(problem)
    return None


def alike(config: RunConfig, first: First) -> RunConfig:
    """A config in which the first run's decisions replace what is left open, so that runs differ only where they are meant to."""
    saved = first.saved
    assert saved.chosen is not None
    if config == first.config:
        return config
    model, train, chosen = config.model, config.train, saved.chosen
    if (model.preset, model.start, model.depth) == (None, None, None):
        model = model.model_copy(update={"depth": saved.model.last()[1].depth})
    decided: dict[str, Any] = {}
    if train.precision == "auto":
        decided["precision"] = chosen.precision
    if train.compile == "auto" and train.products != "onednn":
        decided["compile"] = "on" if chosen.compile else "off"
    if (train.steps, train.epochs) == (None, None) and _cost(config) == _cost(first.config):
        decided |= {"steps": chosen.steps, "minutes": None}
    # Copied, so that a preset still knows what the user has left open.
    return config.model_copy(update={"model": model, "train": train.model_copy(update=decided)})


def _cost(config: RunConfig) -> tuple[Any, ...]:
    return config.data, config.model, config.task, *(getattr(config.train, name) for name in COSTLY)


def other_settings(there: First, config: RunConfig) -> list[str]:
    """The settings in which a run that exists is not what a config asks for."""
    saved = there.saved
    resolved = resolve(config, saved.task.date if isinstance(saved.task, ChatConfig) else None)
    config, head = resolved.config, saved.model.head
    classes = head.names if isinstance(head, ClassifierHeadConfig) else ()
    model = resolved.model(saved.model.vocab_size, saved.model.last()[1].depth, classes)
    model = model.override({"prompts": saved.model.prompts})
    alike = {} if saved.data is None else {name: getattr(saved.data, name) for name in CHANGES_NOTHING}
    data = config.data.model_copy(update=alike)
    train = config.train.model_copy(update=split_of(saved, config.train))
    existing = {"data": saved.data, "task": saved.task, "train": saved.train, "model": saved.model}
    requested = {"data": data, "task": config.task, "train": train, "model": model}
    tables = [flat({k: v and v.to_dict() for k, v in each.items()}) for each in (existing, requested)]
    return differences(tables)


def split_of(saved: SavedConfig, train: TrainConfig) -> dict[str, Any]:
    """How a run that exists splits its steps, where its plan may have chosen it and the settings do not say it."""
    if saved.train is None or saved.chosen is None or saved.chosen.device != "cuda":
        return {}
    defaults = TrainConfig.model_fields
    names = [
        name for name in ("accumulate", "checkpoint_activations") if getattr(train, name) == defaults[name].default
    ]
    return {name: getattr(saved.train, name) for name in names}


def _train(path: Path, settings: Mapping[str, Any], how: Any, tell: Tell, watch: Watch | None) -> Member:
    """Train a run to its end, unless it has reached it."""
    record = read_manifest(path) if (path / MANIFEST).is_file() else {}
    if "evaluation" in record:
        tell(f"{path} has finished before")
        return Member(path, settings, "kept", record["evaluation"]["loss"])
    trainer = Trainer(path)
    try:
        with nullcontext() if watch is None else watch(trainer.session) as reader:
            trainer.readers += [] if reader is None else [reader]
            result = trainer.run()
    except NotFinite as error:
        tell(str(error))
        return Member(path, settings, "diverged", None, str(error))
    return Member(path, settings, how, result.loss)


@checked()
def statistics_by_variant(outcomes: Sequence[Member]) -> list[tuple[dict[str, Any], SeedStatistics]]:
    """For each combination of settings apart from the seed, the spread of the final validation loss; diverged runs are left out."""
    groups: list[tuple[dict[str, Any], list[float]]] = []
    for outcome in outcomes:
        settings = {path: value for path, value in outcome.settings.items() if path != SEED}
        losses = next((losses for known, losses in groups if known == settings), None)
        if losses is None:
            groups.append((settings, losses := []))
        losses += [] if outcome.loss is None else [outcome.loss]
    return [(settings, seed_statistics(losses)) for settings, losses in groups if losses]
