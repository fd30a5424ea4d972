"""Tokenizers that the `tokenizers` library encodes with: published ones of any model type, and some of heddle's own."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Self

import tokenizers

from heddle.checks import checked
from heddle.errors import HeddleError, article
from heddle.text.base import Base, Kind
from heddle.text.decoder_table import DecoderTable, read_decoder_table
from heddle.text.file import Content, model_type, plain_vocabulary, vocabulary

KIND_OF: dict[str, Kind] = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "words"}

# Unigram's ids are positions in a list, so special tokens must keep theirs; no text contains this noncharacter.
NEVER_TEXT = "\uffff"


class Wrapped(Base):
    """A tokenizer that encodes with `tokenizers`; heddle adds streaming decoding and keeps special tokens out of plain text.

    Decoding returns what the file preserves: BERT lower-cases and drops whitespace, Llama adds a space before the text and
    removes it again. Text outside the vocabulary becomes the unknown token, unless it falls back to bytes.

    Raises:
        HeddleError: text could be lost silently, or the decoder is not supported.
    """

    kind: Kind = "bpe"

    def __init__(self, content: Content) -> None:
        model_name = model_type(content)
        if model_name not in KIND_OF:
            raise HeddleError(f"{article(model_name)} tokenizer, which is not supported; {', '.join(KIND_OF)} are")
        self.kind = KIND_OF[model_name]
        self._pieces = {i: piece for piece, i in vocabulary(content["model"]).items()}
        self._pieces |= {token["id"]: token["content"] for token in content["added_tokens"]}
        self._spelling = self._spell(content)
        plain = plain_vocabulary(content)
        super().__init__(content, [(self._spelling.later[i], i) for i in plain.values()], exact_special=False)
        self.unknown = _unknown(content)
        if model_name == "BPE" and self.unknown is None and not _has_every_byte(content):
            raise HeddleError("a BPE tokenizer without unknown token or all 256 bytes, so text could be lost")
        bare: Content = {"truncation": None, "padding": None, "post_processor": None}
        self._encoder = tokenizers.Tokenizer.from_str(json.dumps({**content, **bare}))
        self._plain_encoder = tokenizers.Tokenizer.from_str(
            json.dumps({**content, **bare, "added_tokens": [], "model": _without_special(content)})
        )

    def _spell(self, content: Content) -> DecoderTable:
        return read_decoder_table(content, self._pieces)

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        raise HeddleError("a published tokenizer is loaded, not trained")

    @staticmethod
    def recognises(content: Content) -> bool:
        return model_type(content) in KIND_OF

    def _with_special(self, text: str, boundary: re.Pattern[str]) -> list[int]:
        # `tokenizers` has more kinds of matches (whole words, after normalizing), but only for all special tokens at once.
        return self._ids(self._encoder, text) if boundary is self._boundary else super()._with_special(text, boundary)

    def _plain(self, text: str) -> list[int]:
        return self._ids(self._plain_encoder, text)

    def _ids(self, encoder: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        except Exception as error:  # `tokenizers` raises nothing more precise
            reason = " ".join(str(error).split())
            raise HeddleError(
                f"the text has parts that this vocabulary lacks, and it has no unknown token ({reason})"
            ) from None
        return ids

    @property
    def joints(self) -> tuple[frozenset[int], frozenset[int]]:
        return self._spelling.opens, self._spelling.closes

    def after(self, previous: int | None, id: int) -> bytes:
        self.token_bytes(id)  # raises for an invalid id
        first, later, opens, closes = self._spelling
        if previous is None:
            return first[id]
        return b" " + later[id] if previous in opens and id in closes else later[id]

    @checked()
    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        ids = list(ids)
        return b"".join([self.after(None, id) for id in ids[:1]] + [self.after(*pair) for pair in pairwise(ids)])

    def piece(self, id: int) -> str:
        # The text of an id does not show whether it starts a word; in these kinds the vocabulary's notation does.
        if self.kind == "wordpiece":
            self.token_bytes(id)
            return self._pieces[id]
        return super().piece(id)


def _has_every_byte(content: Content) -> bool:
    pieces = content["model"]["vocab"]
    return bool(content["model"].get("byte_fallback")) and all(f"<0x{byte:02X}>" in pieces for byte in range(256))


def _unknown(content: Content) -> int | None:
    """The id of the unknown token; None if the vocabulary does not have it."""
    model = content["model"]
    if model_type(content) == "Unigram":
        position = model.get("unk_id")
        return position if isinstance(position, int) else None
    return vocabulary(model).get(model.get("unk_token") or "")


def _without_special(content: Content) -> Content:
    """The model without special tokens, so that plain text cannot produce one; only the unknown token stays."""
    special = {token["content"] for token in content["added_tokens"]}
    model: Content = dict(content["model"])
    if model_type(content) == "Unigram":
        # The unknown token is given by its position, whatever its name.
        model["vocab"] = [
            [f"{NEVER_TEXT}{i}{NEVER_TEXT}" if piece in special else piece, score]
            for i, (piece, score) in enumerate(model["vocab"])
        ]
        return model
    unknown = model.get("unk_token")
    model["vocab"] = {piece: i for piece, i in model["vocab"].items() if piece not in special or piece == unknown}
    if model_type(content) == "BPE":
        model |= {"dropout": None, "type": "BPE"}
        model["merges"] = [merge for merge in model["merges"] if "".join(_pair(merge)) in model["vocab"]]
    return model


def _pair(merge: str | Sequence[str]) -> Sequence[str]:
    return re.split(" ", merge, maxsplit=1) if isinstance(merge, str) else merge
