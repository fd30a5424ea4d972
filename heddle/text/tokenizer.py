"""The tokenizer as the rest of heddle sees it; loading one, training one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from heddle.checks import checked, wrong
from heddle.errors import HeddleError, did_you_mean
from heddle.text.base import END_OF_TEXT as END_OF_TEXT
from heddle.text.base import Base, Kind, utf8
from heddle.text.file import Content, model_type, read_content
from heddle.text.heartbeat import heartbeat
from heddle.text.kinds import KINDS, READERS
from heddle.text.wrapped import KIND_OF

# `tokenizers` counts pairs in 32 bits and goes wrong without a word beyond (its issue 2058).
MOST_TRAINING_BYTES = 2**31 - 1
# It also sets memory aside for every id asked for, and where there is too little it ends the process.
MOST_IDS = 2**20


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Ids run from 0 to V - 1 (L2-49), special tokens included.

    `decode(encode(text)) == text` for every text without lone surrogates with `bytes`, `bpe` and `unigram` as heddle
    trains them. `characters` refuses text outside its alphabet. `words` and `wordpiece` promise it only for text all of
    whose words they know: an unknown one becomes `<unk>` or `[UNK]`. A loaded file keeps what its makers keep: Qwen's
    gives back text normalised to NFC, BERT's in lower case.
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
        """Id of the special token that ends a text, if there is one."""

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids that a published file puts before a text, as `<s>` in Llama's; `encode` adds nothing."""

    def encode(self, text: str, allow_special: bool | str | Collection[str] = False) -> list[int]:
        """Ids of `text`. A special token written out in it is ordinary text, unless `allow_special` says so: of all
        (True), or of those it names (L1-94).

        Raises:
            HeddleError: a lone surrogate, (`characters`) a character outside the alphabet, or a name in
                `allow_special` that is no special token.
        """

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text, in order, on several threads where the library frees them."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, special tokens written out; bytes that are not UTF-8 become U+FFFD."""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of the ids, joined. Raises HeddleError for an id outside 0 to V - 1."""

    def token_bytes(self, id: int) -> bytes:
        """Bytes that one id stands for. Raises HeddleError for an id outside 0 to V - 1."""

    def after(self, previous: int | None, id: int) -> bytes:
        """Bytes that `id` adds to the text when it follows `previous` (None: it begins the text).

        `decode` is these, joined. Most kinds look at `id` alone; words have a space between them.
        """

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """Each id of `text` with its `piece` (L2-45)."""

    def piece(self, id: int) -> str:
        """What an id spells, to be shown; part of a character shows as U+FFFD, WordPiece's `##` stays."""

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json` into the directory `path`, or to `path` itself if it ends in `.json`."""

    def fingerprint(self) -> str:
        """SHA-256 of the file's content, whatever its spacing and order of keys."""


@checked()
def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.json`, or the one in a directory: heddle's own, or a published one (BPE over bytes as GPT-2,
    Llama 3 and Qwen have it, or over characters as Llama 2 and Mistral; WordPiece as BERT; Unigram as T5).

    What a published file does around the text is left out: no token is added at its start (`begins` says which ones it would
    add) or end, nothing is cut or padded; and tokens added to a vocabulary count as special, whether or not the file calls them so.

    Raises:
        HeddleError: the file cannot be read, is damaged, or holds a tokenizer of another sort (it says which).
    """
    path, content = read_content(path)
    try:
        return _recognise(content)
    except HeddleError as error:
        raise HeddleError(f"{path}: {error}") from None
    except Exception as error:  # `tokenizers` raises nothing more precise
        said = f"{model_type(content)}, {type(error).__name__}: {' '.join(str(error).split())}"
        raise HeddleError(f"{path} is not a sound tokenizer.json ({said})") from None


def _recognise(content: Content) -> Tokenizer:
    reader = next((reader for reader in READERS if reader.recognises(content)), None)
    if reader is None:
        raise HeddleError(f"a {model_type(content)} tokenizer, which is not supported; {', '.join(KIND_OF)} are")
    made: Any = reader
    read: Tokenizer = made(content)
    return read


@checked()
def train_tokenizer(
    kind: str,
    texts: str | Iterable[str],
    vocab_size: int | None = None,
    special: Sequence[str] = (END_OF_TEXT,),
    progress: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Make a tokenizer from texts, deterministically (`unigram` nearly so, see there).

    `bytes` learns nothing and reads no text; `characters` collects the alphabet; `words` counts words; `wordpiece`
    merges frequent pieces of words; `unigram` keeps the pieces that make the text likeliest; `bpe` cuts text by GPT-4's
    pattern, then learns merges within the cuts. (Beside GPT-2's pattern, that one keeps a line break apart from the
    indentation after it, and numbers to three digits a piece; Llama 3 uses it too.) Where a text goes on without a blank for
    256 characters, `bpe` and `unigram` first cut it there, so that one long line is not a single piece.

    Args:
        vocab_size: the most ids there may be, special tokens included; `bpe`, `wordpiece` and `unigram` need it, and
            end below it only where the text is too small to fill it. `words` without it takes every word.
        special: tokens that mark boundaries: one id each, never cut, and never the ids of plain text (L1-81, L1-94).
        progress: told in words how far it is, every two seconds.

    Raises:
        HeddleError: unknown kind, no text, a vocabulary too small (it says the least), unfit special tokens.
    """
    texts = [texts] if isinstance(texts, str) else texts
    _check_special(special)
    learnt = _kind_for(kind, vocab_size, special)
    corpus = _Corpus(texts)
    with heartbeat(progress or (lambda line: None), lambda: f"{corpus.bytes / 1e6:,.1f} MB of text read"):
        tokenizer = learnt.learn(corpus, vocab_size, special)
    if learnt.needs_text and not corpus.bytes:
        raise HeddleError("there is no text to train a tokenizer on: every text given is empty")
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise HeddleError(f"vocab_size {vocab_size} is too small for {kind}: this takes {tokenizer.vocab_size} ids")
    return tokenizer


def _kind_for(kind: str, vocab_size: int | None, special: Sequence[str]) -> type[Base]:
    """The class of a kind, which must be able to do with so many ids."""
    found = next((row for name, row in KINDS.items() if name == kind), None)
    if found is None:
        raise HeddleError(f"unknown kind of tokenizer {kind!r}: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    if found.least is None or (vocab_size is None and kind == "words"):
        return found
    least = found.least + len(special)
    if vocab_size is None or vocab_size < least:
        raise HeddleError(
            f"vocab_size {vocab_size} is too small for {kind}: it takes at least {least} ({found.least} "
            f"{'bytes' if found.least == 256 else 'of its own'}, {len(special)} special), and a few thousand to be of use"
        )
    if vocab_size > MOST_IDS:
        raise HeddleError(f"vocab_size {vocab_size} is more than the {MOST_IDS:,} that {kind} may have here")
    return found


def _check_special(special: Sequence[str]) -> None:
    # A byte-level decoder reads some characters beyond ASCII as symbols of bytes, so it would spell the token wrongly.
    for token in special:
        if not token or not token.isascii() or not token.isprintable():
            raise HeddleError(f"special token {token!r} is not printable ASCII; choose one like {END_OF_TEXT!r}")
    if len(set(special)) != len(special):
        raise HeddleError(f"special tokens {special!r} are not a list of different names")


class _Corpus:
    """The texts as they are read, counted and checked."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.bytes = 0

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if not isinstance(text, str):
                raise wrong("train_tokenizer", "one of the texts", text, "a string")
            self.bytes += len(utf8(text))
            if self.bytes > MOST_TRAINING_BYTES:
                raise HeddleError("more than 2 GiB of text to train a tokenizer on; a sample of it does as well")
            yield text
