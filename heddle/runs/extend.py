"""Continuing a run for longer than it was planned, or with other settings that do not change what it learns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.config.saved import SavedConfig
from heddle.config.train import LENGTHS
from heddle.errors import HeddleError
from heddle.runs.changeable import CHANGEABLE
from heddle.runs.layout import check_run
from heddle.runs.session import read_run
from heddle.tasks.task import MULTIPLE
from heddle.train.length import requested_steps, steps_within, warmup_of
from heddle.train.model_selection import averaged_steps, check_outcome
from heddle.train.rates import pick_threads
from heddle.weights.checkpoints import CONFIG, checkpoints
from heddle.weights.files import MANIFEST, Hold, relist, write_file
from heddle.weights.run import newest_valid, read_config

LAYOUT = "parallel."  # the start of the keys that say how processes divide a run


@checked()
def extend(run: str | Path, settings: Mapping[str, Any], ranks: int | None = None) -> list[str]:
    """Change settings of a run before it continues; the next `Trainer` of the run reads them.

    With more steps, the learning rate follows the schedule of the longer run from the step that was reached, and `patience`
    counts evaluations anew.

    Args:
        run: a run directory that no process is training.
        settings: dotted keys and their values: `train.steps` or `train.epochs` in all, or `train.minutes` to add;
            `train.threads`, `train.evaluate_every`, `train.save_every`, `train.keep`, `train.patience`,
            `train.start_timeout`, `train.step_timeout`, `train.checkpoint_activations`, `train.accumulate`; and how
            processes divide it, such as `parallel.tensor`.
        ranks: how many processes will continue it, if that is known: then a layout that they cannot be is refused.

    Returns:
        A line for each change, such as `steps: 2000 -> 4000`.

    Raises:
        HeddleError: a setting cannot change, a value is impossible, or the run has already done as many steps.
    """
    run = Path(run)
    config = read_config(run)
    if config.train is None or config.chosen is None:
        raise HeddleError(f"{run} was not trained here, so it cannot be continued")
    layout = {key: value for key, value in settings.items() if key.startswith(LAYOUT)}
    settings = {key: value for key, value in settings.items() if key not in layout}
    fixed = [key for key in settings if key.removeprefix("train.") not in CHANGEABLE]
    if fixed:
        allowed = ", ".join(CHANGEABLE)
        raise HeddleError(f"{run}: {', '.join(fixed)} cannot change when a run continues; these can: {allowed}")
    changes = {key.removeprefix("train."): value for key, value in settings.items()}
    longer = any(name in changes for name in LENGTHS)
    replaced = {**(dict.fromkeys(LENGTHS) if longer else {}), **changes}
    own = config.override({**{f"train.{key}": value for key, value in replaced.items()}, **layout}, "settings")
    train, parallel = own.train, own.parallel
    assert train is not None
    if train.accumulate != config.train.accumulate and config.chosen.batch_tokens is not None:
        raise HeddleError(
            f"{run}: accumulate cannot change: steps of batch_tokens have a multiple of {MULTIPLE} x accumulate records, so "
            "other records would come together"
        )
    newest, _ = newest_valid(run)
    done = 0 if newest is None else int(newest.name.rpartition("-")[2])
    chosen = config.chosen
    new: dict[str, Any] = {
        name: getattr(train, name) for name in ("threads", "evaluate_every", "save_every") if name in changes
    }
    if "threads" in changes:
        new["threads"] = pick_threads(train.threads)
    if longer:
        task = read_run(run).task()
        new["steps"] = requested_steps(train, task)
        if train.minutes is not None:
            time, every = 60 * train.minutes, new.get("evaluate_every") or chosen.evaluate_every
            new["steps"] = done + steps_within(time, chosen.tokens_per_second, task, every)
    new = {name: value for name, value in new.items() if value is not None}
    if new.get("steps", done + 1) <= done:
        raise HeddleError(f"steps = {new['steps']}: {run} has already done {done}; give more")
    after = chosen.override(new)
    if train.warmup is not None:
        warmup_of(train, after.steps, 0.0)
    check_outcome(train, after)
    there = {number for number, _ in checkpoints(run)}
    if gone := [step for step in averaged_steps(train, after) if step <= done and step not in there]:
        raise HeddleError(
            f"average = {train.average} needs the checkpoint of step {gone[0]}, which is not in {run}: give more steps, "
            "or leave out save_every"
        )
    changed = config.model_copy(update={"train": train, "chosen": after, "parallel": parallel})
    if ranks is not None:
        check_run(changed, ranks)
    _write(run, changed)
    pairs = ((config.train, train), (chosen, after), (config.parallel, parallel))
    differences = {name: pair for before, now in pairs for name, pair in _differences(before, now).items()}
    return [f"{name}: {old} -> {now}" for name, (old, now) in differences.items() if name != "minutes"]


def _write(run: Path, config: SavedConfig) -> None:
    hold = Hold(run)
    try:
        write_file(run / CONFIG, config.to_json().encode(), replace=True)
        if (run / MANIFEST).is_file():  # published weights stay valid with the new config
            relist(run, CONFIG)
    finally:
        hold.release()


def _differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in type(before).model_fields}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
