"""`heddle adapter export` and `heddle adapter merge`."""

from pathlib import Path

from heddle.cli.output import console, find_run, new_run, pluralize, print_json
from heddle.convert.peft import export_adapter, merge_adapter


def export(run: str, directory: Path, /, *, json: bool = False) -> None:
    """Export a run's adapter, without its base model, to a directory that peft can load.

    Parameters
    ----------
    run
        A run trained with [train.lora], or its name in runs/.
    directory
        Output directory, which must not exist.
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
        f"{result['parameters']:,} parameters; `heddle export` writes the base model",
        markup=False,
    )


def merge(base: str, adapter: str, run: str, /, *, json: bool = False) -> None:
    """Merge an adapter into its base model, as a new run.

    Parameters
    ----------
    base
        The run that the adapter was trained on, or its name in runs/.
    adapter
        A run trained with [train.lora], its adapter.safetensors, or a peft directory.
    run
        The new run's directory, or its name in runs/.
    json
        One JSON document on stdout.
    """
    target = new_run(run)
    adapter_path = adapter if Path(adapter).exists() else str(find_run(adapter))
    result = merge_adapter(find_run(base), adapter_path, target)
    if json:
        print_json({"run": str(target), **result})
        return
    out = console()
    if not result["checked"]:
        out.print(
            f"{adapter_path} does not record its base weights: only names and shapes were compared",
            markup=False,
        )
    out.print(f"{target}: {pluralize(result['layers'], 'layer')} of {base} changed")
