"""Text to ids and back: tokenizers of every kind, each saved as one `tokenizer.json`.

In reading order:

- `tokenizer`: the interface (`Tokenizer`), and training and loading a tokenizer.
- `base`: what every tokenizer shares: special tokens, decoding, saving; `kinds`: the table of kinds.
- `simple`: bytes and characters; `words`: words and WordPiece; `bpe`: byte-level BPE; `unigram`: SentencePiece's Unigram.
- `word_splitter`: the words of a text without a vocabulary.
- `wrapped`: tokenizers that the `tokenizers` library runs, such as published ones.
- `max_piece_length`: limits the length of a piece, so that learning merges stays fast.
- `file`: reads and writes `tokenizer.json`; `decoder_table`: the text of each id, from its `decoder`.
- `template`: chat templates in Jinja's sandbox; `template_process`: untrusted ones, in a subprocess with a timeout.
- `chat_template`: conversations as ids (`ChatTemplate`).
- `masking`: texts with mask tokens as ids.
- `stream`: decodes ids one at a time, never splitting a character.
- `processes`: encodes in several processes, each of which runs `worker`.
- `compare`: one text, tokenized by every kind; `explain`: how one kind cuts it, step by step.

`train_tokenizer(kind, texts)` and `load_tokenizer(path)` return a `Tokenizer`, with `encode` and `decode`.
"""

from heddle.text.bpe import load_gpt2_merges as load_gpt2_merges
from heddle.text.chat_template import ChatTemplate as ChatTemplate
from heddle.text.explain import Explanation as Explanation
from heddle.text.explain import explain as explain
from heddle.text.stream import TextStream as TextStream
from heddle.text.tokenizer import END_OF_TEXT as END_OF_TEXT
from heddle.text.tokenizer import Tokenizer as Tokenizer
from heddle.text.tokenizer import add_special_tokens as add_special_tokens
from heddle.text.tokenizer import load_tokenizer as load_tokenizer
from heddle.text.tokenizer import train_tokenizer as train_tokenizer
from heddle.text.words import load_wordpiece_vocab as load_wordpiece_vocab

__all__ = [
    "END_OF_TEXT",
    "ChatTemplate",
    "Explanation",
    "TextStream",
    "Tokenizer",
    "add_special_tokens",
    "explain",
    "load_gpt2_merges",
    "load_tokenizer",
    "load_wordpiece_vocab",
    "train_tokenizer",
]
