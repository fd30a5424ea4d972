"""`heddle train`."""

import os
from typing import Any

from heddle.cli.keys import SECTIONS
from heddle.cli.output import console, find_run, new_run
from heddle.config.base import parse_overrides, read_table, resolve_alias, set_path, unknown_key
from heddle.config.run import RunConfig
from heddle.config.sweep import Variant, variants
from heddle.errors import HeddleError


def train(
    *words: str,
    name: str | None = None,
    resume: str | None = None,
    device: str | None = None,
    seeds: int | None = None,
    readings: str | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Train a model on text.

    Several values for a setting, such as learning_rate=[1e-3,3e-3], train a run with each of them, or with each combination,
    one at a time, and compare them at the end. To continue such a series, repeat the command with its --name: runs that
    have finished are kept, and one that was stopped continues from its last checkpoint.

    Parameters
    ----------
    words
        Sources (files, folders, globs, hf:NAME, -), at most one run file (.toml), and key=value settings
        such as depth=4 or minutes=10, all listed below. The sources default to the Python standard library's.
    name
        The run's directory, or its name in runs/. Defaults to the next number there.
    resume
        Continue this run from its last checkpoint, bit for bit as if it had never stopped; or with other steps, epochs, minutes,
        threads, evaluate_every, save_every, keep, patience or checkpoint_activations.
    device
        auto, cpu, cuda or mps; auto takes cuda or mps if available.
    seeds
        Train this many runs that differ only in their seed, and print the mean and spread of the final validation loss.
    readings
        Save what the layers and heads do, for the page of `heddle look`: every 100 steps with 100, after these steps with
        10,100,1000. A run that is continued goes on with its own.
    dry_run
        Print the plan and stop.
    json
        One JSON document on stdout.
    """
    at = None if readings is None else read_steps(readings)
    out = console(json, None if dry_run else "training continues without it")
    if resume is not None:
        if name or device or seeds is not None or dry_run or any("=" not in word for word in words):
            raise HeddleError(
                "--resume continues a run: it takes settings such as steps=4000, but no sources or other flags"
            )
        settings = {full_key(key): value for key, value in parse_overrides(words).items()}
        from heddle.cli.training import carry_on

        carry_on(find_run(resume), settings, out, json, at)
        return
    if device is not None:
        words = (*words, f"device={device}")
    found, run = read_series(words, seeds), new_run(name)
    # Imported late: these load torch.
    if found[0].settings:
        from heddle.cli.series import train_series, try_series

        if dry_run:
            try_series(found, run, out, json)
        else:
            train_series(found, run, out, json, at)
    else:
        from heddle.cli.training import begin, try_out

        if dry_run:
            try_out(found[0].config, run, out, json)
        else:
            begin(found[0].config, run, out, json, at)


def read_steps(text: str) -> int | list[int]:
    """`100` as a number of steps, `10,100` as steps.

    Raises:
        HeddleError: it is neither.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words):
        raise HeddleError(f"--readings {text}: give a number of steps, such as 100, or steps, such as 10,100,1000")
    if text.strip() == "0":
        raise HeddleError("--readings 0: a reading every so many steps needs at least 1")
    return int(words[0]) if len(words) == 1 else [int(word) for word in words]


def read_words(words: tuple[str, ...]) -> RunConfig:
    """Sources, a run file and settings as one config; settings override the file."""
    return _with_start(RunConfig.of(*_table(words)))


def read_series(words: tuple[str, ...], seeds: int | None = None) -> list[Variant]:
    """The same as one config for each combination of the values that settings have, and for each seed."""
    table, where = _table(words)
    return [Variant(each.settings, _with_start(each.config)) for each in variants(table, seeds, where)]


def _table(words: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """Sources, a run file and settings as one table, and what to call it in errors."""
    # os.path returns False where Path raises: a setting may be longer than any file name.
    sources = [word for word in words if "=" not in word or os.path.exists(word)]
    settings = parse_overrides(word for word in words if word not in sources)
    files = [word for word in sources if word.endswith(".toml")]
    if len(files) > 1:
        raise HeddleError(f"one run file at a time; got {' and '.join(files)}")
    data: dict[str, Any] = read_table(files[0]) if files else {}
    if not isinstance(data.get("task", {}), dict):
        data["task"] = {"kind": data["task"]}
    texts = [word for word in sources if word not in files]
    said: dict[str, str] = {}
    found: dict[str, Any] = {}
    for key, value in [("sources", texts)] * bool(texts) + list(settings.items()):
        path = "task.kind" if key == "task" else full_key(key)
        if path in said:
            raise HeddleError(f"{said[path]} and {key}={value} are the same setting; give it once")
        said[path] = ", ".join(texts) if value is texts else f"{key}={value}"
        found[path] = value
    # Another kind clears its table, so kinds come before what they have.
    for path in sorted(found, key=lambda path: not path.endswith(".kind")):
        set_path(data, path, found[path])
    return data, files[0] if files else "settings"


def _with_start(config: RunConfig) -> RunConfig:
    """The same config; a run in runs/ may be named without its folder, as elsewhere."""
    if config.model.start is None:
        return config
    model = config.model.model_copy(update={"start": str(find_run(config.model.start))})
    return config.model_copy(update={"model": model})


def full_key(key: str) -> str:
    """`steps` as `train.steps`: every field is in one section only, so the section may be left out."""
    first = key.split(".")[0]
    if first in SECTIONS:
        return key
    sections = {name: [key for config in configs for key in config.model_fields] for name, configs in SECTIONS.items()}
    for section, fields in sections.items():
        if resolve_alias(first, None, fields)[0] in fields:
            return f"{section}.{key}"
    raise unknown_key(key, [field for fields in sections.values() for field in fields])
