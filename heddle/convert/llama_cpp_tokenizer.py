"""A tokenizer in the metadata of a GGUF file, where llama.cpp would give its ids."""

from collections.abc import Mapping
from typing import Any

from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.ids import SpecialIds
from heddle.text.bpe import BPE, GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT
from heddle.text.file import byte_symbols
from heddle.text.max_piece_length import LONGEST
from heddle.text.tokenizer import Tokenizer

SPLITS: Mapping[str, str] = {GPT2_SPLIT: "gpt-2", GPT4_SPLIT: "llama-bpe", QWEN_SPLIT: "qwen2"}
"""Patterns that split text before merging, and llama.cpp's names for them."""

NORMAL, CONTROL, UNUSED = 1, 3, 5  # llama.cpp's types of tokens
KEY = "tokenizer.ggml."
TOKENS = KEY + "tokens"
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_metadata(
    tokenizer: Tokenizer | None, ids: SpecialIds, vocab_size: int, chat: ChatTemplateConfig | None
) -> tuple[dict[str, Any], list[str]]:
    """The metadata of a tokenizer, and notes for the user.

    A tokenizer whose ids llama.cpp would not give is left out, and a note says why: such a file takes and gives ids.

    Args:
        tokenizer: the run's, if it has one.
        ids: the special ids.
        vocab_size: V of the model; llama.cpp needs a token for each id.
        chat: the chat template, which a file without a tokenizer leaves out too.
    """
    reason = unknown(tokenizer, ids)
    if reason is not None or not isinstance(tokenizer, BPE):
        return {KEY + "model": "no_vocab"}, [f"no tokenizer was written, so llama.cpp takes and gives ids: {reason}"]
    symbols = {i: symbol for symbol, i in byte_symbols().items()}
    special = {i: name for name, i in tokenizer.special.items()}
    tokens, kinds = [], []
    for i in range(vocab_size):
        known = i < tokenizer.vocab_size
        spelt = "".join(symbols[byte] for byte in tokenizer.token_bytes(i)) if known else f"[PAD{i}]"
        tokens.append(special.get(i, spelt))
        kinds.append(CONTROL if i in special else NORMAL if known else UNUSED)
    ends = ids.ends()
    begin = tokenizer.begins[0] if tokenizer.begins else ends[0] if ids.begin is None else ids.begin
    said: dict[str, Any] = {
        "model": "gpt2", "pre": SPLITS[str(tokenizer.split)], "tokens": tokens, "token_type": kinds,
        "merges": [" ".join(pair) for pair in tokenizer.merges], "bos_token_id": begin,
        **dict(zip(ENDS, ends, strict=False)), "add_bos_token": bool(tokenizer.begins), "add_eos_token": False,
    }  # fmt: skip
    said |= {} if ids.padding is None else {"padding_token_id": ids.padding}
    found = {KEY + name: value for name, value in said.items()}
    return found | ({} if chat is None else {"tokenizer.chat_template": chat.template}), _apart(tokenizer, ids)


def unknown(tokenizer: Tokenizer | None, ids: SpecialIds) -> str | None:
    """Why llama.cpp would not give a tokenizer's ids, or None if it would."""
    if tokenizer is None:
        return "the run has none"
    if not isinstance(tokenizer, BPE):
        return f"llama.cpp has none of this kind ({tokenizer.kind}) that certainly gives the same ids"
    if tokenizer.split not in SPLITS or not tokenizer.ranked or set(tokenizer.normalizers) - {"NFC"}:
        return "it splits, normalises or merges text in a way that llama.cpp does not have"
    if not tokenizer.merges:
        return "it has no merges, and llama.cpp needs some"
    if not ids.ends():
        return "no id ends a text, and llama.cpp would take id 11 for it"
    if len(tokenizer.begins) > 1:
        return f"it puts {len(tokenizer.begins)} ids before a text, and llama.cpp at most one"
    return None


def _apart(tokenizer: BPE, ids: SpecialIds) -> list[str]:
    """What llama.cpp does otherwise with rare texts or ids."""
    notes = [f"llama.cpp does not normalise text ({name}) as this tokenizer does" for name in tokenizer.normalizers]
    if tokenizer.bounded:
        notes.append(
            f"llama.cpp does not split {LONGEST} characters without a blank, or so many blanks, as heddle does: only texts with "
            "such stretches may get other ids"
        )
    if len(ids.ends()) > len(ENDS):
        notes.append(f"of the {len(ids.ends())} ids that end a text, llama.cpp knows {len(ENDS)}")
    return notes + (["llama.cpp does not know the ids that must never be generated"] if ids.banned else [])
