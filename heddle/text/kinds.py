"""The kinds of tokenizers that can be trained; a new one is a class and a row here."""

from heddle.text.base import Base, Kind
from heddle.text.bpe import BPE
from heddle.text.simple import Bytes, Characters
from heddle.text.unigram import Unigram
from heddle.text.words import WordPiece, Words
from heddle.text.wrapped import Wrapped

KINDS: dict[Kind, type[Base]] = {
    "bytes": Bytes,
    "characters": Characters,
    "words": Words,
    "bpe": BPE,
    "wordpiece": WordPiece,
    "unigram": Unigram,
}

# Readers of a file, tried in this order: heddle's formats first, then any other that `tokenizers` can encode with.
READERS: tuple[type[Base], ...] = (*KINDS.values(), Wrapped)
