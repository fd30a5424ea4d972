"""The work of `heddle train`. It is not in `train.py`, which stays light so that the help appears at once."""

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from heddle.cli.output import duration, estimate, metrics, phases, pluralize, print_json, size
from heddle.cli.progress import Progress
from heddle.config.run import RunConfig
from heddle.config.saved import Chosen
from heddle.config.tasks import ChatConfig, ContrastiveConfig, LabelSettings, MaskedConfig, TranslationConfig
from heddle.config.train import TrainConfig
from heddle.data.raw import TEXT
from heddle.data.records import Records
from heddle.look.readings import Readings
from heddle.runs.extend import extend
from heddle.runs.plan import Plan
from heddle.runs.prepare import name_sources, prepare
from heddle.runs.session import Session
from heddle.runs.trainer import Interrupted, Trainer, resume_command
from heddle.train.model_selection import describe
from heddle.train.ranks import join_ranks
from heddle.weights.special_tokens import mask_of


def begin(config: RunConfig, run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None) -> None:
    """Prepare a run and train it. Under torchrun, rank 0 prepares it for all."""
    ranks = join_ranks()
    if ranks.leads:
        with phases(out) as tell:
            planned = prepare(config, run, tell)
        out.print(_numbers(planned, run, config.with_tuning().train), markup=False)
    train_to_the_end(Path(ranks.share(str(run))), out, json, readings)


def carry_on(
    run: Path, settings: dict[str, Any], out: Console, json: bool, readings: int | Sequence[int] | None = None
) -> None:
    """Continue a run, with other settings if there are any."""
    ranks = join_ranks()
    if settings and ranks.leads:
        for line in extend(run, settings):
            out.print(line, markup=False)
    train_to_the_end(Path(ranks.share(str(run))), out, json, readings)


def train_to_the_end(run: Path, out: Console, json: bool, readings: int | Sequence[int] | None = None) -> None:
    """Train a run from its last checkpoint to its end, with readings at the chosen steps."""
    try:
        _train(run, out, json, readings)
    except KeyboardInterrupt as stop:  # before the first step, after the last, or from a second signal
        stop.args = (f"stopped; continue with: {resume_command(run)}",)
        raise


def _train(run: Path, out: Console, json: bool, readings: int | Sequence[int] | None) -> None:
    trainer = Trainer(run)
    session, chosen = trainer.session, trainer.session.run.chosen
    if not session.ranks.leads:
        out.quiet, json = True, False
    report_resume(session, out)
    try:
        with Progress(out, chosen, session.step) as progress:
            trainer.readers.append(progress)
            if session.ranks.leads:
                trainer.readers.append(Readings(session, readings))
            result = trainer.run()
    except Interrupted as stop:
        out.print(str(stop), markup=False)
        if json:
            print_json({"run": str(run), "step": stop.step, "steps": chosen.steps, "finished": False})
        raise SystemExit(128 + stop.signal) from None
    name = shlex.quote(str(run))
    held_out = round(result.tokens / result.share)
    what = session.task.config.counted
    over = (
        f"all {held_out:,} held-out {what}"
        if result.whole and result.share == 1
        else f"{result.tokens:,} of {held_out:,} held-out {what}"
        if result.whole
        else f"{result.tokens:,} of {held_out:,} held-out {what}, an even sample; `heddle eval {name}` scores all"
    )
    samples = trainer.samples(range(3), tokens=100)
    _tell_outcome(trainer, out)
    loss = estimate(result.loss, result.standard_error)
    said = ", ".join(filter(None, (f"validation loss {loss}", metrics(result.metrics))))
    out.print(f"\nfinished: {said} over {over}\n", markup=False)
    if result.note:
        out.print(f"{result.note}\n", markup=False)
    for sample in samples:
        out.print(sample + "\n" + "-" * 40, markup=False)
    hints = [*_asking(session, samples), ("score text", "eval"), ("count sizes", "count"), ("prove it", "prove")]
    for what, command in hints:
        said = command if " " in command else f"heddle {command} {name}"
        out.print(f"{what + ':':15} {said}", markup=False)
    if json:
        print_json(
            {
                "run": str(run),
                "step": session.step,
                "steps": chosen.steps,
                "finished": True,
                "stopped_early": session.stopped_early,
                "published": None if trainer.published is None else trainer.published.to_dict(),
                "vectors": _vectors(chosen),
                "validation": result.to_dict(),
                "samples": samples,
            }
        )


def _asking(session: Session, samples: list[str]) -> list[tuple[str, str]]:
    """What the run is for, and the command that asks it; none where no command does."""
    config, run = session.run.config, session.run.directory
    task, name, (text, *others) = session.task.config, shlex.quote(str(run)), _texts(session)
    if isinstance(task, ChatConfig):
        return [("talk with it", f"heddle chat {name}")]
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
    # A prompt can only be continued by a model that learned to continue text.
    if config.model.encoder is None and task.fields == TEXT and task.head == "language":
        opening = _opening(samples[0] if samples else "")
        return [("generate text", f"heddle generate {name} --prompt {opening}")]
    return []


def _texts(session: Session) -> list[str]:
    """The first words of each text of a held-out record, or of the held-out text: words that the tokenizer knows."""
    held, tokenizer = session.run.store.validation, session.run.tokenizer
    found = [column[0] for column in held.texts.values()] if isinstance(held, Records) else [held.tokens]
    special = set(tokenizer.special.values())
    said = []
    for ids in found:
        runs = (list(run) for known, run in groupby(ids[:64].tolist(), special.__contains__) if not known)
        said.append(" ".join(tokenizer.decode(next(runs, [])).split()[:3]))
    return said


def report_resume(session: Session, out: Console) -> None:
    """Say what was found where a run continues."""
    run, opening = session.run.directory, session.opening
    for note in opening.notes:
        out.print(note, markup=False)
    if opening.notes and not session.step:
        out.print(f"{run} has no undamaged checkpoint left, so it starts from the beginning", markup=False)
    for problem in opening.damaged:
        out.print(f"{run / problem}; it is restored from {opening.source or 'the beginning'}", markup=False)
    for difference in opening.moved:
        out.print(f"{difference}; the result will not be bit-equal to that of the machine it started on", markup=False)
    steps, best = session.run.chosen.steps, session.best
    if session.ranks.count > 1:
        out.print(f"{session.ranks.count} processes train it together", markup=False)
    if session.step == steps:
        more = f"heddle train --resume {shlex.quote(str(run))} steps={2 * steps}"
        out.print(f"all {steps} steps of {run} are done; to train longer: {more}", markup=False)
    elif session.stopped_early and best is not None:
        out.print(
            f"{run} stopped early at step {session.step} of {steps}; to train longer: heddle train --resume "
            f"{shlex.quote(str(run))} steps={2 * steps}, or patience={2 * best.waited}",
            markup=False,
        )
    elif session.step:
        out.print(f"continuing {run} at step {session.step} of {steps}", markup=False)


def _tell_outcome(trainer: Trainer, out: Console) -> None:
    """Say where training stopped early, and which weights were published if they are not simply the last."""
    session, published = trainer.session, trainer.published
    if session.stopped_early and session.best is not None:
        waited = pluralize(session.best.waited, "evaluation")
        steps = session.run.chosen.steps
        out.print(
            f"\nstopped early at step {session.step} of {steps}: no lower validation loss in {waited}", markup=False
        )
    if published is not None and (published.kind, published.ema) != ("last", None):
        out.print(f"\npublished: {published}", markup=False)


def _vectors(chosen: Chosen) -> dict[str, Any] | None:
    """What was found in a file of vectors, for programs."""
    return None if chosen.vectors is None else chosen.vectors.to_dict()


def _opening(text: str) -> str:
    """A few words of a text's first line, quoted for a shell."""
    line = next((line for line in text.splitlines() if line.strip()), "The")
    return shlex.quote(" ".join(line.split()[:3]))


def _numbers(planned: Plan, run: Path, train: TrainConfig) -> str:
    chosen, model = planned.chosen, planned.model
    depth = " + ".join(str(stack.depth) for stack in model.stacks().values())
    changed, whole = planned.trained, pluralize(planned.parameters, "parameter")
    frozen = f"{changed.frozen:,} of the {whole} are frozen"
    if train.lora is not None:
        frozen = (
            f"{changed.total:,} parameters are trained ({changed.total / planned.parameters:.2%}), {changed.adapters:,} of them "
            f"in adapters of rank {train.lora.rank} beside {pluralize(changed.layers, 'layer')}; {frozen}"
        )
    recomputed = "activations are checkpointed"
    cut = "".join(f", {part}" for part in planned.cut)
    started = (
        "" if chosen.start is None else f"starting from the weights of {chosen.start.run}{cut}, with {train.optimizer}"
    )
    export = "" if chosen.start is None else f"the trained model {planned.exported.sentence()}"
    more = (
        [started, export]
        + [frozen] * bool(changed.frozen)
        + [recomputed] * train.checkpoint_activations
        + [describe(train)]
    )
    if chosen.batch_tokens is not None:
        sizes, what = f"about {planned.tokens_per_step:,} tokens", "records"
    elif planned.tokens_per_step == chosen.batch * model.context:
        sizes, what = f"{chosen.batch} x {model.context} = {planned.tokens_per_step:,} tokens", "text"
    else:
        sizes, what = f"{pluralize(chosen.batch, 'example')}, about {planned.tokens_per_step:,} tokens", "data"
    return (
        f"run {run}: {planned.parameters:,} parameters (depth {depth}, width {model.dim}, context {model.context}, "
        f"{pluralize(model.vocab_size, 'id')}) on {pluralize(planned.train_tokens, 'token')}, "
        f"{planned.validation_tokens:,} held out\n"
        f"{pluralize(chosen.steps, 'step')} of {sizes} "
        f"({planned.epochs:.1f} times through the {what}), learning rate {chosen.learning_rate:.2g}, "
        f"{chosen.precision} on {chosen.device}, "
        f"{pluralize(chosen.threads, 'thread')}{', compiled' if chosen.compile else ''}, "
        f"{chosen.tokens_per_second:,.0f} tokens/s measured, about {duration(planned.minutes * 60)} and {size(planned.memory)}"
        + "".join(f"\n{line}" for line in more if line)
    )


def try_out(config: RunConfig, run: Path, out: Console, json: bool) -> None:
    """Print what `begin` would do, using a temporary directory."""
    data = config.data
    if data.store is not None and not Path(data.store).exists():  # it is read, but not written
        config = config.model_copy(update={"data": data.model_copy(update={"store": None})})
    with tempfile.TemporaryDirectory() as folder, phases(out) as tell:
        planned = prepare(config, Path(folder) / "run", tell)
    out.print(_numbers(planned, run, config.with_tuning().train) + "\nnothing was trained (--dry-run)", markup=False)
    if json:
        print_json(
            {
                "run": str(run),
                "sources": name_sources(config.data),
                "parameters": planned.parameters,
                "frozen": planned.trained.frozen,
                "adapters": planned.trained.adapters,
                "train_tokens": planned.train_tokens,
                "validation_tokens": planned.validation_tokens,
                "memory": planned.memory,
                "minutes": planned.minutes,
                "epochs": planned.epochs,
                "export": asdict(planned.exported),
                "cut": list(planned.cut),
                "model": planned.model.to_dict(),
                "chosen": planned.chosen.to_dict(),
            }
        )
