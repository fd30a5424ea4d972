"""From published weights to a run, and from a run to a directory that transformers loads, checked by doing so."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heddle.checks import checked
from heddle.config.model import ClassifierHeadConfig, EmbeddingHeadConfig, TransformerConfig
from heddle.config.run import SavedConfig
from heddle.errors import HeddleError, did_you_mean
from heddle.model.transformer import Transformer
from heddle.weights.families import (
    BART,
    BERT,
    BERT_CLASSIFIER,
    BERT_POOLED,
    FALCON,
    GEMMA2,
    GPT2,
    GPT_NEOX,
    LLAMA,
    MARIAN,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    T5,
    Family,
)
from heddle.weights.families.family import left_out
from heddle.weights.files import write_directory, write_manifest
from heddle.weights.hub import fetch
from heddle.weights.ids import read_ids
from heddle.weights.mapping import import_tensors
from heddle.weights.published import open_weights, read_json, read_tokenizer, write_published
from heddle.weights.run import build_empty, load, write_model
from heddle.weights.tensors import check_depth

# In the order in which an export tries them.
ALL = (
    GPT2,
    LLAMA,
    QWEN2,
    QWEN3,
    MISTRAL,
    MIXTRAL,
    QWEN3_MOE,
    QWEN2_MOE,
    GEMMA2,
    GPT_NEOX,
    FALCON,
    BERT,
    BERT_CLASSIFIER,
    BERT_POOLED,
    T5,
    BART,
    MARIAN,
)
FAMILIES = {family.architecture: family for family in ALL}
TOLERANCE = 1e-5  # of the largest logit, or of 1 where all are smaller
NEAREST, MOST = 3, 3  # families that a refusal names, and differences of each
LONGEST = 300  # characters of a refusal that names more than one
OF_A_LAYER = re.compile(r"\.layers\.\d+")


@checked()
def import_model(source: str | Path, run: str | Path, hub: bool = False) -> dict[str, Any]:
    """Take over a published model: a run directory with its config, its weights in fp32, and its tokenizer.

    Args:
        source: a directory as transformers writes it; with `hub`, an `owner/name` of the Hugging Face Hub.
        run: where to; it must not exist.

    Returns:
        `family`; `parameters`, how many numbers the model has; `writes`, whether it is a decoder with a tokenizer, so
        that `generate` can write with it; `notes`, what the user should know.

    Raises:
        HeddleError: the files are missing, damaged or of another sort, the config asks for something heddle does not
            compute (it is named), or the weights are not those of the config. Nothing is left behind then.
    """
    folder = fetch(str(source)) if hub else Path(source)
    if not folder.is_dir():
        advice = "" if folder.exists() else "; to fetch it from the Hugging Face Hub, say so with --hub"
        raise HeddleError(f"{folder}: no such directory{advice}")
    theirs = read_json(folder / "config.json")
    try:
        found = families_of(theirs)
        family = found[0] if len(found) == 1 else nearest_table(found, open_weights(folder))
        config = family.to_config(theirs)
    except HeddleError as error:
        raise HeddleError(f"{folder}: {error}") from None
    generation = folder / "generation_config.json"
    count = max(config.vocab_size, config.source_vocab_size or 0)
    ids, notes = read_ids(theirs, read_json(generation) if generation.is_file() else {}, family.ids, count)
    weights = open_weights(folder)
    for name, stack in config.stacks().items():
        said = None if len(config.stacks()) == 1 else name
        check_depth(weights, family.layers[name], stack.depth, folder, family.names.prefix, said)
    empty = build_empty(config, folder / "config.json").state_dict()
    tokenizer, missing = read_tokenizer(folder)
    notes += [*missing, *left_out(theirs)]
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        notes.append(f"its tokenizer has {tokenizer.vocab_size} ids and the model {config.vocab_size}: left out")
        tokenizer = None
    if tokenizer is None:
        notes.append("the run has no tokenizer: it takes and gives ids only")
    with write_directory(Path(run)) as directory:
        read = import_tensors(family.table, family.names, config, empty, weights, folder)
        config, tensors = family.plainer(config, read)
        config = config.model_copy(update={"ids": ids, "architecture": family.architecture})
        saved = SavedConfig(model=config, origin=str(source))
        write_model(directory, tensors, saved, tokenizer, step=0, extra={"origin": str(source), "family": family.name})
    parameters = sum(tensor.numel() for tensor in tensors.values())
    writes = tokenizer is not None and "decoder" in config.stacks() and len(config.stacks()) == 1
    return {"family": family.name, "parameters": parameters, "writes": writes, "notes": notes}


def families_of(theirs: Mapping[str, Any]) -> list[Family]:
    """The families that a published config.json may be of: those of its `model_type`, and where that has several heads the one of
    its architecture; all of them where it names none.

    Raises:
        HeddleError: heddle reads no such family.
    """
    name, said = theirs.get("model_type"), theirs.get("architectures")
    found = [family for family in ALL if family.name == name]
    if not found:
        known = list(dict.fromkeys(family.name for family in ALL))
        told = "config.json says no model_type" if name is None else f"model_type = {name!r}"
        raise HeddleError(f"{told}; heddle reads {', '.join(known)}.{did_you_mean(str(name), known)}")
    if len(found) == 1 or not said:
        return found
    named = said if isinstance(said, list) else []
    meant = [family for family in found if any(each in named for each in (family.architecture, *family.also))]
    if not meant:
        heads = ", ".join(family.architecture for family in found)
        raise HeddleError(f"architectures = {said} in config.json: of a {name} heddle reads {heads}")
    return meant[:1]


def nearest_table(families: Iterable[Family], names: Iterable[str]) -> Family:
    """The family whose tensors outside of layers, such as those of its head, are most nearly the ones with these names."""

    def places(family: Family) -> int:
        spelt = {family.names.spelt(name) for name in names}
        rows = {row.theirs for row in family.table if "{i}" not in row.theirs}
        return sum(1 if {row, row.removeprefix(family.names.prefix)} & spelt else -1 for row in rows)

    return max(families, key=places)


@checked()
def export_model(run: str | Path, directory: str | Path) -> dict[str, Any]:
    """Write a run as a directory that transformers loads (`from_pretrained`), and compare what comes out there.

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
        difference = logit_difference(model, family, partial)
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
        HeddleError: none can; the line says what the nearest ones cannot.
    """
    nearest, *others = fits(config)
    if nearest.against:
        told = f"no family of transformers can express this model. {nearest.brief()}"
        for other in others[: NEAREST - 1]:
            longer = f"{told} | {other.brief()}"
            told = longer if len(longer) < LONGEST else told
        raise HeddleError(told)
    return nearest.family, [f"lost, acts in training only: {text}" for text in nearest.lost]


def expressible(config: TransformerConfig, whole: bool = False) -> tuple[str | None, list[str]]:
    """The class of transformers that an export of such a model would be; or None, and why not.

    Args:
        whole: of every family everything; without it, of the nearest three the first three differences.
    """
    found = fits(config)
    if not found[0].against:
        return found[0].family.architecture, []
    if whole:
        others = [family for family in ALL if set(family.parts.stacks) != set(config.stacks())]
        every = (*found, *(Fit(family, *family.reasons(config)) for family in others))
        return None, [f"{fit.family.architecture}: {'; '.join(fit.against)}" for fit in every]
    return None, [fit.brief() for fit in found[:NEAREST]]


class Fit(NamedTuple):
    """How near a family comes to a model."""

    family: Family
    against: list[str]  # why it cannot express it
    lost: list[str]  # what of it would be lost that acts in training only

    def distinct(self) -> list[str]:
        """Reasons that differ in more than the number of a layer."""
        first: dict[str, str] = {}
        for text in self.against:
            first.setdefault(OF_A_LAYER.sub("", text.split(" is ")[0]), text)
        return list(first.values())

    def brief(self) -> str:
        """The first reasons, and how many more there are."""
        distinct = self.distinct()
        more = f"; {len(distinct) - MOST} more" if len(distinct) > MOST else ""
        return f"{self.family.architecture}: {'; '.join(distinct[:MOST])}{more}"


def fits(config: TransformerConfig) -> list[Fit]:
    """The families with the model's stacks, nearest first; of equally near ones that which it came from, then as in `ALL`."""
    has = set(config.stacks())
    found = [Fit(family, *family.reasons(config)) for family in ALL if set(family.parts.stacks) == has]
    return sorted(found, key=lambda fit: (len(fit.distinct()), fit.family.architecture != config.architecture))


def logit_difference(model: Transformer, family: Family, folder: Path) -> float | None:
    """The largest difference between heddle's logits and those of transformers on random ids, in fp32.

    Of a model with an embedding head it is that of the vectors. It is relative to the largest entry, or to 1 where all are
    smaller; None where transformers is not installed.
    """
    try:
        import transformers
    except ImportError:
        return None
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    read: Any = getattr(transformers, family.architecture).from_pretrained
    # Only the plain attention knows every family's options: the fused one has no cap. And only plain experts have any width.
    how: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    if any("{e}" in row.theirs for row in family.table):
        how["experts_implementation"] = "eager"
    theirs, report = read(folder, output_loading_info=True, **how)
    unset = [str(name) for name in (*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"])]
    if unset:
        raise HeddleError(f"transformers cannot place {unset[0]} of the exported weights ({len(unset)} in all)")
    length = min(model.config.context, 64)
    tokens, source = torch.randint(model.vocab_size, (2, 2, length), generator=torch.Generator().manual_seed(0))
    source = source % (model.config.source_vocab_size or model.vocab_size)
    with torch.inference_mode():
        expected, found = ours_and_theirs(model, theirs.eval(), tokens, source)
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def ours_and_theirs(model: Transformer, theirs: Any, tokens: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """What a model and its counterpart in transformers say of the same tokens: scores, or one vector or classes per sequence."""
    if isinstance(model.config.head, EmbeddingHeadConfig | ClassifierHeadConfig):
        assert model.head is not None
        vectors: Tensor = model.head(model(tokens).hidden, None, model.embedding.weight)
        answer = theirs(tokens)
        return vectors, answer.logits if isinstance(model.config.head, ClassifierHeadConfig) else answer.pooler_output
    if len(model.config.stacks()) == 2:
        scores, found = model(tokens, source=source).hidden, theirs(source, decoder_input_ids=tokens).logits
    else:
        scores, found = model(tokens).hidden, theirs(tokens).logits
    return model.logits(scores)[..., : model.vocab_size], found
