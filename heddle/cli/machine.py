"""`heddle machine`."""

import json as notation
from typing import Any

from heddle.account.machine import available_memory, has_bf16, total_memory
from heddle.cli.output import console, pluralize, print_json, table
from heddle.model.measured import Measurements

LONGEST = 60  # characters of what was measured, in the table
GIB = 2**30


def machine(*, forget: bool = False, json: bool = False) -> None:
    """Show this machine and what was measured on it, which plans and choices rest on.

    A measurement is made once and kept, so that a command decides the same each time. One that was made while other programs had
    the cores is made again when they have left.

    Parameters
    ----------
    forget
        Remove all measurements of this machine, so that each is made again when it is next needed.
    json
        One JSON document on stdout.
    """
    measurements = Measurements.for_device()
    removed = measurements.forget() if forget else None
    rows = measurements.all()
    if json:
        memory = {"total_memory": total_memory(), "available_memory": available_memory()}
        more = {} if removed is None else {"removed": removed}
        print_json(
            {
                **measurements.machine,
                "bf16": has_bf16(),
                **memory,
                "folder": str(measurements.folder),
                **more,
                "measurements": [{name: value for name, value in row.items() if name != "machine"} for row in rows],
            }
        )
        return
    out = console()
    for name, value in _machine(measurements.machine):
        out.print(f"{name:<11} {value}", markup=False, highlight=False)
    if removed is not None:
        out.print(f"{pluralize(removed, 'measurement')} removed from {measurements.folder}", markup=False)
        return
    if not rows:
        out.print(f"Nothing has been measured yet; {measurements.folder} will hold it.", markup=False)
        return
    out.print(f"{pluralize(len(rows), 'measurement')} in {measurements.folder}:", markup=False)
    columns = ("measurement", "of", "answer", "while busy")
    out.print(
        table(columns, [(row["question"], _short(row["about"]), _short(row["answer"]), row["busy"]) for row in rows])
    )


def _machine(known: Any) -> list[tuple[str, str]]:
    """What the machine is, line by line."""
    units = {True: "with units for bf16", False: "without units for bf16", None: "units for bf16 unknown"}[has_bf16()]
    return [
        ("processor", f"{known['processor'].split(',')[0]}, {pluralize(known['cores'], 'core')}"),
        ("vectors", f"{known['vectors']}, {units}"),
        ("torch", known["torch"]),
        ("memory", f"{total_memory() / GIB:.1f} GiB, of which {available_memory() / GIB:.1f} are free"),
    ]


def _short(value: Any) -> str:
    """Plain data on one short line."""
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    elif isinstance(value, float):
        text = f"{value:,.4g}" if value < 1e6 else f"{value:.3g}"
    else:
        text = value if isinstance(value, str) else notation.dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
