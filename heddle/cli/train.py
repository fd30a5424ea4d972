"""`heddle train`."""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from heddle.cli.progress import Progress
from heddle.cli.say import console, counted, document, duration, find_run, new_run, phases, size
from heddle.config.base import known_as, parse_overrides, read_table, set_path, unknown_key
from heddle.config.run import Chosen, RunConfig
from heddle.errors import HeddleError
from heddle.train.plan import Plan
from heddle.train.prepare import name_sources, prepare
from heddle.train.trainer import Interrupted, Trainer, resume_command

SECTIONS = {name: field.annotation.model_fields for name, field in RunConfig.model_fields.items()}  # type: ignore[union-attr]


def train(
    *words: str, name: str | None = None, resume: str | None = None, dry_run: bool = False, json: bool = False
) -> None:
    """Train a model on text.

    Parameters
    ----------
    words
        Sources (files, folders, globs; .txt .md .jsonl, also .gz), at most one run file (.toml), and key=value settings such
        as depth=4, context=128, steps=2000, minutes=10, tokenizer=characters, preset=gpt2-small. Without sources: the
        Python standard library's own.
    name
        The run's directory; without one, the next number in runs/.
    resume
        Go on with this run.
    dry_run
        Say what would happen and stop.
    json
        One JSON document on stdout.
    """
    out = console(json, None if dry_run else "training continues without it")
    if resume is not None:
        if words or name or dry_run:
            raise HeddleError("--resume goes on with a run as it was begun; it takes no sources, settings or --name")
        _train(find_run(resume), out, json)
        return
    config, run = read_words(words), new_run(name)
    if dry_run:
        _dry_run(config, run, out, json)
        return
    with phases(out) as tell:
        planned = prepare(config, run, tell)
    out.print(_numbers(planned, run), markup=False)
    _train(run, out, json)


def read_words(words: tuple[str, ...]) -> RunConfig:
    """Sources, a run file and settings as one config; settings win over the file."""
    # os.path says False where Path complains: a setting may be longer than any file's name.
    sources = [word for word in words if "=" not in word or os.path.exists(word)]
    settings = parse_overrides(word for word in words if word not in sources)
    files = [word for word in sources if word.endswith(".toml")]
    if len(files) > 1:
        raise HeddleError(f"one run file at a time; got {' and '.join(files)}")
    data: dict[str, Any] = read_table(files[0]) if files else {}
    texts = [word for word in sources if word not in files]
    if texts:
        set_path(data, "data.sources", texts)
    for key, value in settings.items():
        set_path(data, full_key(key), value)
    return RunConfig.of(data, where=files[0] if files else "settings")


def full_key(key: str) -> str:
    """`steps` as `train.steps`: every field's name stands in one section only, so the section may be left out."""
    first = key.split(".")[0]
    if first in SECTIONS:
        return key
    for section, fields in SECTIONS.items():
        if known_as(first, None, fields)[0] in fields:
            return f"{section}.{key}"
    raise unknown_key(key, [field for fields in SECTIONS.values() for field in fields])


def _train(run: Path, out: Console, json: bool) -> None:
    try:
        _train_to_the_end(run, out, json)
    except KeyboardInterrupt as stop:  # before the first step or after the last, or by a second signal
        stop.args = (f"stopped; continue with: {resume_command(run)}",)
        raise


def _train_to_the_end(run: Path, out: Console, json: bool) -> None:
    trainer = Trainer(run)
    chosen = trainer.chosen
    for note in trainer.notes:
        out.print(note, markup=False)
    if trainer.notes and not trainer.step:
        out.print(f"{run} has no sound checkpoint left, so it begins anew", markup=False)
    for problem in trainer.damaged:
        out.print(f"{run / problem}; it is restored from {trainer.source or 'the beginning'}", markup=False)
    if trainer.step:
        out.print(f"going on with {run} at step {trainer.step} of {chosen.steps}", markup=False)
    try:
        with Progress(out, chosen, trainer.step) as progress:
            trainer.readers.append(progress)
            result = trainer.run()
    except Interrupted as stop:
        out.print(str(stop), markup=False)
        if json:
            document({"run": str(run), "step": stop.step, "steps": chosen.steps, "finished": False})
        raise SystemExit(128 + stop.signal) from None
    name = shlex.quote(str(run))
    held_out = len(trainer.store.validation.tokens) - 1
    samples = [trainer.sample(seed, tokens=100) for seed in range(3)]
    out.print(
        f"\nfinished: validation loss {result.loss:.4f}, perplexity {result.perplexity:.2f}, "
        f"{result.bits_per_byte:.4f} bits per byte over {result.tokens:,} of {held_out:,} held-out tokens\n",
        markup=False,
    )
    for sample in samples:
        out.print(sample + "\n" + "-" * 40, markup=False)
    out.print(
        f"let it write:   heddle generate {name} --prompt {_opening(samples[0])}\n"
        f"score text:     heddle eval {name}\n"
        f"look at sizes:  heddle count {name}\n"
        f"prove it:       heddle prove {name}",
        markup=False,
    )
    if json:
        document(
            {
                "run": str(run),
                "step": chosen.steps,
                "steps": chosen.steps,
                "finished": True,
                "vectors": _vectors(chosen),
                "validation": asdict(result),
                "samples": samples,
            }
        )


def _vectors(chosen: Chosen) -> dict[str, Any] | None:
    """What a file of vectors knew, for programs."""
    return None if chosen.vectors is None else chosen.vectors.to_dict()


def _opening(text: str) -> str:
    """A few words of a text's first line, quoted for a shell."""
    line = next((line for line in text.splitlines() if line.strip()), "The")
    return shlex.quote(" ".join(line.split()[:3]))


def _numbers(planned: Plan, run: Path) -> str:
    chosen, model = planned.chosen, planned.model
    depth = model.last()[1].depth
    return (
        f"run {run}: {planned.parameters:,} parameters (depth {depth}, width {model.dim}, context {model.context}, "
        f"{counted(model.vocab_size, 'id')}) on {counted(planned.train_tokens, 'token')}, "
        f"{planned.validation_tokens:,} held out\n"
        f"{counted(chosen.steps, 'step')} of {chosen.batch} x {model.context} = {chosen.batch * model.context:,} tokens "
        f"({planned.epochs:.1f} times through the text), learning rate {chosen.learning_rate:.2g}, "
        f"{chosen.precision} on {chosen.device}, "
        f"{counted(chosen.threads, 'thread')}{', compiled' if chosen.compile else ''}, "
        f"{chosen.tokens_per_second:,.0f} tokens/s measured, about {duration(planned.minutes * 60)} and {size(planned.memory)}"
    )


def _dry_run(config: RunConfig, run: Path, out: Console, json: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, phases(out) as tell:
        planned = prepare(config, Path(folder) / "run", tell)
    out.print(_numbers(planned, run) + "\nnothing was trained (--dry-run)", markup=False)
    if json:
        document(
            {
                "run": str(run),
                "sources": name_sources(config.data),
                "parameters": planned.parameters,
                "train_tokens": planned.train_tokens,
                "validation_tokens": planned.validation_tokens,
                "memory": planned.memory,
                "minutes": planned.minutes,
                "model": planned.model.to_dict(),
                "chosen": planned.chosen.to_dict(),
            }
        )
