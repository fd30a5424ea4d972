"""The tokenizer interface for the rest of heddle; loading and training a tokenizer."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from heddle.checks import checked, wrong
from heddle.errors import HeddleError, article, did_you_mean
from heddle.progress import heartbeat
from heddle.text.base import END_OF_TEXT as END_OF_TEXT
from heddle.text.base import Base, Kind, utf8
from heddle.text.file import Around as Around
from heddle.text.file import Content, lowered, model_type, read_content
from heddle.text.kinds import KINDS, READERS
from heddle.text.wrapped import KIND_OF

# `tokenizers` counts pairs in 32 bits and silently overflows (https://github.com/huggingface/tokenizers/issues/2058).
MOST_TRAINING_BYTES = 2**31 - 1
# It also allocates memory for every requested id, and ends the process if there is too little.
MOST_IDS = 2**20


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Ids run from 0 to V - 1 (L2-49), special tokens included.

    `decode(encode(text)) == text` for every text without lone surrogates with `bytes`, `bpe` and `unigram` as heddle
    trains them. `characters` refuses text outside its alphabet. `words` and `wordpiece` guarantee it only if they know
    every word of the text: an unknown one becomes `<unk>` or `[UNK]`. A loaded file preserves what its authors preserve:
    Qwen's returns text normalised to NFC, BERT's in lower case.
    """

    @property
    def kind(self) -> Kind:
        """`bytes`, `characters`, `words`, `bpe`, `wordpiece` or `unigram`."""

    @property
    def vocab_size(self) -> int:
        """V, the number of ids, special tokens included."""

    @property
    def special(self) -> Mapping[str, int]:
        """Tokens that mark boundaries rather than spell text, with their ids (L1-94)."""

    @property
    def end_of_text(self) -> int | None:
        """The id of the special token that ends a text; None if there is none."""

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids that a published file puts before a text, such as `<s>` in Llama's; `encode` adds them only with `special`."""

    @property
    def joints(self) -> tuple[frozenset[int], frozenset[int]]:
        """The ids after which, and those before which, a space is implied: `decode` adds one between two such neighbours."""

    @property
    def around(self) -> Around:
        """All ids that a published file puts around a text and between two texts; `encode` adds them only with `special`."""

    def encode(
        self,
        text: str,
        allow_special: bool | str | Collection[str] = False,
        *,
        special: bool = False,
        pair: str | None = None,
    ) -> list[int]:
        """Ids of `text`. A special token written out in it is ordinary text, except those that `allow_special` allows:
        all (True), or the named ones (L1-94).

        Args:
            text: the text.
            allow_special: see above.
            special: whether to add the ids around texts that the model was trained with, and to encode the name of the mask token
                as that token. A tokenizer from `heddle.load` knows them; one from a file knows them only if the file adds ids.
            pair: a second text; implies `special`.

        Raises:
            HeddleError: a lone surrogate, (`characters`) a character outside the alphabet, or a name in
                `allow_special` that is not a special token; or the ids around texts are unknown, or have no separator for a pair.
        """

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text, in order, on several threads if the library releases the GIL."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, special tokens written out; bytes that are not UTF-8 become U+FFFD."""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of the ids, joined. Raises HeddleError for an id outside 0 to V - 1."""

    def token_bytes(self, id: int) -> bytes:
        """Bytes of one id. Raises HeddleError for an id outside 0 to V - 1."""

    def after(self, previous: int | None, id: int) -> bytes:
        """Bytes that `id` adds to the text when it follows `previous` (None: it starts the text).

        `decode` joins these. Most kinds look at `id` alone; words have a space between them.
        """

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Each id of `text` with its `piece` (L2-45)."""

    def piece(self, id: int) -> str:
        """The text of an id, for display; part of a character becomes U+FFFD, WordPiece's `##` stays."""

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json` into the directory `path`, or to `path` itself if it ends in `.json`."""

    def fingerprint(self) -> str:
        """SHA-256 of the file's content, independent of its whitespace and order of keys."""


@checked()
def load_tokenizer(path: str | Path, lowercase: bool = False) -> Tokenizer:
    """Load a `tokenizer.json`, or the one in a directory: one from heddle, or a published one (BPE over bytes as in GPT-2,
    Llama 3 and Qwen, or over characters as in Llama 2 and Mistral; WordPiece as in BERT; Unigram as in T5).

    `encode` does not add the ids that a published file puts around a text (`begins` and `around` list them) unless `special` is
    set, and never truncates or pads. Tokens added to a vocabulary are special, whatever the file calls them.

    Args:
        lowercase: whether to lower-case texts first, whatever the file says.

    Raises:
        HeddleError: the file cannot be read, is damaged, or has an unsupported kind of tokenizer (the message names it).
    """
    path, content = read_content(path)
    try:
        return _recognise(lowered(content) if lowercase else content)
    except HeddleError as error:
        raise HeddleError(f"{path}: {error}") from None
    except Exception as error:  # `tokenizers` raises nothing more precise
        reason = f"{model_type(content)}, {type(error).__name__}: {' '.join(str(error).split())}"
        raise HeddleError(f"{path} is not a valid tokenizer.json ({reason})") from None


def _recognise(content: Content) -> Tokenizer:
    reader = next((reader for reader in READERS if reader.recognises(content)), None)
    if reader is None:
        raise HeddleError(f"{article(model_type(content))} tokenizer, which is not supported; {', '.join(KIND_OF)} are")
    construct: Any = reader
    tokenizer: Tokenizer = construct(content)
    return tokenizer


@checked()
def add_special_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """A tokenizer with further special tokens; new ones get the ids after all others. The model needs embeddings for them (see
    `heddle.weights.add_tokens`).

    Raises:
        HeddleError: a name is an ordinary piece, which plain text would produce, or the tokenizer is not heddle's.
    """
    if not isinstance(tokenizer, Base):
        raise HeddleError("add_special_tokens: tokenizer: must be one that heddle trained or loaded")
    extended: Tokenizer = tokenizer.with_special(names)
    return extended


@checked()
def train_tokenizer(
    kind: str,
    texts: str | Iterable[str],
    vocab_size: int | None = None,
    special: Sequence[str] = (END_OF_TEXT,),
    progress: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Train a tokenizer on texts, deterministically (`unigram` nearly so, see `Unigram`).

    `bytes` learns nothing and reads no text; `characters` collects the alphabet; `words` counts words; `wordpiece`
    merges frequent pieces of words; `unigram` keeps the pieces that make the text likeliest; `bpe` splits text by
    GPT-4's pattern, then learns merges within the parts. (Unlike GPT-2's, that pattern separates a line break from the
    indentation after it and limits numbers to three digits a piece; Llama 3 uses it too.) `bpe` and `unigram` first split
    text after every 256 characters without whitespace, so that one long line is not a single piece.

    Args:
        vocab_size: the maximum number of ids, special tokens included. Required for `bpe`, `wordpiece` and `unigram`, which
            stay below it only if the text is too small. Without it, `words` has an id for every word.
        special: tokens that mark boundaries: one id each, never split, and never the ids of plain text (L1-81, L1-94).
        progress: called with a line of text about the progress, every two seconds.

    Raises:
        HeddleError: unknown kind, no text, a vocabulary that is too small (the message has the minimum), or invalid special tokens.
    """
    texts = [texts] if isinstance(texts, str) else texts
    _check_special(special)
    trained = _kind_for(kind, vocab_size, special)
    corpus = _Corpus(texts)
    with heartbeat(progress or (lambda line: None), lambda: f"{corpus.bytes / 1e6:,.1f} MB of text read"):
        tokenizer = trained.learn(corpus, vocab_size, special)
    if trained.needs_text and not corpus.bytes:
        raise HeddleError("there is no text to train a tokenizer on: every text is empty")
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise HeddleError(f"vocab_size {vocab_size} is too small for {kind}: it takes {tokenizer.vocab_size} ids")
    return tokenizer


def _kind_for(kind: str, vocab_size: int | None, special: Sequence[str]) -> type[Base]:
    """The class of a kind; raise if the vocabulary size does not suit it."""
    tokenizer_class = next((row for name, row in KINDS.items() if name == kind), None)
    if tokenizer_class is None:
        raise HeddleError(f"unknown kind of tokenizer {kind!r}: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    built_in = tokenizer_class.min_vocab_size
    if built_in is None or (vocab_size is None and kind == "words"):
        return tokenizer_class
    minimum = built_in + len(special)
    if vocab_size is None or vocab_size < minimum:
        raise HeddleError(
            f"vocab_size {vocab_size} is too small for {kind}: it takes at least {minimum} ({built_in} "
            f"{'bytes' if built_in == 256 else 'built in'}, {len(special)} special), and a few thousand to be useful"
        )
    if vocab_size > MOST_IDS:
        raise HeddleError(f"vocab_size {vocab_size} is more than the {MOST_IDS:,} that heddle allows for {kind}")
    return tokenizer_class


def _check_special(special: Sequence[str]) -> None:
    # A byte-level decoder reads some non-ASCII characters as symbols of bytes, so it would spell the token wrongly.
    for token in special:
        if not token or not token.isascii() or not token.isprintable():
            raise HeddleError(f"special token {token!r} is not printable ASCII; choose one like {END_OF_TEXT!r}")
    if len(set(special)) != len(special):
        raise HeddleError(f"special tokens {special!r} must be different names")


class _Corpus:
    """Counts and checks the texts while they are read."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if not isinstance(text, str):
                raise wrong("train_tokenizer", "one of the texts", text, "a string")
            self.bytes += len(utf8(text))
            if self.bytes > MOST_TRAINING_BYTES:
                raise HeddleError("more than 2 GiB of text to train a tokenizer on; use a sample of it")
            yield text
