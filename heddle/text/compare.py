"""One text, tokenized by every kind of tokenizer: the cost of each in length, vocabulary and unknown words."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from heddle.errors import HeddleError
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import Tokenizer, train_tokenizer


@dataclass(frozen=True)
class Cut:
    """How one kind tokenized the text. If it could not, `error` has the reason and the rest is empty."""

    kind: str
    vocab_size: int | None = None
    ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    unknown: int = 0  # how many ids are the unknown token's
    exact: bool = False  # whether the ids decode to the text
    error: str | None = None


def compare(
    text: str,
    corpus: Callable[[], Iterable[str]],
    vocab_size: int,
    kinds: Sequence[str] = tuple(KINDS),
    special: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> list[Cut]:
    """Train each kind on the corpus, which is read again for each, with at most `vocab_size` ids; tokenize the text (L2-46).

    `progress` receives a line about each training every two seconds. Kinds without a choice (bytes, characters) take the
    ids they need.

    Raises:
        HeddleError: an unknown kind; a corpus without text.
    """
    return [_tokenize(kind, text, corpus, vocab_size, special, progress) for kind in kinds]


def _tokenize(
    kind: str,
    text: str,
    corpus: Callable[[], Iterable[str]],
    vocab_size: int,
    special: Sequence[str],
    progress: Callable[[str], None] | None,
) -> Cut:
    fixed_size = any(kind == name and row.min_vocab_size is None for name, row in KINDS.items())
    # A failure to train is an error of the caller; a failure to encode is a result.
    tokenizer: Tokenizer = train_tokenizer(kind, corpus(), None if fixed_size else vocab_size, special, progress)
    try:
        ids = tokenizer.encode(text)
    except HeddleError as error:
        return Cut(kind, tokenizer.vocab_size, error=str(error))
    unknown = getattr(tokenizer, "unknown", None)
    return Cut(
        kind,
        tokenizer.vocab_size,
        tuple(ids),
        tuple(tokenizer.piece(id) for id in ids),
        sum(id == unknown for id in ids),
        tokenizer.decode(ids) == text,
    )
