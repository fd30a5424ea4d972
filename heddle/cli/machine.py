"""`heddle machine` and `heddle bench`."""

import json as json_module
from pathlib import Path
from typing import Any

from heddle.account.machine import available_memory, has_bf16, total_memory
from heddle.cli.options import Device, Json
from heddle.cli.output import console, pluralize, print_json, table
from heddle.native.measured import Measurements
from heddle.weights.files import write_file

LONGEST = 60  # most characters of a table cell
GIB = 2**30


def machine(*, forget: bool = False, json: Json = False) -> None:
    """Show this machine, its cached measurements, on which plans depend, and its compiled decoding steps.

    A measurement is made once and cached, so that a command always makes the same choices. Measurements made while the CPU was
    busy are repeated once it is idle.

    Parameters
    ----------
    forget
        Delete this machine's measurements and compiled steps, so that each is made again when it is next needed.
    """
    measurements = Measurements.for_device()
    removed = measurements.forget() if forget else None
    rows, steps = measurements.all(), list(measurements.steps.glob("*.so"))
    if json:
        memory = {"total_memory": total_memory(), "available_memory": available_memory()}
        extra = {} if removed is None else {"removed": removed}
        print_json(
            {
                **measurements.machine,
                "bf16": has_bf16(),
                **memory,
                "folder": str(measurements.folder),
                "steps": {"parts": len(steps), "bytes": sum(file.stat().st_size for file in steps)},
                **extra,
                "measurements": [{name: value for name, value in row.items() if name != "machine"} for row in rows],
            }
        )
        return
    out = console()
    for name, value in _describe(measurements.machine):
        out.print(f"{name:<11} {value}")
    if removed is not None:
        out.print(f"{pluralize(removed, 'measurement')} removed from {measurements.folder}")
        return
    if steps:
        out.print(f"{pluralize(len(steps), 'compiled part')} of decoding steps in {measurements.steps}")
    if not rows:
        out.print(f"No measurements yet; they will be cached in {measurements.folder}.")
        return
    out.print(f"{pluralize(len(rows), 'measurement')} in {measurements.folder}:")
    columns = ("measurement", "of", "answer", "while busy")
    out.print(
        table(columns, [(row["question"], _format(row["about"]), _format(row["answer"]), row["busy"]) for row in rows])
    )


def bench(
    *,
    device: Device = "auto",
    only: list[str] | None = None,
    model: list[str] | None = None,
    precision: str = "auto",
    rounds: int | None = None,
    quick: bool = False,
    json: Path | None = None,
) -> None:
    """Measure this machine: matrix products and copies, then training and decoding beside other programs.

    Prints Markdown to paste into an issue; progress goes to stderr. Contenders take turns, with models of equal size: heddle as its
    commands run it, heddle's model in a plain compiled loop, and Hugging Face transformers if it is installed. Without options it
    takes up to 5 minutes on two cores, longer on a GPU, where larger models are measured.

    Parameters
    ----------
    only
        A part to measure: ceilings, training or decoding; may be repeated. Defaults to all.
    model
        A model to measure: gpt2-30m, llama-30m, gpt2-124m, llama-350m, llama-1b, a preset, a run or a model config; may be
        repeated. Defaults to those that suit the device.
    precision
        fp32, bf16 or auto: bf16 where the device has units for it.
    rounds
        Turns of each contender. Defaults to 5 on a GPU, 3 elsewhere.
    quick
        Measure less, without contenders that compile: under a minute on two cores.
    json
        Also write the result to this file, after every row; `complete` is false until the last.
    """
    from heddle.bench.report import Bench
    from heddle.bench.run import PARTS  # with everything that is measured
    from heddle.bench.run import bench as measure

    progress = console(as_json=True)
    saved: Bench | None = None

    def save(result: Bench) -> None:
        nonlocal saved
        saved = result
        if json is not None:
            write_file(json, (json_module.dumps(result.to_dict(), indent=2) + "\n").encode(), replace=True)

    try:
        measure(device, only or PARTS, model, precision, rounds, quick, progress.print, save)
    finally:  # also what was measured before Ctrl-C
        if saved is not None:
            print(saved.markdown(), end="", flush=True)


def _describe(machine: Any) -> list[tuple[str, str]]:
    """The machine as (label, value) rows."""
    bf16 = {True: "with units for bf16", False: "without units for bf16", None: "units for bf16 unknown"}[has_bf16()]
    return [
        ("processor", f"{machine['processor'].split(',')[0]}, {pluralize(machine['cores'], 'core')}"),
        ("vectors", f"{machine['vectors']}, {bf16}"),
        ("torch", machine["torch"]),
        ("memory", f"{total_memory() / GIB:.1f} GiB, of which {available_memory() / GIB:.1f} are free"),
    ]


def _format(value: Any) -> str:
    """JSON data on one line, truncated."""
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_format(item)}" for name, item in value.items())
    elif isinstance(value, float):
        text = f"{value:,.4g}" if value < 1e6 else f"{value:.3g}"
    else:
        text = value if isinstance(value, str) else json_module.dumps(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
