"""Exports a run as a GGUF file for llama.cpp."""

from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heddle.checks import checked
from heddle.convert.fitting import ADVICE, Fit, expressible
from heddle.convert.gguf_fitting import choose_for_llama_cpp
from heddle.convert.llama_cpp import ARCHITECTURES, divisors
from heddle.convert.llama_cpp_tokenizer import TOKENS, tokenizer_metadata
from heddle.convert.mapping import to_published
from heddle.convert.published import special_ids
from heddle.convert.token_roles import published_tokenizer
from heddle.errors import HeddleError, problems_of, together
from heddle.weights.files import fill_file, refuse_unwritable
from heddle.weights.run import load, read_config

FLOAT32 = 0  # llama.cpp's number for an fp32 file
SUFFIX = ".gguf"


@checked()
def export_gguf(run: str | Path, file: str | Path) -> dict[str, Any]:
    """Write a run as one GGUF file for llama.cpp, in fp32, with its tokenizer if llama.cpp supports it.

    Args:
        run: a run or a checkpoint directory.
        file: the new file; it must not exist.

    Returns:
        `family`, the published family of the export; `architecture`, llama.cpp's name for it; `tensors`, their number;
        `tokenizer`, whether the file has one; `notes` for the user.

    Raises:
        HeddleError: the package `gguf` is missing, llama.cpp would compute something else, or the file cannot be written. The
            message has all that is against the export. Nothing is left behind then.
    """
    file = Path(file)
    fit = _check(run, file)
    import gguf

    model, tokenizer = load(run, "cpu")
    family, notes = fit.written(model.config), fit.notes()
    config, tensors = family.rewrite(model.config, model.state_dict())
    architecture = ARCHITECTURES[family.architecture]
    metadata = architecture.metadata(family.published_config(config), config)
    ids = special_ids(config, tokenizer)
    exported_tokenizer = None if tokenizer is None else published_tokenizer(model.config, tokenizer)
    tokenizer_fields, tokenizer_notes = tokenizer_metadata(exported_tokenizer, ids, config.vocab_size, config.chat)
    # Without the shift of rows: in llama.cpp, the gain of a norm is the factor itself.
    published = to_published([replace(each, shift=0.0) for each in family.table], config, tensors)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    names = gguf.get_tensor_name_map(number, config.stacks()["decoder"].depth)
    gguf_tensors = {_named(names, name): tensor for name, tensor in architecture.tensors(published, config).items()}
    gguf_tensors |= divisors(config)
    if architecture.copied:
        gguf_tensors.setdefault("output.weight", gguf_tensors["token_embd.weight"])
    with fill_file(file) as partial, closing(gguf.GGUFWriter(partial, architecture.name)) as writer:
        writer.add_name(Path(run).resolve().name)
        writer.add_file_type(FLOAT32)
        for key, value in (
            {f"{architecture.name}.{key}": value for key, value in metadata.items()} | tokenizer_fields
        ).items():
            _add(writer, key, value)
        for name, tensor in gguf_tensors.items():
            writer.add_tensor(name, tensor.float().contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    has = TOKENS in tokenizer_fields
    counts = {"architecture": architecture.name, "tensors": len(gguf_tensors), "tokenizer": has}
    return {"family": family.name, **counts, "notes": [*notes, *tokenizer_notes]}


def _check(run: str | Path, file: Path) -> Fit:
    """The family to write; or refuse the export, with all that is against it, before any work."""
    config = read_config(run).model
    problems = list(problems_of(lambda: refuse_unwritable(file)))
    if find_spec("gguf") is None:
        problems.append("GGUF files need the package gguf: pip install 'heddle-lm[gguf]'")
    try:
        return together(problems, lambda: choose_for_llama_cpp(config))
    except HeddleError as error:
        if len(error.problems) == len(problems):  # the model itself can be written
            raise
        advice = (
            "; to export it for Hugging Face transformers, name a directory"
            if expressible(config)[0]
            else f". {ADVICE}"
        )
        raise HeddleError(f"{run}: cannot be exported as GGUF: {error}{advice}") from None


def _named(names: Any, published: str) -> str:
    """GGUF's name for a published tensor."""
    name: str | None = names.get_name(published, try_suffixes=(".weight", ".bias"))
    if name is None:
        raise HeddleError(f"the package gguf has no name for {published}; this version of it is too old or too new")
    return name


def _add(writer: Any, key: str, value: Any) -> None:
    """Add an entry of metadata with the type that llama.cpp expects."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[list] = writer.add_array
    kinds[type(value)](key, value)
