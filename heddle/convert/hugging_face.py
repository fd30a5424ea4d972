"""Import published weights into a run; export a run for Hugging Face transformers, with a check of its logits."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import TransformerConfig
from heddle.config.saved import SavedConfig
from heddle.convert.agreement import compare
from heddle.convert.families import Family
from heddle.convert.families.family import left_out, without
from heddle.convert.families.rotary import of_one_length
from heddle.convert.fitting import ALL, choose
from heddle.convert.generation_config import read_decoding
from heddle.convert.hub import fetch
from heddle.convert.mapping import import_tensors
from heddle.convert.mxfp4 import Unpacked
from heddle.convert.published import open_weights, read_chat, read_json, read_tokenizer, read_tokens, write_published
from heddle.convert.sentence_transformers import Sentences, read_sentences, write_sentences
from heddle.convert.special_ids import read_ids
from heddle.convert.token_roles import has_other_types
from heddle.errors import HeddleError, did_you_mean
from heddle.weights.files import write_directory, write_manifest
from heddle.weights.run import build_empty, load, write_model
from heddle.weights.start import is_head
from heddle.weights.tensors import check_depth, specs_of
from heddle.weights.tensors import compare as compare_specs

NO_SENTENCES = (
    "no modules.json of sentence-transformers: a text's vector is the pooler output of {architecture}; "
    "heddle embed --pooling mean takes the mean of its hidden vectors instead"
)


@checked()
def import_model(source: str | Path, run: str | Path, hub: bool = False) -> dict[str, Any]:
    """Import a published model as a run directory with its config, its weights in fp32 and its tokenizer.

    Args:
        source: a Hugging Face directory; with `hub`, an `owner/name` on the Hugging Face Hub.
        run: the new directory; it must not exist.

    Returns:
        `family`; `parameters`, their number; `writes`, whether it is a decoder with a tokenizer, so that `generate` works
        with it; `notes` for the user.

    Raises:
        HeddleError: the files are missing, damaged or of an unknown kind, the config has a setting that heddle does not
            support (the message names it), or the weights do not match the config. Nothing is left behind then.
    """
    folder = fetch(str(source)) if hub else Path(source)
    if not folder.is_dir():
        advice = "" if folder.exists() else "; to download it from the Hugging Face Hub, add --hub"
        raise HeddleError(f"{folder}: no such directory{advice}")
    sentences = read_sentences(folder)
    top, folder = folder, folder if sentences is None else sentences.body
    theirs = read_json(folder / "config.json")
    try:
        family, config, renamed = family_and_config(theirs, open_weights(folder), sentences)
    except HeddleError as error:
        raise HeddleError(f"{folder}: {error}") from None
    generation = folder / "generation_config.json"
    count = max(config.vocab_size, config.source_vocab_size or 0)
    generated = read_json(generation) if generation.is_file() else None
    ids, notes = read_ids(theirs, generated or {}, family.ids, count)
    decoding, how = read_decoding(theirs, generated, len(config.stacks()) == 2)
    if sentences is None and isinstance(config.head, EmbeddingHeadConfig):
        notes.append(NO_SENTENCES.format(architecture=family.architecture))
    weights = Unpacked(open_weights(folder))
    config = family.with_own_head(config, weights)
    check_depths(family, config, weights, folder)
    empty = build_empty(config, folder / "config.json").state_dict()
    lower = sentences is not None and sentences.lower
    tokenizer, missing = read_tokenizer(folder, family.name, lower)
    chat, unread = read_chat(folder)
    notes += [
        *renamed,
        *(() if sentences is None else sentences.notes),
        *missing,
        *left_out(theirs),
        *(how if config.decoder is not None else []),
        *of_one_length(config),
        *unread,
    ]
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        notes.append(f"its tokenizer has {tokenizer.vocab_size} ids but the model only {config.vocab_size}: left out")
        tokenizer = None
    if tokenizer is not None and has_other_types(config, tokenizer):
        notes.append("its tokenizer is left out: it gives the two texts of a pair other types than 0 and 1")
        tokenizer = None
    if tokenizer is not None:
        roles, unknown = read_tokens(folder, config.model_copy(update={"ids": ids}), tokenizer, family.name, lower)
        ids, notes = ids.model_copy(update={"roles": roles}), [*notes, *unknown]
    if tokenizer is None:
        notes.append("the run has no tokenizer: it reads and returns ids only")
    with write_directory(Path(run)) as directory:
        below = {name: each for name, each in empty.items() if sentences is None or not is_head(name)}
        read = import_tensors(family.table, family.names, config, below, weights, folder)
        config, tensors = family.plainer(config, read)
        if sentences is not None:
            tensors = {**tensors, **sentences.tensors()}
            compare_specs(specs_of(tensors), specs_of(empty), top)
        own = {"ids": ids, "architecture": family.architecture, "chat": chat, "decoding": decoding}
        config = config.model_copy(update=own)
        saved = SavedConfig(model=config, origin=str(source))
        write_model(directory, tensors, saved, tokenizer, step=0, extra={"origin": str(source), "family": family.name})
    parameters = sum(tensor.numel() for tensor in tensors.values())
    writes = tokenizer is not None and "decoder" in config.stacks() and len(config.stacks()) == 1
    return {"family": family.name, "parameters": parameters, "writes": writes, "notes": notes}


def family_and_config(
    theirs: Mapping[str, Any], names: Collection[str], sentences: Sentences | None
) -> tuple[Family, TransformerConfig, list[str]]:
    """The family of a config.json and a file with these tensors, the model in heddle's terms, and notes for the user.

    Raises:
        HeddleError: heddle does not read it.
    """
    # Below a pooling, it does not matter which head a class has.
    found = families_of(theirs if sentences is None else without(theirs, "architectures"))
    family = found[0] if len(found) == 1 else nearest_table(found, names)
    if sentences is not None:
        family = family.body()
        data = family.to_config(without(theirs, "architectures")).to_dict()
        whole = {**data, "head": sentences.head.to_dict()}
        return family, TransformerConfig.of(whole, where="its files in heddle's terms"), []
    family, renamed = with_its_head(family, names)
    config = family.to_config({**theirs, "architectures": [family.architecture]} if renamed else theirs)
    said = [] if renamed else theirs.get("architectures") or []
    wider = [f"{name}: read as {family.architecture}, without its other heads" for name in said if name in family.also]
    return family, config, [*renamed, *wider]


def check_depths(family: Family, config: TransformerConfig, names: Iterable[str], where: Path) -> None:
    """Refuse files whose layers are more or fewer than the config says.

    Raises:
        HeddleError: they are.
    """
    start = family.names.prefix or family.names.wrapped
    for name, stack in config.stacks().items():
        place = None if len(config.stacks()) == 1 else name
        check_depth(names, family.names.wrapped + family.layers[name], stack.depth, where, start, place)


def families_of(theirs: Mapping[str, Any]) -> list[Family]:
    """The families that a published config.json may belong to: those of its `model_type`. If these differ in their heads,
    its architecture decides; if it names no architecture, all of them are returned.

    Raises:
        HeddleError: heddle does not read this family.
    """
    name, said = theirs.get("model_type"), theirs.get("architectures")
    found = [family for family in ALL if family.name == name]
    if name is None and {"model", "version"} <= theirs.keys():
        raise HeddleError("this is a heddle run already: use it as it is, or copy the directory")
    if not found:
        known = list(dict.fromkeys(family.name for family in ALL))
        told = "config.json has no model_type" if name is None else f"model_type = {name!r}"
        raise HeddleError(f"{told}; heddle reads {', '.join(known)}.{did_you_mean(str(name), known)}")
    if len(found) == 1 or not said:
        return found
    named = said if isinstance(said, list) else []
    meant = [family for family in found if any(each in named for each in (family.architecture, *family.also))]
    if not meant:
        heads = ", ".join(family.architecture for family in found)
        raise HeddleError(f"architectures = {said} in config.json: for {name}, heddle reads {heads}")
    return meant[:1]


def with_its_head(family: Family, names: Collection[str]) -> tuple[Family, list[str]]:
    """The family; or, if the file has nothing of this head, the class of the same body that the file fits, and a note.

    Many an encoder for embeddings still names the class for masked tokens that it was trained from.
    """
    spelt = {family.names.spelt(name) for name in names}
    head = {row.theirs for row in family.table if row.ours[0].startswith("head.")}
    others = [each for each in ALL if each.name == family.name and each is not family]
    if not others or not head or head & spelt:
        return family, []
    nearest = nearest_table((family, *others), names)
    if nearest is family:
        return family, []
    return nearest, [
        f"its weights are those of {nearest.architecture}: nothing is there for the head of {family.architecture}"
    ]


def nearest_table(families: Iterable[Family], names: Iterable[str]) -> Family:
    """The family whose tensors outside of layers, such as its head's, match these names best."""

    def places(family: Family) -> int:
        spelt = {family.names.spelt(name) for name in names}
        rows = {row.theirs for row in family.table if "{i}" not in row.theirs}
        return sum(1 if {row, row.removeprefix(family.names.prefix)} & spelt else -1 for row in rows)

    return max(families, key=places)


@checked()
def export_model(run: str | Path, directory: str | Path) -> dict[str, Any]:
    """Write a run as a directory that Hugging Face transformers loads (`from_pretrained`), and compare what both compute.

    Texts, pairs and conversations are given to the tokenizer and the model that transformers reads from the directory, as its users
    do: ids, types and scores must be heddle's.

    Args:
        run: a run or a checkpoint directory.
        directory: the new directory; it must not exist.

    Returns:
        `family`; `checked`, whether Hugging Face transformers was installed to load it; `difference`, the largest of two scores
        over the largest score (or 1), and `allowed`, what rounding explains, both None if not checked; `notes` for the user.

    Raises:
        HeddleError: no family can express the model (the message gives the reasons), Hugging Face transformers reads a text as
            other ids, or its scores differ in fp32 by more than 1e-5 and more than 8 times the rounding error of either side.
            Nothing is left behind then.
    """
    model, tokenizer = load(run, "cpu")
    family, notes = choose(model.config)
    with write_directory(Path(directory)) as partial:
        write_published(partial, family, model, tokenizer)
        if isinstance(model.config.head, EmbeddingHeadConfig):
            write_sentences(partial, model.config, model.state_dict())
        try:
            agreement = compare(model, tokenizer, family, partial)
        except HeddleError as error:
            raise HeddleError(f"{run}: {error}; nothing was written") from None
        if agreement is None:
            notes.append("not checked: Hugging Face transformers is not installed")
        elif not agreement.difference <= agreement.allowed:
            raise HeddleError(
                f"{run}: the scores of {family.architecture} differ by {agreement.difference:.1e} of the largest, and rounding "
                f"explains {agreement.allowed:.1e}; nothing was written. This is a bug in heddle: please report it"
            )
        else:
            notes += agreement.notes
        measured = {"difference": None, "allowed": None} if agreement is None else agreement.measured()
        record = {"family": family.name, "checked": agreement is not None, **measured}
        write_manifest(partial, record)
    return {**record, "notes": notes}
