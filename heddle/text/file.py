"""The file format of every kind: a `tokenizer.json` in the layout of the `tokenizers` library."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heddle.errors import HeddleError

Content = dict[str, Any]

FILE_NAME = "tokenizer.json"


class Around(NamedTuple):
    """The ids that a published file puts before a text, between the two texts of a pair, and after a text."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def row(self, text: Sequence[int], pair: Sequence[int] | None = None) -> tuple[list[int], int]:
        """The ids of a text or a pair with the ids around them, and how many come before the second text (all, without one)."""
        first = [*self.before, *text, *(self.after if pair is None else self.between)]
        return (first, len(first)) if pair is None else ([*first, *pair, *self.after], len(first))


def read_content(path: str | Path) -> tuple[Path, Content]:
    """The file (inside `path` if that is a directory) and its content."""
    path = Path(path)
    if path.is_dir():
        path /= FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeddleError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, truncated, not JSON, or nested too deeply
        raise HeddleError(
            f"{path} is not JSON ({error}); the file may be truncated: download or write it again"
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise HeddleError(f"{path} is JSON but not a tokenizer.json: it has no 'model'")
    return path, content


def write_content(path: str | Path, content: Content) -> None:
    """Write the file atomically; a `path` that does not end in `.json` is its directory."""
    path = Path(path)
    target = path if path.suffix == ".json" else path / FILE_NAME
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8") as stream:
                json.dump(content, stream, ensure_ascii=False, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HeddleError(f"cannot write {target}: {error.strerror}") from None


def describe(model: Content, pre_tokenizer: Content, decoder: Content, special: Sequence[str]) -> Content:
    """The content of a complete file; special tokens get the ids after the vocabulary.

    Raises:
        HeddleError: a special token is also an ordinary piece, so plain text would produce it.
    """
    ordinary = vocabulary(model)
    first = len(ordinary)
    for token in special:
        if token in ordinary:
            raise HeddleError(f"special token {token!r} is also an ordinary piece; choose one like '<|{token}|>'")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_entries(special, first),
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def special_entries(special: Sequence[str], first: int) -> list[Content]:
    """The entries of special tokens, with ids from `first` on, matched only by their exact text."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": first + place, "content": token, **flags} for place, token in enumerate(special)]


def frame_entry(around: Around, types: Sequence[int], texts: Sequence[bytes]) -> Content:
    """The entry for "put these ids around texts".

    Args:
        around: the ids.
        types: the token type of each id of a pair whose two texts are one id each.
        texts: the bytes of each id.
    """
    names = {id: texts[id].decode(errors="replace") for ids in around for id in ids}

    def pieces(ids: Sequence[int], types: Sequence[int]) -> list[Content]:
        return [{"SpecialToken": {"id": names[id], "type_id": t}} for id, t in zip(ids, types, strict=True)]

    def text(name: str, type_id: int) -> Content:
        return {"Sequence": {"id": name, "type_id": type_id}}

    before, between, after = around
    start = len(before)
    middle = start + 1 + len(between)
    single = [*pieces(before, [0] * start), text("A", 0), *pieces(after, [0] * len(after))]
    pair = [*pieces(before, types[:start]), text("A", types[start]), *pieces(between, types[start + 1 : middle])]
    pair += [text("B", types[middle]), *pieces(after, types[middle + 1 :])]
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def lowered(content: Content) -> Content:
    """The content of a file that lower-cases texts first."""
    first: Content = {"type": "Lowercase"}
    normalizers = [first, *steps_of(content.get("normalizer"), "normalizers")]
    return {**content, "normalizer": {"type": "Sequence", "normalizers": normalizers}}


def model_type(content: Content) -> str:
    """BPE, WordLevel, WordPiece or Unigram; old files leave out the type of BPE."""
    model = content["model"]
    return model.get("type") or ("BPE" if "merges" in model else "unnamed")


def vocabulary(model: Content) -> dict[str, int]:
    """Pieces with their ids; Unigram lists (piece, score) pairs in the order of the ids."""
    vocab = model["vocab"]
    return {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)


def plain_vocabulary(content: Content) -> dict[str, int]:
    """The model's vocabulary without special tokens, which many published files list there as well."""
    special = {token["content"] for token in content["added_tokens"]}
    return {piece: i for piece, i in vocabulary(content["model"]).items() if piece not in special}


def byte_symbols(order: Literal["bytes", "gpt2"] = "bytes") -> dict[str, int]:
    """The printable character that represents each byte in a byte-level file, with its id.

    A printable Latin-1 character represents itself; the other 68 bytes take the characters from U+0100 on, in order.
    In GPT-2's order of ids the printable ones come first (Radford et al. 2019, released encoder).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbol = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    ids = range(256) if order == "bytes" else printable + others
    return {symbol[byte]: i for i, byte in enumerate(ids)}


def byte_level(use_regex: bool = False) -> Content:
    """The entry for "split as GPT-2 does if `use_regex`, then write each byte as its symbol"."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def steps_of(entry: Content | None, name: str) -> list[Content]:
    """The steps of a pre-tokenizer, decoder or normalizer: one, several (nested) or none; `name` is their key."""
    if not entry:
        return []
    if entry.get("type") != "Sequence":
        return [entry]
    return [step for inner in entry[name] for step in steps_of(inner, name)]


def bpe_model(vocab: dict[str, int], merges: Sequence[str]) -> Content:
    """The entry for byte-level BPE; without merges it is the bytes themselves."""
    absent = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}
    off = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **absent, **off, "vocab": vocab, "merges": list(merges)}
