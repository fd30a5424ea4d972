"""`heddle count` and `heddle presets`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heddle.account.render import render
from heddle.account.report import count as account_for
from heddle.account.report import preset_table, training_said
from heddle.account.resolve import changed
from heddle.account.trained import Trained, trained
from heddle.cli.output import RUNS, console, pluralize, print_json, table
from heddle.config.presets import preset
from heddle.convert.fitting import expressible
from heddle.weights.checkpoints import CONFIG
from heddle.weights.run import read_config


def count(
    name: str,
    /,
    *changes: str,
    batch: int = 1,
    length: int | None = None,
    all: bool = False,
    json: bool = False,
) -> None:
    """Parameters, FLOPs and memory of a model, itemised.

    Parameters
    ----------
    name
        A preset, a run, or a .toml or .json file that describes a model.
    changes
        `key=value`: settings to change, such as dim=4096 or decoder.depth=2.
    batch
        Rows of tokens in one pass.
    length
        Tokens in a row. Defaults to the model's context.
    all
        Show every table and every layer, instead of one line for equal layers.
    json
        One JSON document on stdout.
    """
    run = RUNS / name
    called, config = changed(str(run) if (run / CONFIG).is_file() else name, changes)
    report = account_for(config, batch, length, called)
    architecture, reasons = expressible(config, whole=json)
    found = None if changes else _trained(run if (run / CONFIG).is_file() else Path(name))
    if json:
        more = {} if found is None else {"trained": found._asdict()}
        print_json(report.to_dict() | {"export": {"architecture": architecture, "reasons": reasons}} | more)
        return
    console().print(*render(report, full=all), sep="\n")
    if found is not None:
        beside = f", {found.adapters:,} of them in adapters beside {pluralize(found.layers, 'layer')}" * bool(
            found.adapters
        )
        console().print(f"Training changed {found.total:,} parameters{beside}; {found.frozen:,} kept their values.")
    refused = "No Hugging Face family can express this model. The nearest:"
    console().print(f"Exportable as {architecture}." if architecture else refused)
    for reason in reasons:
        console().print(f"  {reason}", markup=False)
    if not all:
        console().print("Every layer, the lectures' sums, and more on memory: --all")


def _trained(run: Path) -> Trained | None:
    """What the training of a run changes, where that is not all of its model."""
    saved = read_config(run) if (run / CONFIG).is_file() else None
    found = None if saved is None or saved.train is None else trained(saved.model, saved.train)
    return found if found is not None and found.frozen else None


def presets(name: str | None = None, /, *, json: bool = False) -> None:
    """List the named models, or show one.

    Parameters
    ----------
    name
        The preset to show as TOML, with its training settings.
    json
        One JSON document on stdout.
    """
    if name is not None:
        config, training = preset(name), training_said(name)
        if json:
            print_json(config.to_dict() | ({"training": training} if training else {}))
        else:
            print(config.to_toml(), end="")
            for line in _training(training):
                print(f"# {line}")
        return
    rows = preset_table()
    if json:
        print_json([{key: row[key] for key in ("name", "family", "parameters")} for row in rows])
    else:
        console().print(
            table(["name", "family", "parameters"], [[row["name"], row["family"], row["parameters"]] for row in rows])
        )


def _training(said: Mapping[str, Any]) -> Iterator[str]:
    """A preset's training settings, one line each, printed as comments so that the output is a model file."""
    if "batch_tokens" in said:
        yield f"trained with batches of {said['sequences']:,} x {said['context']:,} = {said['batch_tokens']:,} tokens"
    if "learning_rate" in said:
        yield f"highest learning rate {said['learning_rate']:g}, by {said.get('optimizer', 'adamw')}"
