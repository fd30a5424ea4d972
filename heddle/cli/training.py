"""The work of `heddle train`, apart from `train.py`, which imports no torch so that its help appears at once."""

import shlex
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from heddle.cli.output import phases, pluralize, print_json
from heddle.cli.progress import Progress
from heddle.config.run import RunConfig
from heddle.config.tasks import ChatConfig, ContrastiveConfig, LabelSettings, MaskedConfig, TranslationConfig
from heddle.config.train import TrainConfig
from heddle.data.raw import TEXT
from heddle.data.records import Records
from heddle.display import estimate, metrics
from heddle.errors import HeddleError
from heddle.look.readings import Readings
from heddle.model.device import pick_device
from heddle.parallel.launcher import number, process_count
from heddle.parallel.output import Output, join_quietly, reported
from heddle.parallel.ranks import Ranks
from heddle.runs.extend import extend
from heddle.runs.plan_text import describe_plan
from heddle.runs.prepare import name_sources, new_directory, prepare
from heddle.runs.session import Session
from heddle.runs.trainer import Interrupted, Trainer, resume_command
from heddle.weights.run import read_config
from heddle.weights.special_tokens import mask_of

# Notes for the processes that torchrun starts after these.
PREPARED, EXTENDED = "prepared", "extended"


def begin(config: RunConfig, run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None) -> None:
    """Prepare a run and train it. Under torchrun, rank 0 prepares it for all ranks.

    If torchrun starts its processes again, they continue the run that the first ones prepared.
    """
    train = config.train
    ranks = join_quietly(train.device, train)
    output = Output(ranks)
    with reported(output):
        ranks.compare(config.to_dict())
        if ranks.leads:
            run = _prepared(config, run, ranks, out)
        train_run(Path(ranks.share(str(run))), out, json, readings, output)


def _prepared(config: RunConfig, run: Path, ranks: Ranks, out: Console) -> Path:
    """The run, which an earlier start of these processes may have prepared."""
    before = ranks.recall(PREPARED)
    run = new_directory(run) if before is None else Path(before)
    ranks.note(PREPARED, str(run))
    if not run.exists():
        with phases(out) as report:
            plan = prepare(config, run, report, ranks=ranks.count)
        out.print(describe_plan(plan, run))
    return run


def resume_run(
    run: Path,
    settings: dict[str, Any],
    out: Console,
    json: bool,
    readings: int | Sequence[int] | None = None,
    device: str | None = None,
) -> None:
    """Resume a run, with changed settings if there are any, and on this card, if it is one of the run's kind of device.

    Raises:
        HeddleError: the run cannot be resumed, or not on this device.
    """
    before = read_config(run)
    chosen = before.chosen
    kind = "auto" if chosen is None else chosen.device  # `open_session` refuses a run that was not trained
    if (there := pick_device(device or kind).type) != kind and device is not None:  # before settings change
        raise HeddleError(f"--device {device}: {run} started on {kind}, so it cannot continue on {there}")
    ranks = join_quietly(device or kind, before.train or TrainConfig())
    output = Output(ranks)
    with reported(output):
        if settings and ranks.leads and ranks.recall(EXTENDED) is None:
            for line in extend(run, settings, ranks.count):
                out.print(line)
            ranks.note(EXTENDED, str(run))
        train_run(Path(ranks.share(str(run))), out, json, readings, output)


def train_run(
    run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None, output: Output | None = None
) -> None:
    """Train a run from its last checkpoint to its end, and save readings at the chosen steps."""
    if output is not None:
        output.open(run)
    try:
        _train(run, out, json, readings)
    except KeyboardInterrupt as stop:  # before the first step, after the last one, or on a second signal
        stop.args = (f"stopped; continue with: {resume_command(run)}",)
        raise


def _train(run: Path, out: Console, json: bool, readings: int | Sequence[int] | None) -> None:
    trainer = Trainer(run)
    session, chosen = trainer.session, trainer.session.run.chosen
    if not session.ranks.leads:
        out.quiet, json = True, False
    report_resume(session, out)
    try:
        with Progress(out, chosen, session.step, session.ranks.count) as progress:
            trainer.readers.append(progress)
            if session.ranks.leads:
                trainer.readers.append(Readings(session, readings))
            result = trainer.run()
    except Interrupted as stop:
        out.print(str(stop))
        if json:
            print_json({"run": str(run), "step": stop.step, "steps": chosen.steps, "finished": False})
        raise SystemExit(128 + stop.signal) from None
    name = shlex.quote(str(run))
    held_out = round(result.tokens / result.share)
    label = session.task.config.counted
    coverage = (
        f"all {held_out:,} held-out {label}"
        if result.whole and result.share == 1
        else f"{result.tokens:,} of {held_out:,} held-out {label}"
        if result.whole
        else f"{result.tokens:,} of {held_out:,} held-out {label}, an even sample; `heddle eval {name}` scores all"
    )
    samples = trainer.samples(range(3), tokens=100)
    _print_outcome(trainer, out)
    loss = estimate(result.loss, result.standard_error)
    scores = ", ".join(filter(None, (f"validation loss {loss}", metrics(result.metrics))))
    out.print(f"\nfinished: {scores} over {coverage}\n")
    if result.note:
        out.print(f"{result.note}\n")
    for sample in samples:
        out.print(sample + "\n" + "-" * 40)
    hints = [*_task_hint(session, samples), ("evaluate", "eval"), ("count sizes", "count"), ("verify", "prove")]
    for action, command in hints:
        call = command if " " in command else f"heddle {command} {name}"
        out.print(f"{action + ':':15} {call}")
    if json:
        print_json(
            {
                "run": str(run),
                "step": session.step,
                "steps": chosen.steps,
                "finished": True,
                "stopped_early": session.stopped_early,
                "published": None if trainer.published is None else trainer.published.to_dict(),
                "vectors": None if chosen.vectors is None else chosen.vectors.to_dict(),
                "validation": result.to_dict(),
                "samples": samples,
            }
        )


def _task_hint(session: Session, samples: list[str]) -> list[tuple[str, str]]:
    """A hint at the command that uses the model for its task, if there is one."""
    config, run = session.run.config, session.run.directory
    task, name, (text, *others) = session.task.config, shlex.quote(str(run)), _sample_words(session)
    if isinstance(task, ChatConfig):
        return [("chat", f"heddle chat {name}")]
    if isinstance(task, TranslationConfig):
        return [("translate", f"heddle translate {name} --prompt {shlex.quote(text)}")]
    if isinstance(task, LabelSettings):
        pairs = "".join(f" --pair {shlex.quote(other)}" for other in others)
        return [("classify", f"heddle classify {name} {shlex.quote(text)}{pairs}")]
    if isinstance(task, ContrastiveConfig):
        return [("embed texts", f"heddle embed {name} {shlex.quote(text)}")]
    if isinstance(task, MaskedConfig):
        masked = f"{text} {mask_of(session.run.tokenizer, config.model.ids)}"
        return [("fill in masks", f"heddle fill {name} {shlex.quote(masked)}")]
    # Only a language model can continue a prompt.
    if config.model.encoder is None and task.fields == TEXT and task.head == "language":
        words = shlex.quote(" ".join("".join(samples[:1]).split()[:3]) or "The")
        return [("generate text", f"heddle generate {name} --prompt {words}")]
    return []


def _sample_words(session: Session) -> list[str]:
    """The first words of each field of a held-out record, or of the held-out text; the tokenizer knows these words."""
    validation, tokenizer = session.run.store.validation, session.run.tokenizer
    columns = (
        [column[0] for column in validation.texts.values()] if isinstance(validation, Records) else [validation.tokens]
    )
    special = set(tokenizer.special.values())
    texts = []
    for ids in columns:
        runs = (list(run) for is_special, run in groupby(ids[:64].tolist(), special.__contains__) if not is_special)
        texts.append(" ".join(tokenizer.decode(next(runs, [])).split()[:3]))
    return texts


def report_resume(session: Session, out: Console) -> None:
    """Print the state in which a run resumes: notes, damaged checkpoints, differences from the original machine."""
    run, opening = session.run.directory, session.opening
    for note in opening.notes:
        out.print(note)
    if opening.notes and not session.step:
        out.print(f"{run} has no intact checkpoint: starting from the beginning")
    for problem in opening.damaged:
        out.print(f"{run / problem}; it is restored from {opening.source or 'the beginning'}")
    for difference in opening.moved:
        out.print(f"{difference}; the result will not be bit-identical to that of the original machine")
    steps, best = session.run.chosen.steps, session.best
    if session.ranks.count > 1:
        out.print(f"{session.ranks.count} processes")
    if session.step == steps:
        command = f"heddle train --resume {shlex.quote(str(run))} steps={2 * steps}"
        out.print(f"all {steps} steps of {run} are done; to train longer: {command}")
    elif session.stopped_early and best is not None:
        out.print(
            f"{run} stopped early at step {session.step} of {steps}; to train longer: heddle train --resume "
            f"{shlex.quote(str(run))} steps={2 * steps}, or patience={2 * best.waited}"
        )
    elif session.step:
        out.print(f"resuming {run} at step {session.step} of {steps}")


def _print_outcome(trainer: Trainer, out: Console) -> None:
    """Print where training stopped early, and which weights were published if not simply the last."""
    session, published = trainer.session, trainer.published
    if session.stopped_early and session.best is not None:
        waited = pluralize(session.best.waited, "evaluation")
        steps = session.run.chosen.steps
        out.print(f"\nstopped early at step {session.step} of {steps}: no lower validation loss in {waited}")
    if published is not None and (published.kind, published.ema) != ("last", None):
        out.print(f"\npublished: {published}")


def plan_run(config: RunConfig, run: Path, out: Console, json: bool) -> None:
    """Print the plan of a run, prepared in a temporary directory."""
    data = config.data
    if data.store is not None and not Path(data.store).exists():  # a dry run reads a token store but does not write one
        config = config.model_copy(update={"data": data.model_copy(update={"store": None})})
    if number("RANK", 0):
        return  # rank 0 plans for all
    with tempfile.TemporaryDirectory() as folder, phases(out) as report:
        plan = prepare(config, Path(folder) / "run", report, ranks=process_count())
    out.print(describe_plan(plan, run) + "\nnothing was trained (--dry-run)")
    if json:
        print_json({"run": str(run), "sources": name_sources(config.data), **plan.to_dict()})
