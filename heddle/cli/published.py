"""`heddle import`, `heddle export`, `heddle adapter export` and `heddle adapter merge`."""

from pathlib import Path

from heddle.cli.options import Json, NewRun, Run
from heddle.cli.output import console, find_run, new_run, pluralize, print_json
from heddle.convert import peft
from heddle.convert.gguf import SUFFIX, export_gguf
from heddle.convert.hugging_face import export_model, import_model


def import_(source: str, run: NewRun, /, *, hub: bool = False, json: Json = False) -> None:
    """Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others).

    Parameters
    ----------
    source
        A Hugging Face directory with model.safetensors and config.json, or OWNER/NAME with --hub.
    hub
        Download the source from the Hugging Face Hub. Nothing is downloaded without this flag.
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


def export(run: Run, target: Path, /, *, json: Json = False) -> None:
    """Export a run to a directory for Hugging Face transformers, or to a GGUF file for llama.cpp.

    Parameters
    ----------
    target
        Output directory, or output file if the name ends in .gguf (needs the gguf package).
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
        out.print(f"{target}: {result['family']} as llama.cpp's {result['architecture']}, {tensors}, {tokenizer_note}")
        return
    check = (
        f"logits match Hugging Face transformers within {result['difference']:.1e}"
        if result["checked"]
        else "not checked"
    )
    out.print(f"{target}: {result['family']}, {check}")


def export_adapter(run: str, directory: Path, /, *, json: Json = False) -> None:
    """Export a run's adapter, without its base model, to a directory that peft can load.

    Parameters
    ----------
    run
        A run trained with [train.lora], or its name in runs/.
    directory
        Output directory, which must not exist.
    """
    result = peft.export_adapter(find_run(run), directory)
    if json:
        print_json({"directory": str(directory), **result})
        return
    modules = pluralize(result["modules"], "module")
    console().print(
        f"{directory}: {result['family']}, {modules} of rank {result['rank']} or less, "
        f"{result['parameters']:,} parameters; `heddle export` writes the base model"
    )


def merge_adapter(base: str, adapter: str, run: NewRun, /, *, json: Json = False) -> None:
    """Merge an adapter into its base model, as a new run.

    Parameters
    ----------
    base
        The run that the adapter was trained on, or its name in runs/.
    adapter
        A run trained with [train.lora], its adapter.safetensors, or a peft directory.
    """
    target = new_run(run)
    adapter_path = adapter if Path(adapter).exists() else str(find_run(adapter))
    result = peft.merge_adapter(find_run(base), adapter_path, target)
    if json:
        print_json({"run": str(target), **result})
        return
    out = console()
    if not result["checked"]:
        out.print(f"{adapter_path} does not record its base weights: only names and shapes were compared")
    out.print(f"{target}: {pluralize(result['layers'], 'layer')} of {base} changed")
