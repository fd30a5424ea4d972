"""What every tokenizer shares: special tokens, decoding, saving."""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import tokenizers

from heddle.checks import checked, short_repr
from heddle.display import brief
from heddle.errors import HeddleError, did_you_mean
from heddle.text.file import Around, Content, frame_entry, special_entries, steps_of, vocabulary, write_content
from heddle.text.masking import MASKS, masked_ids, stand_ins

Kind = Literal["bytes", "characters", "words", "bpe", "wordpiece", "unigram"]

END_OF_TEXT = "<|endoftext|>"
# A tokenizer.json does not say which special token ends a text; these are the names that published families use.
ENDINGS = (END_OF_TEXT, "<|end_of_text|>", "</s>")


class Base(ABC):
    """A tokenizer over a finished `tokenizer.json`. Subclasses add training and the encoding of plain text.

    `heddle.text.Tokenizer` documents the public methods.

    Args:
        content: the file, as parsed JSON.
        ordinary: the bytes and the id of every piece that is not special.
        exact_special: whether this class finds special tokens itself, by their exact text. Otherwise the subclass leaves that
            to `tokenizers`, which supports more kinds of matches.
    """

    kind: Kind
    needs_text: ClassVar[bool] = True  # whether learning reads the text
    min_vocab_size: ClassVar[int | None] = None  # fewest ids, without special tokens; None: any size, or no choice
    unknown: int | None = None  # the id for everything the vocabulary lacks, if the kind has one

    def __init__(self, content: Content, ordinary: Iterable[tuple[bytes, int]], exact_special: bool = True) -> None:
        added = content["added_tokens"]
        special = {token["content"]: token["id"] for token in added}
        table = sorted([(i, text.encode()) for text, i in special.items()] + [(i, b) for b, i in ordinary])
        if [i for i, _ in table] != list(range(len(table))):
            raise HeddleError(f"its {len(table)} ids must be 0 to {len(table) - 1}, but some are missing or repeated")
        for token in added if exact_special else ():
            # `normalized` matters only if a normalizer changes the text before the token is searched for.
            if token.get("single_word") or (token.get("normalized") and content.get("normalizer")):
                raise HeddleError(f"special token {token['content']!r} is matched in a way heddle does not support")
        self.special: Mapping[str, int] = MappingProxyType(special)
        self.vocab_size = len(table)
        self.end_of_text: int | None = next((special[name] for name in ENDINGS if name in special), None)
        self._content = content
        self._bytes: list[bytes] = [piece for _, piece in table]
        self._strips_left = {token["content"] for token in added if token.get("lstrip")}
        self._strips_right = {token["content"] for token in added if token.get("rstrip")}
        self._boundary = _any_of(special) if special else None
        self.around = added_around(content)
        self.begins = self.around.before
        mask = next((name for name in MASKS if name in special), None)
        self._frame = (self.around, mask) if any(self.around) else None
        out_of_range = next((ids for ids in self.around if any(id >= len(table) for id in ids)), None)
        if out_of_range is not None:
            effect = "starts texts" if out_of_range is self.begins else "marks texts"
            raise HeddleError(f"its post_processor {effect} with {out_of_range}, but there are only {len(table)} ids")

    def __repr__(self) -> str:
        special = f", {len(self.special):,} special: {brief(list(self.special), 50)}" if self.special else ""
        return f"{type(self).__name__}({self.vocab_size:,} ids{special})"

    @property
    def content(self) -> Content:
        """The `tokenizer.json`."""
        return self._content

    @classmethod
    @abstractmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        """Learn a tokenizer from texts; `vocab_size` includes the special tokens, which come last."""

    @staticmethod
    @abstractmethod
    def recognises(content: Content) -> bool:
        """Whether a file is of this kind, in the form that heddle writes."""

    @abstractmethod
    def _plain(self, text: str) -> list[int]:
        """Ids of valid UTF-8 text, without searching for special tokens."""

    @checked()
    def encode(
        self,
        text: str,
        allow_special: bool | str | Collection[str] = False,
        *,
        special: bool = False,
        pair: str | None = None,
    ) -> list[int]:
        if special or pair is not None:
            return self._framed([text] if pair is None else [text, pair], allow_special)
        if not text.isascii():
            utf8(text)
        if allow_special is False:
            return self._plain(text)
        boundary = self._boundary if allow_special is True else self._allowed_pattern(allow_special)
        return self._plain(text) if boundary is None else self._with_special(text, boundary)

    def _framed(self, texts: Sequence[str], allow_special: bool | str | Collection[str]) -> list[int]:
        """The ids of a text or a pair, with the special tokens that the model expects around them."""
        if self._frame is None:
            raise HeddleError(
                "encode: special: this tokenizer's file adds no special tokens around texts, so only the model knows them: "
                "use the tokenizer of heddle.load, or heddle.weights.tokenizer_of(model, tokenizer)"
            )
        around, mask = self._frame
        if len(texts) > 1 and not around.between:
            raise HeddleError("encode: pair: this model has no separator between the two texts of a pair")
        rows = [
            masked_ids(self, text, mask, self._stand_ins, allow_special)
            if mask is not None and mask in text
            else self.encode(text, allow_special)
            for text in texts
        ]
        return around.row(*rows)[0]

    @cached_property
    def _stand_ins(self) -> list[str]:
        return stand_ins(self)

    def _allowed_pattern(self, allowed: Collection[str]) -> re.Pattern[str] | None:
        """The pattern for some special tokens, all of which must be known."""
        names = {allowed} if isinstance(allowed, str) else set(allowed)
        unknown = next((name for name in sorted(names) if name not in self.special), None)
        if unknown is not None:
            raise HeddleError(
                f"{unknown!r} is not one of this tokenizer's special tokens ({', '.join(self.special) or 'none'})."
                f"{did_you_mean(unknown, self.special)}"
            )
        return _any_of(names) if names else None

    def _with_special(self, text: str, boundary: re.Pattern[str]) -> list[int]:
        parts = boundary.split(text)  # plain, special, plain, ..., plain
        for i in range(1, len(parts), 2):
            if parts[i] in self._strips_left:
                parts[i - 1] = parts[i - 1].rstrip()
            if parts[i] in self._strips_right:
                parts[i + 1] = parts[i + 1].lstrip()
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self.special[part]] if i % 2 else self._plain(part)
        return ids

    @checked()
    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        texts = list(texts)
        workers = min(os.cpu_count() or 1, len(texts))
        if workers < 2:
            return [self.encode(text) for text in texts]
        # A task per text would cost more than encoding a short text: give each thread a few long slices.
        size = -(-len(texts) // (4 * workers))
        slices = [texts[i : i + size] for i in range(0, len(texts), size)]
        with ThreadPoolExecutor(workers) as pool:
            encoded = pool.map(lambda part: [self.encode(text) for text in part], slices)
            return [ids for part in encoded for ids in part]

    def token_bytes(self, id: int) -> bytes:
        try:
            piece = self._bytes[id] if 0 <= id < self.vocab_size else None
        except (TypeError, ValueError, RuntimeError):  # not an integer; checking first would slow down every id
            piece = None
        if piece is None:
            raise HeddleError(f"id {short_repr(id)} is out of range (vocab size {self.vocab_size})")
        return piece

    @property
    def joints(self) -> tuple[frozenset[int], frozenset[int]]:
        return frozenset(), frozenset()

    def after(self, previous: int | None, id: int) -> bytes:
        return self.token_bytes(id)

    @checked()
    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    @checked()
    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    @checked()
    def pieces(self, text: str) -> list[tuple[int, str]]:
        return [(i, self.piece(i)) for i in self.encode(text)]

    def piece(self, id: int) -> str:
        return self.token_bytes(id).decode(errors="replace")

    @checked()
    def save(self, path: str | Path) -> None:
        write_content(path, self._content)

    def has(self, name: str) -> bool:
        """Whether a text is one of the pieces or special tokens."""
        return name in self.special or name in vocabulary(self._content["model"])

    def with_special(self, names: Sequence[str]) -> Self:
        """A copy with these special tokens added; new ones get the ids after all others.

        Raises:
            HeddleError: a name is empty, only whitespace, or an ordinary piece, which plain text would produce.
        """
        new = [name for name in dict.fromkeys(names) if name not in self.special]
        if any(not name.strip() for name in new):
            raise HeddleError(
                "a special token needs a name that is not only whitespace, or it would match almost everywhere"
            )
        ordinary = vocabulary(self._content["model"])
        for name in new:
            if name in ordinary:
                raise HeddleError(f"special token {name!r} is also an ordinary piece of this tokenizer")
        return self._with(added_tokens=[*self._content["added_tokens"], *special_entries(new, self.vocab_size)])

    def framed(self, around: Around, typed: bool) -> Self:
        """A copy whose file puts these ids around texts; itself if its file already does.

        Args:
            around: the ids.
            typed: whether the second text of a pair, with the ids after it, has type 1.
        """
        before, between, after = around
        types = [0] * (len(before) + 1 + len(between)) + [int(typed)] * (1 + len(after))
        if self.around == around and (not typed or self.pair_types() == types):
            return self
        return self._with(post_processor=frame_entry(around, types, self._bytes) if any(around) else None)

    def reading(self, around: Around, mask: str | None) -> Self:
        """A copy with the same file, for a model that expects these ids around texts and has this mask token."""
        copied = copy(self)
        copied._frame = around, mask
        return copied

    def pair_types(self) -> list[int]:
        """The token type of each id of a pair of texts of one id each, as the file assigns them."""
        types: list[int] = _around_words(self._content)[1].type_ids
        return types

    def stripping(self, name: str, left: bool, right: bool) -> Self:
        """A copy in which this special token strips the whitespace on these sides of it."""
        flags = {"lstrip": left, "rstrip": right}
        added = [{**t, **flags} if t["content"] == name else t for t in self._content["added_tokens"]]
        return self._with(added_tokens=added)

    def normalizing(self, kind: str, settings: Mapping[str, Any]) -> Self:
        """A copy with these normalizer settings; itself if it has them already, or has another kind of normalizer."""
        entry = self._content.get("normalizer") or {}
        if entry.get("type") != kind or {**entry, **settings} == entry:
            return self
        return self._with(normalizer={**entry, **settings})

    def prefixing(self, space: bool) -> Self:
        """A copy that adds a space before a byte-level text, or adds none; itself if it already does so."""
        entry = self._content.get("pre_tokenizer") or {}
        flag = {"add_prefix_space": space}
        steps = [{**s, **flag} if s.get("type") == "ByteLevel" else s for s in steps_of(entry, "pretokenizers")]
        if steps == steps_of(entry, "pretokenizers"):
            return self
        return self._with(pre_tokenizer={"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0])

    def _with(self, **parts: Any) -> Self:
        cls: Any = type(self)
        changed: Self = cls({**self._content, **parts})
        return changed if self._frame is None or "post_processor" in parts else changed.reading(*self._frame)

    def fingerprint(self) -> str:
        canonical = json.dumps(self._content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def added_around(content: Content) -> Around:
    """The ids that the post-processor of a file adds around a text and between the two texts of a pair."""
    if not content.get("post_processor"):
        return Around()
    single, pair = _around_words(content)
    place = single.special_tokens_mask.index(0)
    first, second = (number for number, mark in enumerate(pair.special_tokens_mask) if not mark)
    return Around(tuple(single.ids[:place]), tuple(pair.ids[first + 1 : second]), tuple(single.ids[place + 1 :]))


def _around_words(content: Content) -> tuple[tokenizers.Encoding, tokenizers.Encoding]:
    """A text of one id, and a pair of such texts, both with the ids that the post-processor of a file adds.

    Post-processors nest and carry their own ids, so `tokenizers` runs them, on a vocabulary of one word.
    """
    word: Content = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    absent = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "decoder"))
    post_processor = {"post_processor": content.get("post_processor")}
    minimal_file: Content = {"version": "1.0", "added_tokens": [], **absent, **post_processor, "model": word}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(minimal_file))
    return tokenizer.encode("a"), tokenizer.encode("a", "a")


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern for one of the names; the longest match wins."""
    return re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})")


def utf8(text: str) -> bytes:
    """UTF-8 bytes. A lone surrogate, which UTF-8 cannot encode, raises a HeddleError with its position."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise HeddleError(
            f"character {text[error.start]!r} at position {error.start} is a lone surrogate and has no UTF-8 form; "
            "read the text with errors='replace'"
        ) from None
