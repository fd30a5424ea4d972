"""GGUF files for llama.cpp beside heddle: what `heddle export` writes, and the same with rounded matrices."""

import os
from pathlib import Path
from typing import Any

# By the kind of the matrices: that of the token table and the head. heddle and llama.cpp's own tool do not round these to 4 bits.
KINDS = {"F32": "F32", "BF16": "BF16", "Q8_0": "Q8_0", "Q4_0": "Q8_0"}
TABLES = ("token_embd.weight", "output.weight")
QUIET = -1  # llama.cpp's verbosity


def rounded(source: Path, target: Path, kind: str = "Q8_0") -> Path:
    """Write a GGUF file with its matrices in another kind of `KINDS`; norms, biases, routers and positions stay as they are."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    name = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, name)
    for key, entry in reader.fields.items():
        if key != "general.architecture" and not key.startswith("GGUF."):
            part = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), entry.types[0], part)
    for tensor in reader.tensors:
        matrix = len(tensor.shape) > 1 and tensor.shape[0] % 32 == 0 and "_norm" not in tensor.name
        data = np.array(tensor.data)
        if matrix and "ffn_gate_inp" not in tensor.name and tensor.name != "position_embd.weight":
            chosen = gguf.GGMLQuantizationType[KINDS[kind] if tensor.name in TABLES else kind]
            writer.add_tensor(tensor.name, gguf.quants.quantize(data, chosen), raw_dtype=chosen)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def ascii_tokenizer(size: int, folder: Path) -> None:
    """Write a byte-level BPE tokenizer of this size, whose tokens beyond the bytes are short texts in ASCII."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    letters = [chr(code) for code in range(33, 127)]
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = [(a, b) for a in letters for b in letters]
    merges += [(a + b, c) for a, b in merges if a < b for c in letters]  # else b and c would merge first
    merges = merges[: size - len(pieces) - 1]
    vocabulary = {piece: id for id, piece in enumerate([*pieces, *("".join(pair) for pair in merges), "<|endoftext|>"])}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def serve(file: Path, context: int, threads: int = 1, slots: int = 1, exact: bool = False) -> Any:
    """llama.cpp with a file loaded.

    Args:
        file: GGUF.
        context: tokens of each slot.
        threads: of prompts and steps.
        slots: texts at a time.
        exact: a cache in fp32 and plain attention, instead of what llama.cpp chooses.
    """
    import xllamacpp

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.n_ctx, parameters.n_parallel, parameters.n_threads_http = context * slots, slots, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.warmup, parameters.fit_params, parameters.verbosity = False, False, QUIET
    if exact:
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(parameters)
