"""Unigram as in SentencePiece: the likeliest split of a text into pieces, with bytes for characters outside the vocabulary."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Self

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from heddle.errors import HeddleError
from heddle.text.base import Base
from heddle.text.file import Content, describe, model_type
from heddle.text.max_piece_length import BOUND, max_piece_length
from heddle.text.wrapped import Wrapped

SPACE = "▁"  # U+2581 represents a space inside pieces
LINES = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
# No space is put before the text: then " It" and "It" differ, and both decode exactly.
SPACES = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": True}
CUT = {"type": "Sequence", "pretokenizers": [BOUND, LINES, SPACES]}
UNBOUNDED = {"type": "Sequence", "pretokenizers": [LINES, SPACES]}  # written by earlier versions
JOIN = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# These letters always get a piece, so that text that looks like the name of a byte can be encoded letter by letter.
ALWAYS = sorted(set("".join(BYTES)))


class Unigram(Wrapped):
    """Unigram language model over pieces (Kudo 2018), learned by `tokenizers`; any text decodes exactly.

    Ids 0 to 255 are the bytes, then pieces, likeliest first. In the file a piece writes a space as U+2581; a U+2581 in the
    text itself is encoded as bytes, whereas `tokenizers` alone would turn it into a space. Learning twice can choose
    different pieces of equal score, mostly on small repetitive texts, because the library iterates over a hash table.
    """

    kind = "unigram"
    min_vocab_size = 256 + len(ALWAYS) + 1

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        assert vocab_size is not None
        learner = tokenizers.Tokenizer(models.Unigram())
        learner.pre_tokenizer = pre_tokenizers.Sequence(
            [max_piece_length(), pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Metaspace(SPACE, "never", True)]
        )
        learned_size = vocab_size - len(special) - len(BYTES)
        trainer = trainers.UnigramTrainer(
            vocab_size=learned_size, show_progress=False, special_tokens=[], initial_alphabet=ALWAYS
        )
        try:
            learner.train_from_iterator(texts, trainer)
        except HeddleError:
            raise
        except Exception as error:  # `tokenizers` raises nothing more precise
            reason = " ".join(str(error).split())
            raise HeddleError(
                f"vocab_size {vocab_size} is too small for unigram on this text: every character takes an id ({reason})"
            ) from None
        reserved = {*special, *BYTES}
        learned = json.loads(learner.to_str())["model"]["vocab"]
        # The library sums in the order of a hash table: without the last digits the sums are nearly always equal.
        scores = {piece: round(score, 6) for piece, score in learned if piece not in reserved and score is not None}
        lowest = min(scores.values(), default=-1.0)
        scores |= {letter: lowest for letter in ALWAYS if letter not in scores}
        # The library puts leftover letters at the end, in the order of that table; sort them instead.
        bottom = min((score for piece, score in scores.items() if len(piece) > 1), default=0.0)
        leftover = sorted(piece for piece, score in scores.items() if len(piece) == 1 and score < bottom)
        scores |= zip(leftover, sorted(map(scores.__getitem__, leftover), reverse=True), strict=True)
        ordered = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))
        # Bytes must never be chosen as pieces: even the longest name of a byte must be likelier in letters.
        byte_score = 10 * lowest - 100
        vocab = [[name, byte_score] for name in BYTES] + [list(entry) for entry in ordered]
        # The library requires an unknown id; as every byte has a piece, it falls back to bytes instead.
        model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True}
        return cls(describe(model, CUT, JOIN, special))

    def _with_special(self, text: str, boundary: re.Pattern[str]) -> list[int]:
        # `tokenizers` would read a U+2581 in the text as a space; `_plain` does not.
        return Base._with_special(self, text, boundary)

    @staticmethod
    def recognises(content: Content) -> bool:
        if model_type(content) != "Unigram" or content.get("decoder") != JOIN:
            return False
        if content.get("pre_tokenizer") not in (CUT, UNBOUNDED):
            return False
        return [piece for piece, _ in content["model"]["vocab"][:256]] == BYTES

    def _plain(self, text: str) -> list[int]:
        first, *others = text.split(SPACE)
        ids = super()._plain(first)
        for part in others:
            ids += [*SPACE.encode(), *super()._plain(part)]
        return ids
