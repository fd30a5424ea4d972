"""`heddle import` and `heddle export`."""

from pathlib import Path

from heddle.cli.output import console, find_run, new_run, pluralize, print_json
from heddle.convert.gguf import SUFFIX, export_gguf
from heddle.convert.hugging_face import export_model, import_model


def import_(source: str, run: str, /, *, hub: bool = False, json: bool = False) -> None:
    """Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others).

    Parameters
    ----------
    source
        A Hugging Face directory with model.safetensors and config.json, or OWNER/NAME with --hub.
    run
        The new run's directory, or its name in runs/.
    hub
        Download the source from the Hugging Face Hub. Nothing is downloaded without this flag.
    json
        One JSON document on stdout.
    """
    target = new_run(run)
    result = import_model(source, target, hub)
    if json:
        print_json({"run": str(target), **result})
        return
    out = console()
    for note in result["notes"]:
        out.print(note)
    out.print(f"{target}: {result['family']}, {result['parameters']:,} parameters")
    hints = [f"heddle generate {target} --prompt …"] if result["writes"] else []
    out.print(", ".join((*hints, f"heddle count {target}", f"heddle prove {target}")))


def export(run: str, target: Path, /, *, json: bool = False) -> None:
    """Export a run to a directory for Hugging Face transformers, or to a GGUF file for llama.cpp.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    target
        Output directory, or output file if the name ends in .gguf (needs the gguf package).
    json
        One JSON document on stdout.
    """
    to_file = target.suffix == SUFFIX
    result = export_gguf(find_run(run), target) if to_file else export_model(find_run(run), target)
    if json:
        print_json({"file" if to_file else "directory": str(target), **result})
        return
    out = console()
    for note in result["notes"]:
        out.print(note)
    if to_file:
        tokenizer_note = "with its tokenizer" if result["tokenizer"] else "without a tokenizer"
        tensors = pluralize(result["tensors"], "tensor")
        out.print(
            f"{target}: {result['family']} as llama.cpp's {result['architecture']}, {tensors}, {tokenizer_note}",
            markup=False,
        )
        return
    check = (
        f"logits match Hugging Face transformers within {result['difference']:.1e}"
        if result["checked"]
        else "not checked"
    )
    out.print(f"{target}: {result['family']}, {check}")
