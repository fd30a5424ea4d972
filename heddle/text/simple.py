"""The two tokenizers without merges: bytes and characters."""

from collections.abc import Iterable, Sequence
from typing import Self

from heddle.errors import HeddleError
from heddle.text.base import Base
from heddle.text.file import Content, bpe_model, byte_level, byte_symbols, describe, model_type, plain_vocabulary

EACH_CHARACTER = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
JOINED = {"type": "Fuse"}


class Bytes(Base):
    """The id of a UTF-8 byte is its value, 0 to 255; special tokens follow. In the file: byte-level BPE without merges."""

    kind = "bytes"
    needs_text = False

    def __init__(self, content: Content) -> None:
        super().__init__(content, [(bytes([byte]), byte) for byte in range(256)])

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        return cls(describe(bpe_model(byte_symbols(), ()), byte_level(), byte_level(), special))

    @staticmethod
    def recognises(content: Content) -> bool:
        """Whether a BPE file is only the 256 bytes in order, one at a time."""
        bare = model_type(content) == "BPE" and content["pre_tokenizer"] == byte_level()
        return bare and plain_vocabulary(content) == byte_symbols()

    def _plain(self, text: str) -> list[int]:
        return list(text.encode())


class Characters(Base):
    """One id per character of the training text, in code point order; special tokens follow.

    A character outside this alphabet is an error: an unknown token in its place would lose text silently.
    """

    kind = "characters"

    def __init__(self, content: Content) -> None:
        self._ids = plain_vocabulary(content)
        super().__init__(content, [(char.encode(), i) for char, i in self._ids.items()])

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        vocab = {char: i for i, char in enumerate(sorted(alphabet))}
        # The format requires an unknown token. It is not in the vocabulary, so `tokenizers` refuses unknown characters too.
        model = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
        return cls(describe(model, EACH_CHARACTER, JOINED, special))

    @staticmethod
    def recognises(content: Content) -> bool:
        """Whether a word-level file splits text into characters, and its words are characters."""
        if model_type(content) != "WordLevel":
            return False
        cut = content["pre_tokenizer"] == EACH_CHARACTER and content["decoder"] == JOINED
        return cut and all(len(word) == 1 for word in plain_vocabulary(content))

    def _plain(self, text: str) -> list[int]:
        try:
            return list(map(self._ids.__getitem__, text))
        except KeyError as error:
            char = error.args[0]
            at = text.index(char)
            raise HeddleError(
                f"character {char!r} at position {at} (in {text[max(0, at - 20) : at + 1]!r}) is not among the "
                f"{len(self._ids)} characters of this tokenizer; train it on text that has it, or use bytes or bpe"
            ) from None
