"""From published weights to a run, and from a run to a directory that transformers loads, checked by doing so."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.config.model import TransformerConfig
from heddle.config.run import SavedConfig
from heddle.errors import HeddleError, did_you_mean
from heddle.model.transformer import Transformer
from heddle.weights.families import GPT2, LLAMA, QWEN3, Family
from heddle.weights.files import write_directory, write_manifest
from heddle.weights.hub import fetch
from heddle.weights.mapping import import_tensors
from heddle.weights.published import open_weights, read_json, read_tokenizer, write_published
from heddle.weights.run import build_empty, load, write_model
from heddle.weights.tensors import check_depth

FAMILIES = {family.name: family for family in (GPT2, LLAMA, QWEN3)}
TOLERANCE = 1e-5  # of the largest logit, or of 1 where all are smaller


def import_model(source: str | Path, run: str | Path, hub: bool = False) -> dict[str, Any]:
    """Take over a GPT-2 or a Llama: a run directory with its config, its weights in fp32, and its tokenizer.

    Args:
        source: a directory as transformers writes it; with `hub`, an `owner/name` of the Hugging Face Hub.
        run: where to; it must not exist.

    Returns:
        `family`; `parameters`, how many numbers were read; `notes`, what the user should know.

    Raises:
        HeddleError: the files are missing, damaged or of another sort, the config asks for something heddle does not
            compute (it is named), or the weights are not those of the config. Nothing is left behind then.
    """
    folder = fetch(str(source)) if hub else Path(source)
    if not folder.is_dir():
        advice = "" if folder.exists() else "; to fetch it from the Hugging Face Hub, say so with --hub"
        raise HeddleError(f"{folder}: no such directory{advice}")
    theirs = read_json(folder / "config.json")
    name = str(theirs.get("model_type"))
    if name not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise HeddleError(f"{folder}: model_type = {name!r}; heddle reads {known}.{did_you_mean(name, FAMILIES)}")
    family = FAMILIES[name]
    try:
        config = family.to_config(theirs)
    except HeddleError as error:
        raise HeddleError(f"{folder}: {error}") from None
    weights = open_weights(folder)
    check_depth(weights, family.layer, config.decoder.depth, folder, family.names.prefix)
    empty = build_empty(config, folder / "config.json").state_dict()
    tokenizer, notes = read_tokenizer(folder)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        notes.append(f"its tokenizer has {tokenizer.vocab_size} ids and the model {config.vocab_size}: left out")
        tokenizer = None
    if tokenizer is None:
        notes.append("the run has no tokenizer: it takes and gives ids only")
    with write_directory(Path(run)) as directory:
        tensors = import_tensors(family.table, family.names, config, empty, weights, folder)
        saved = SavedConfig(model=config, origin=str(source))
        write_model(directory, tensors, saved, tokenizer, step=0, extra={"origin": str(source), "family": family.name})
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return {"family": family.name, "parameters": parameters, "notes": notes}


def export_model(run: str | Path, directory: str | Path) -> dict[str, Any]:
    """Write a run as a directory that `AutoModelForCausalLM.from_pretrained` loads, and compare the logits there.

    Args:
        run: a run or a checkpoint directory.
        directory: where to; it must not exist.

    Returns:
        `family`; `checked`, whether transformers was there to load it back; `difference`, the largest between two
        logits over the largest logit (or 1), None where not checked; `notes`, what the user should know.

    Raises:
        HeddleError: no family can express the model (with every reason), or the logits differ in transformers by more
            than 1e-5 in fp32. Nothing is left behind then.
    """
    model, tokenizer = load(run, "cpu")
    family, notes = choose(model.config)
    with write_directory(Path(directory)) as partial:
        write_published(partial, family, model, tokenizer)
        difference = logit_difference(model, partial)
        if difference is None:
            notes.append("not checked: transformers is not installed")
        elif not difference <= TOLERANCE:
            raise HeddleError(
                f"{run}: the logits of {family.architecture} differ by {difference:.1e} of the largest, more than "
                f"{TOLERANCE:g}; nothing was written. This is a fault in heddle: please report it"
            )
        record = {"family": family.name, "checked": difference is not None, "difference": difference}
        write_manifest(partial, record)
    return {**record, "notes": notes}


def choose(config: TransformerConfig) -> tuple[Family, list[str]]:
    """The first family that can express a config, and what of it is lost that acts in training only.

    Raises:
        HeddleError: none can; the line says why, family by family.
    """
    refusals = []
    for family in FAMILIES.values():
        reasons, lost = family.reasons(config)
        if not reasons:
            return family, [f"lost, acts in training only: {text}" for text in lost]
        refusals.append(f"{family.architecture}: {'; '.join(reasons)}")
    raise HeddleError(f"no family of transformers can express this model. {' | '.join(refusals)}")


def logit_difference(model: Transformer, folder: Path) -> float | None:
    """The largest difference between heddle's logits and those of transformers on random ids, in fp32.

    It is relative to the largest logit, or to 1 where all are smaller; None where transformers is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    read: Any = AutoModelForCausalLM.from_pretrained  # its annotation forgets the report
    theirs, report = read(folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    unset = [str(name) for name in (*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"])]
    if unset:
        raise HeddleError(f"transformers cannot place {unset[0]} of the exported weights ({len(unset)} in all)")
    length = min(model.config.context, 64)
    tokens = torch.randint(model.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.logits(model(tokens))[..., : model.vocab_size]
        found: Tensor = theirs.eval()(tokens).logits
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
