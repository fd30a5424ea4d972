"""`heddle count` and `heddle presets`."""

from heddle.account.render import render
from heddle.account.report import count as account_for
from heddle.account.report import preset_table
from heddle.account.resolve import resolve
from heddle.cli.say import RUNS, console, document, table
from heddle.config.presets import preset


def count(name: str, /, *, batch: int = 1, length: int | None = None, json: bool = False) -> None:
    """Parameters, FLOPs and memory of a model, itemised.

    Parameters
    ----------
    name
        A preset, a run, or a .toml or .json file that describes a model.
    batch
        Rows of tokens in a pass.
    length
        Tokens in a row; without it, the model's context.
    json
        One JSON document on stdout.
    """
    run = RUNS / name
    called, config = resolve(str(run) if (run / "config.json").is_file() else name)
    report = account_for(config, batch, length, called)
    if json:
        document(report.to_dict())
    else:
        console().print(*render(report), sep="\n")


def presets(name: str | None = None, /, *, json: bool = False) -> None:
    """List the named models, or show one.

    Parameters
    ----------
    name
        The preset to show as TOML.
    json
        One JSON document on stdout.
    """
    if name is not None:
        config = preset(name)
        if json:
            document(config.to_dict())
        else:
            print(config.to_toml(), end="")
        return
    rows = preset_table()
    if json:
        document([{key: row[key] for key in ("name", "family", "parameters")} for row in rows])
    else:
        console().print(
            table(["name", "family", "parameters"], [[row["name"], row["family"], row["parameters"]] for row in rows])
        )
