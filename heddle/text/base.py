"""What every tokenizer shares: special tokens, decoding, saving."""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from heddle.errors import HeddleError
from heddle.text.file import Content, write_content

Kind = Literal["bytes", "characters", "bpe"]

END_OF_TEXT = "<|endoftext|>"
# A tokenizer.json does not say which special token ends a text; these are the names published families use.
ENDINGS = (END_OF_TEXT, "<|end_of_text|>", "</s>")


class Base(ABC):
    """A tokenizer over a finished `tokenizer.json`; a kind adds only how plain text becomes ids.

    The public methods are described in `heddle.text.Tokenizer`.

    Args:
        content: the file, as parsed JSON.
        ordinary: the bytes of every piece that is not special, with its id.
    """

    kind: Kind

    def __init__(self, content: Content, ordinary: Mapping[bytes, int]) -> None:
        added = content["added_tokens"]
        special = {token["content"]: token["id"] for token in added}
        table = sorted([(i, text.encode()) for text, i in special.items()] + [(i, b) for b, i in ordinary.items()])
        if [i for i, _ in table] != list(range(len(table))):
            raise HeddleError(f"its {len(table)} ids are not 0 to {len(table) - 1}: some are missing or repeated")
        for token in added:
            # `normalized` has a meaning only where a normalizer would change the text before the token is looked for.
            if token.get("single_word") or (token.get("normalized") and content.get("normalizer")):
                raise HeddleError(f"special token {token['content']!r} is matched in a way heddle does not support")
        self.special: Mapping[str, int] = MappingProxyType(special)
        self.vocab_size = len(table)
        self.end_of_text: int | None = next((special[name] for name in ENDINGS if name in special), None)
        self._content = content
        self._bytes: list[bytes] = [piece for _, piece in table]
        self._strips_left = {token["content"] for token in added if token.get("lstrip")}
        self._strips_right = {token["content"] for token in added if token.get("rstrip")}
        longest_first = sorted(special, key=len, reverse=True)
        self._boundary = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if special else None

    @abstractmethod
    def _plain(self, text: str) -> list[int]:
        """Ids of text that has UTF-8 form, special tokens not looked for."""

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        if not text.isascii():
            utf8(text)
        if not allow_special or self._boundary is None:
            return self._plain(text)
        parts = self._boundary.split(text)  # plain, special, plain, ..., plain
        for i in range(1, len(parts), 2):
            if parts[i] in self._strips_left:
                parts[i - 1] = parts[i - 1].rstrip()
            if parts[i] in self._strips_right:
                parts[i + 1] = parts[i + 1].lstrip()
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self.special[part]] if i % 2 else self._plain(part)
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        texts = list(texts)
        workers = min(os.cpu_count() or 1, len(texts))
        if workers < 2:
            return [self.encode(text) for text in texts]
        # A task per text would cost more than encoding a short text does: hand out a few long stretches per thread.
        size = -(-len(texts) // (4 * workers))
        stretches = [texts[i : i + size] for i in range(0, len(texts), size)]
        with ThreadPoolExecutor(workers) as pool:
            encoded = pool.map(lambda stretch: [self.encode(text) for text in stretch], stretches)
            return [ids for stretch in encoded for ids in stretch]

    def token_bytes(self, id: int) -> bytes:
        if 0 <= id < self.vocab_size:
            return self._bytes[id]
        raise HeddleError(f"id {id} is not one of this tokenizer's {self.vocab_size} ids (0 to {self.vocab_size - 1})")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    def pieces(self, text: str) -> list[tuple[int, str]]:
        return [(i, self.decode([i])) for i in self.encode(text)]

    def save(self, path: str | Path) -> None:
        write_content(path, self._content)

    def fingerprint(self) -> str:
        canonical = json.dumps(self._content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def utf8(text: str) -> bytes:
    """UTF-8 bytes; a lone surrogate, which UTF-8 cannot hold, is a HeddleError with its place."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise HeddleError(
            f"character {text[error.start]!r} at position {error.start} is a lone surrogate and has no UTF-8 form; "
            "read the text with errors='replace'"
        ) from None
