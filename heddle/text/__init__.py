"""Text to ids and back: tokenizers of every kind, each saved as one `tokenizer.json`."""

from heddle.text.bpe import load_gpt2_merges as load_gpt2_merges
from heddle.text.stream import TextStream as TextStream
from heddle.text.tokenizer import END_OF_TEXT as END_OF_TEXT
from heddle.text.tokenizer import Tokenizer as Tokenizer
from heddle.text.tokenizer import load_tokenizer as load_tokenizer
from heddle.text.tokenizer import train_tokenizer as train_tokenizer
from heddle.text.words import load_wordpiece_vocab as load_wordpiece_vocab

__all__ = [
    "END_OF_TEXT",
    "TextStream",
    "Tokenizer",
    "load_gpt2_merges",
    "load_tokenizer",
    "load_wordpiece_vocab",
    "train_tokenizer",
]
