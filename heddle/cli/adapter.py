"""`heddle adapter export` and `heddle adapter merge`."""

from pathlib import Path

from heddle.cli.output import console, find_run, new_run, pluralize, print_json
from heddle.convert.peft import export_adapter, merge_adapter


def export(run: str, directory: Path, /, *, json: bool = False) -> None:
    """Write a run's adapter, without its model, as a directory that peft loads.

    Parameters
    ----------
    run
        A run directory that trained with [train.lora], or its name in runs/.
    directory
        The new directory.
    json
        One JSON document on stdout.
    """
    result = export_adapter(find_run(run), directory)
    if json:
        print_json({"directory": str(directory), **result})
        return
    modules = pluralize(result["modules"], "module")
    console().print(
        f"{directory}: {result['family']}, {modules} of rank {result['rank']} or less, "
        f"{result['parameters']:,} parameters; heddle export writes the base",
        markup=False,
    )


def merge(base: str, adapter: str, run: str, /, *, json: bool = False) -> None:
    """Merge an adapter into the weights of its base, as a new run.

    Parameters
    ----------
    base
        The run whose weights the adapter was trained beside, or its name in runs/.
    adapter
        A run that trained with [train.lora], its adapter.safetensors, or a directory that peft wrote.
    run
        The new run's directory, or its name in runs/.
    json
        One JSON document on stdout.
    """
    target = new_run(run)
    given = adapter if Path(adapter).exists() else str(find_run(adapter))
    result = merge_adapter(find_run(base), given, target)
    if json:
        print_json({"run": str(target), **result})
        return
    out = console()
    if not result["checked"]:
        out.print(
            f"{given} does not say which weights it was trained beside: only names and shapes were compared",
            markup=False,
        )
    out.print(f"{target}: {pluralize(result['layers'], 'layer')} of {base} changed", markup=False)
