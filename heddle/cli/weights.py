"""`heddle import` and `heddle export`."""

from pathlib import Path

from heddle.cli.say import console, document, find_run, new_run
from heddle.weights.convert import export_model, import_model


def import_(source: str, run: str, /, *, hub: bool = False, json: bool = False) -> None:
    """Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others).

    Parameters
    ----------
    source
        A Hugging Face directory, with model.safetensors and config.json; or, with --hub, an owner/name.
    run
        The new run's directory, or its name in runs/.
    hub
        Download the source from the Hugging Face Hub first. Nothing is downloaded without this.
    json
        One JSON document on stdout.
    """
    target = new_run(run)
    result = import_model(source, target, hub)
    if json:
        document({"run": str(target), **result})
        return
    out = console()
    for note in result["notes"]:
        out.print(note, markup=False)
    out.print(f"{target}: {result['family']}, {result['parameters']:,} parameters", markup=False)
    write = [f"heddle generate {target} --prompt …"] if result["writes"] else []
    out.print(", ".join((*write, f"heddle count {target}", f"heddle prove {target}")), markup=False)


def export(run: str, directory: Path, /, *, json: bool = False) -> None:
    """Write a run as a directory that Hugging Face transformers loads.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    directory
        The new directory.
    json
        One JSON document on stdout.
    """
    result = export_model(find_run(run), directory)
    if json:
        document({"directory": str(directory), **result})
        return
    out = console()
    for note in result["notes"]:
        out.print(note, markup=False)
    checked = (
        f"logits agree with Hugging Face transformers to {result['difference']:.1e}"
        if result["checked"]
        else "not checked"
    )
    out.print(f"{directory}: {result['family']}, {checked}", markup=False)
