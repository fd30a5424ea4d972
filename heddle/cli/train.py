"""`heddle train`."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from heddle.cli.keys import SECTIONS
from heddle.cli.options import Device, Json
from heddle.cli.output import console, find_run, new_run
from heddle.config.base import parse_overrides, read_table, resolve_alias, set_path
from heddle.config.key_names import unknown_keys
from heddle.config.problems import Where, origin
from heddle.config.run import RunConfig
from heddle.config.sweep import Variant, variants
from heddle.errors import HeddleError, together


def train(
    *words: str,
    name: str | None = None,
    resume: str | None = None,
    device: Device | None = None,
    seeds: int | None = None,
    readings: str | None = None,
    dry_run: bool = False,
    json: Json = False,
) -> None:
    """Train a model on text.

    A list of values for a setting, such as learning_rate=[1e-3,3e-3], trains one run per value or combination of values, one at
    a time, and compares them at the end. To resume a series, repeat the command with its --name: finished runs are kept, and an
    interrupted one resumes from its last checkpoint.

    Parameters
    ----------
    words
        Sources (files, folders, globs, hf:NAME, -), at most one run file (.toml), and key=value settings such as depth=4 or
        minutes=10, listed below. The sources default to the Python standard library's source code.
    name
        The run's directory, or its name in runs/. Defaults to the next number in runs/.
    resume
        Resume this run from its last checkpoint, bit-identical to an uninterrupted run; on cuda with deterministic=true. These
        settings may change: steps, epochs, minutes, threads, evaluate_every, save_every, keep, patience, start_timeout,
        step_timeout, checkpoint_activations, accumulate.
    seeds
        Train this many runs that differ only in their seed, and report the mean and spread of the final validation loss.
    readings
        Save layer and head statistics for the page of `heddle look`: 100 saves them every 100 steps, 10,100,1000 after these
        steps. A resumed run keeps its own setting.
    dry_run
        Print the plan without training.
    """
    reading_steps = None if readings is None else parse_steps(readings)
    out = console(json, None if dry_run else "training continues")
    if resume is not None:
        if name or seeds is not None or dry_run or any("=" not in word for word in words):
            raise HeddleError(
                "--resume accepts only --device and settings such as steps=4000, not sources or other options"
            )
        settings, problems = full_keys(parse_overrides(words).items())
        if problems:
            raise HeddleError(*problems)
        from heddle.cli.training import resume_run

        resume_run(find_run(resume), settings, out, json, reading_steps, device)
        return
    if device is not None:
        words = (*words, f"device={device}")
    series, run = parse_series(words, seeds), new_run(name)
    # Imported late: these load torch.
    if series[0].settings:
        from heddle.cli.series import plan_series, train_series

        if dry_run:
            plan_series(series, run, out, json)
        else:
            train_series(series, run, out, json, reading_steps)
    else:
        from heddle.cli.training import begin, plan_run

        if dry_run:
            plan_run(series[0].config, run, out, json)
        else:
            begin(series[0].config, run, out, json, reading_steps)


def parse_steps(text: str) -> int | list[int]:
    """Parse --readings: `100` is an interval, `10,100` a list of steps."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words):
        raise HeddleError(f"--readings {text}: use an interval such as 100, or a list of steps such as 10,100,1000")
    if text.strip() == "0":
        raise HeddleError("--readings 0: the interval must be at least 1")
    return int(words[0]) if len(words) == 1 else [int(word) for word in words]


def parse_config(words: tuple[str, ...]) -> RunConfig:
    """Parse sources, a run file and settings into a config; settings override the file."""
    table, where, problems = _parse(words)
    return together(problems, lambda: _resolve_start(RunConfig.of(table, where)))


def parse_series(words: tuple[str, ...], seeds: int | None = None) -> list[Variant]:
    """Parse arguments into one config per combination of setting values and seeds."""
    table, where, problems = _parse(words)
    series = together(problems, lambda: variants(table, seeds, where))
    return [Variant(variant.settings, _resolve_start(variant.config)) for variant in series]


def _parse(words: tuple[str, ...]) -> tuple[dict[str, Any], Where, list[str]]:
    """Parse arguments into one table of settings, with its place in error messages, and the problems with its keys."""
    sources, file, settings = split_words(words, "run file")
    data: dict[str, Any] = {} if file is None else read_table(file)
    if not isinstance(data.get("task", {}), dict):
        data["task"] = {"kind": data["task"]}
    values, problems = full_keys([("sources", sources)] * bool(sources) + list(settings.items()))
    # Setting a kind clears its table, so kinds come before their keys.
    for path in sorted(values, key=lambda path: not path.endswith(".kind")):
        set_path(data, path, values[path])
    return data, origin(file, values), problems


def split_words(words: Sequence[str], kind: str) -> tuple[list[str], str | None, dict[str, Any]]:
    """Split arguments into sources, at most one .toml file, which errors call `kind`, and settings."""
    # os.path.exists returns False where Path raises: a setting may be longer than any file name.
    arguments = [word for word in words if "=" not in word or os.path.exists(word)]
    settings = parse_overrides(word for word in words if word not in arguments)
    files = [word for word in arguments if word.endswith(".toml")]
    if len(files) > 1:
        raise HeddleError(f"only one {kind} is allowed; got {' and '.join(files)}")
    return [word for word in arguments if word not in files], next(iter(files), None), settings


def _resolve_start(config: RunConfig) -> RunConfig:
    """Resolve `start` to a run directory: runs in runs/ may be given by name."""
    if config.model.start is None:
        return config
    model = config.model.model_copy(update={"start": str(find_run(config.model.start))})
    return config.model_copy(update={"model": model})


def full_keys(settings: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Values by the path of their key, and the problems with the keys: they are unknown, or the same."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    unknown, repeated = [], []
    for key, value in settings:
        path = "task.kind" if key == "task" else _full_key(key)
        text = ", ".join(value) if key == "sources" and isinstance(value, list) else f"{key}={value}"
        if path is None:
            unknown.append(key)
        elif path in values:
            repeated.append(f"{spelled[path]} and {key}={value} are the same setting; give it once")
        else:
            values[path], spelled[path] = value, text
    known = [each for name, fields in _fields().items() for field in fields for each in (field, f"{name}.{field}")]
    return values, [*unknown_keys(unknown, known), *repeated]


def _full_key(key: str) -> str | None:
    """The key with its section, or None if no section has it."""
    first = key.split(".")[0]
    if first in SECTIONS:
        return key
    sections = (name for name, fields in _fields().items() if resolve_alias(first, None, fields)[0] in fields)
    return next((f"{section}.{key}" for section in sections), None)


def _fields() -> dict[str, list[str]]:
    """The fields of each section."""
    return {name: [key for config in configs for key in config.model_fields] for name, configs in SECTIONS.items()}
