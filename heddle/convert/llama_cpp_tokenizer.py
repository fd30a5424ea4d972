"""Tokenizers in the metadata of a GGUF file, if llama.cpp would return the same ids."""

from collections.abc import Mapping
from typing import Any

from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.text.bpe import BPE, GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT
from heddle.text.file import byte_symbols
from heddle.text.max_piece_length import LONGEST
from heddle.text.tokenizer import Tokenizer

SPLITS: Mapping[str, str] = {GPT2_SPLIT: "gpt-2", GPT4_SPLIT: "llama-bpe", QWEN_SPLIT: "qwen2"}
"""Patterns that split text before merging, with llama.cpp's names for them."""

NORMAL, CONTROL, UNUSED = 1, 3, 5  # llama.cpp's types of tokens
KEY = "tokenizer.ggml."
TOKENS = KEY + "tokens"
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_metadata(
    tokenizer: Tokenizer | None, ids: SpecialIds, vocab_size: int, chat: ChatTemplateConfig | None
) -> tuple[dict[str, Any], list[str]]:
    """The metadata of a tokenizer, and notes for the user.

    A tokenizer that llama.cpp does not support is left out, with a note: llama.cpp then only reads and returns ids.

    Args:
        tokenizer: the tokenizer of the run, if it has one.
        ids: the special ids.
        vocab_size: V of the model; llama.cpp needs a token for each id.
        chat: the chat template, which is left out together with the tokenizer.
    """
    reason = unsupported(tokenizer, ids)
    if reason is not None or not isinstance(tokenizer, BPE):
        return {KEY + "model": "no_vocab"}, [
            f"no tokenizer was written, so llama.cpp only reads and returns ids: {reason}"
        ]
    symbols = {i: symbol for symbol, i in byte_symbols().items()}
    special = {i: name for name, i in tokenizer.special.items()}
    tokens, kinds = [], []
    for i in range(vocab_size):
        in_vocabulary = i < tokenizer.vocab_size
        token = "".join(symbols[byte] for byte in tokenizer.token_bytes(i)) if in_vocabulary else f"[PAD{i}]"
        tokens.append(special.get(i, token))
        kinds.append(CONTROL if i in special else NORMAL if in_vocabulary else UNUSED)
    ends = ids.ends()
    begin = tokenizer.begins[0] if tokenizer.begins else ends[0] if ids.begin is None else ids.begin
    fields: dict[str, Any] = {
        "model": "gpt2", "pre": SPLITS[str(tokenizer.split)], "tokens": tokens, "token_type": kinds,
        "merges": [" ".join(pair) for pair in tokenizer.merges], "bos_token_id": begin,
        **dict(zip(ENDS, ends, strict=False)), "add_bos_token": bool(tokenizer.begins), "add_eos_token": False,
    }  # fmt: skip
    fields |= {} if ids.padding is None else {"padding_token_id": ids.padding}
    metadata = {KEY + name: value for name, value in fields.items()}
    return metadata | ({} if chat is None else {"tokenizer.chat_template": chat.template}), _deviations(tokenizer, ids)


def unsupported(tokenizer: Tokenizer | None, ids: SpecialIds) -> str | None:
    """Why llama.cpp would not return a tokenizer's ids, or None if it would."""
    if tokenizer is None:
        return "the run has no tokenizer"
    if not isinstance(tokenizer, BPE):
        return f"llama.cpp has no tokenizer of this kind ({tokenizer.kind}) that is sure to return the same ids"
    if tokenizer.split not in SPLITS or not tokenizer.ranked or set(tokenizer.normalizers) - {"NFC"}:
        return "it splits, normalises or merges text in a way that llama.cpp does not support"
    if not tokenizer.merges:
        return "it has no merges, which llama.cpp needs"
    if not ids.ends():
        return "no id ends a text, and llama.cpp would use id 11"
    if len(tokenizer.begins) > 1:
        return f"it puts {len(tokenizer.begins)} ids before a text, and llama.cpp at most one"
    return None


def _deviations(tokenizer: BPE, ids: SpecialIds) -> list[str]:
    """Notes on rare texts and ids that llama.cpp treats differently."""
    notes = [f"llama.cpp does not normalise text ({name}) as this tokenizer does" for name in tokenizer.normalizers]
    if tokenizer.bounded:
        notes.append(
            f"llama.cpp does not split {LONGEST} characters without whitespace, or so much whitespace, as heddle does: texts with "
            "such stretches may get other ids"
        )
    if len(ids.ends()) > len(ENDS):
        notes.append(f"llama.cpp supports only {len(ENDS)} of the {len(ids.ends())} ids that end a text")
    return notes + (["llama.cpp does not support ids that must never be generated"] if ids.banned else [])
