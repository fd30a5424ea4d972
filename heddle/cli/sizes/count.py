"""`heddle count` and `heddle presets`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heddle.account.render import render
from heddle.account.report import count as account_for
from heddle.account.report import preset_table, training_settings
from heddle.account.resolve import changed
from heddle.account.trained import Trained, trained
from heddle.cli.options import Json, Model
from heddle.cli.output import RUNS, console, pluralize, print_json, table
from heddle.config.presets import preset
from heddle.convert.fitting import expressible
from heddle.weights.checkpoints import CONFIG
from heddle.weights.run import read_config


def count(
    name: Model,
    /,
    *changes: str,
    batch: int = 1,
    length: int | None = None,
    all: bool = False,
    json: Json = False,
) -> None:
    """Count a model's parameters, FLOPs and memory.

    Parameters
    ----------
    changes
        Config overrides as key=value, such as dim=4096 or decoder.depth=2.
    batch
        Batch size of a forward pass.
    length
        Sequence length in tokens. Defaults to the model's context.
    all
        Show every table and every layer; otherwise, equal layers share one line.
    """
    run = RUNS / name
    label, config = changed(str(run) if (run / CONFIG).is_file() else name, changes)
    report = account_for(config, batch, length, label)
    architecture, reasons = expressible(config, all_families=json)
    training = None if changes else _trained(run if (run / CONFIG).is_file() else Path(name))
    if json:
        extra = {} if training is None else {"trained": training._asdict()}
        print_json(report.to_dict() | {"export": {"architecture": architecture, "reasons": reasons}} | extra)
        return
    console().print(*render(report, full=all), sep="\n")
    if training is not None:
        adapters = f", {training.adapters:,} of them in adapters on {pluralize(training.layers, 'layer')}" * bool(
            training.adapters
        )
        console().print(f"Training updated {training.total:,} parameters{adapters}; {training.frozen:,} were frozen.")
    message = "No Hugging Face architecture fits this model. The nearest:"
    console().print(f"Exportable as {architecture}." if architecture else message)
    for reason in reasons:
        console().print(f"  {reason}")
    if not all:
        console().print("Use --all for every layer, the lectures' formulas and memory details.")


def _trained(run: Path) -> Trained | None:
    """The parameters that a run trains, or None if it trains all of them."""
    saved = read_config(run) if (run / CONFIG).is_file() else None
    result = None if saved is None or saved.train is None else trained(saved.model, saved.train)
    return result if result is not None and result.frozen else None


def presets(name: str | None = None, /, *, json: Json = False) -> None:
    """List the model presets, or print one.

    Parameters
    ----------
    name
        The preset to print as TOML, with its training settings.
    """
    if name is not None:
        config, training = preset(name), training_settings(name)
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


def _training(settings: Mapping[str, Any]) -> Iterator[str]:
    """A preset's training settings, one line each. They are printed as comments, so that the output is a model config."""
    if "batch_tokens" in settings:
        yield f"trained with batches of {settings['sequences']:,} x {settings['context']:,} = {settings['batch_tokens']:,} tokens"
    if "learning_rate" in settings:
        yield f"highest learning rate {settings['learning_rate']:g}, by {settings.get('optimizer', 'adamw')}"
