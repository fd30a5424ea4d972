"""How a tokenizer cuts a text, step by step: BPE's merges, WordPiece's longest matches, Unigram's best path."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

import tokenizers

from heddle.checks import checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.text.base import Base
from heddle.text.file import Content, vocabulary
from heddle.text.tokenizer import Tokenizer

UNKNOWN_PENALTY = 10.0  # an unknown character's score is this much below the least likely piece's; the library's number


@displayed()
@dataclass(frozen=True)
class CutStep:
    """One step of cutting a word.

    Attributes:
        pieces: what the word is cut into after the step; for WordPiece and Unigram, what is left of it comes last.
        reason: why.
        rank: the number of BPE's rule, from 1: rules that were learned first come first.
        joined: the two pieces that BPE joined.
        score: for Unigram, the log-probability of the pieces so far.
    """

    pieces: tuple[str, ...]
    reason: str = ""
    rank: int | None = None
    joined: tuple[str, ...] | None = None
    score: float | None = None


@displayed(".steps")
@dataclass(frozen=True)
class WordCut:
    """How one word is cut.

    Attributes:
        word: the stretch of text that no piece crosses.
        steps: in order; the first is the start.
        pieces: the result.
        ids: their ids.
    """

    word: str
    steps: tuple[CutStep, ...]
    pieces: tuple[str, ...]
    ids: tuple[int, ...]


@displayed(".words, or print(*explanation.lines(), sep='\\n')")
@dataclass(frozen=True)
class Explanation:
    """How a text is cut.

    Attributes:
        kind: `bpe`, `wordpiece`, `unigram`, `words`, `characters` or `bytes`.
        method: what this kind does, in a sentence.
        words: the stretches of the text that are cut separately.
    """

    kind: str
    method: str
    words: tuple[WordCut, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the text."""
        return tuple(id for word in self.words for id in word.ids)

    def lines(self) -> Iterator[str]:
        """The explanation as text; a word that comes again is left out."""
        yield f"{self.kind}: {self.method}"
        for word in dict.fromkeys(self.words):
            yield ""
            yield f"{word.word!r}"
            reasons = [_reason(step) for step in word.steps]
            width = max(map(len, reasons))
            for step, reason in zip(word.steps, reasons, strict=True):
                yield f"  {reason:<{width}}  {' · '.join(map(_visible, step.pieces))}".rstrip()
            yield f"  {'ids':<{width}}  {' · '.join(map(str, word.ids))}"


def _reason(step: CutStep) -> str:
    if step.joined is not None:
        return f"rule {step.rank:,}: {' + '.join(map(_visible, step.joined))}"
    score = "" if step.score is None else f", {step.score:.2f}"
    return step.reason + score


def _visible(piece: str) -> str:
    """A piece with its spaces as ␣."""
    return piece.replace(" ", "␣") if piece.isprintable() else repr(piece)


@checked()
def explain(tokenizer: Tokenizer, text: str) -> Explanation:
    """Cut a text step by step, as the tokenizer does at once (L2-47, L2-48).

    Raises:
        HeddleError: the tokenizer is not heddle's, or cuts texts by more than its model, such as a suffix of words.
    """
    if not isinstance(tokenizer, Base):
        raise HeddleError("explain: tokenizer: must be one that heddle trained or loaded")
    ids = tokenizer.encode(text)  # raises for a character that it does not know
    method, cut = METHODS[tokenizer.kind]
    content = tokenizer.content
    vocab = vocabulary(content["model"])
    words = tuple(
        _word(tokenizer, word, vocab, cut(symbols, content["model"], vocab))
        for word, symbols in ([(text, text)] if tokenizer.kind == "characters" and text else _words(content, text))
    )
    result = Explanation(tokenizer.kind, method, words)
    if list(result.ids) != ids:
        raise HeddleError(
            f"this {tokenizer.kind} tokenizer cuts {text!r} by more than its pieces, which is not explained"
        )
    return result


Steps = tuple[list[CutStep], list[str]]  # with the pieces of the result as the vocabulary writes them


def _word(tokenizer: Base, word: str, vocab: Mapping[str, int], cut: Steps) -> WordCut:
    steps, symbols = cut
    ids = tuple(vocab[symbol] for symbol in symbols)

    def named(symbols: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(tokenizer.piece(vocab[symbol]) if symbol in vocab else symbol for symbol in symbols)

    if tokenizer.kind in ("bpe", "bytes"):  # these write bytes as symbols
        steps = [replace(step, pieces=named(step.pieces), joined=step.joined and named(step.joined)) for step in steps]
    return WordCut(word, tuple(steps), tuple(map(tokenizer.piece, ids)), ids)


def _words(content: Content, text: str) -> list[tuple[str, str]]:
    """The stretches of a text that no piece crosses, each with the symbols that stand for it."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    bare: Content = {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None, "decoder": None}
    runner = tokenizers.Tokenizer.from_str(json.dumps({**content, **bare, "model": model}))
    if runner.normalizer is not None:
        text = runner.normalizer.normalize_str(text)
    if not text:
        return []
    if runner.pre_tokenizer is None:
        return [(text, text)]
    return [(text[start:stop], symbols) for symbols, (start, stop) in runner.pre_tokenizer.pre_tokenize_str(text)]


def _merges(word: str, model: Content, vocab: Mapping[str, int]) -> Steps:
    """BPE: join the leftmost neighbours whose rule was learned first, until no rule applies."""
    ranks: dict[tuple[str, str], float] = {}
    for number, merge in enumerate(model["merges"], start=1):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault((left, right), number)
    pieces = [symbol for character in word for symbol in _known(character, model, vocab)]
    steps = [CutStep(tuple(pieces), "start")]
    if model.get("ignore_merges") and word in vocab:
        return [*steps, CutStep((word,), "the word is a piece")], [word]
    while True:
        pairs = [(ranks.get(pair, inf), place) for place, pair in enumerate(pairwise(pieces))]
        rank, place = min(pairs, default=(inf, 0))
        if rank == inf:
            return steps, pieces
        joined = (pieces[place], pieces[place + 1])
        pieces[place : place + 2] = ["".join(joined)]
        steps.append(CutStep(tuple(pieces), rank=int(rank), joined=joined))


def _known(character: str, model: Content, vocab: Mapping[str, int]) -> list[str]:
    """A character, or the bytes or the unknown token in its place."""
    if character in vocab:
        return [character]
    names = [f"<0x{byte:02X}>" for byte in character.encode()]
    if model.get("byte_fallback") and all(name in vocab for name in names):
        return names
    return [model["unk_token"]] if model.get("unk_token") else [character]


def _longest(word: str, model: Content, vocab: Mapping[str, int]) -> Steps:
    """WordPiece: the longest piece that the rest of the word starts with."""
    prefix, unknown = model["continuing_subword_prefix"], model["unk_token"]
    pieces: list[str] = []
    steps, start = [CutStep((word,), "start")], 0
    while start < len(word):
        ends = range(len(word), start, -1)
        starting = prefix if start else ""
        stop = next((end for end in ends if starting + word[start:end] in vocab), None)
        if stop is None or len(word) > model["max_input_chars_per_word"]:
            reason = f"not a piece of {word[start:]!r} is known" if stop is None else "the word is too long"
            return [*steps, CutStep((unknown,), reason)], [unknown]
        pieces.append(starting + word[start:stop])
        tried = len(word) - stop + 1
        rest = (word[stop:],) if stop < len(word) else ()
        steps.append(CutStep((*pieces, *rest), f"longest match, {tried} tried"))
        start = stop
    return steps, pieces


def _best_path(word: str, model: Content, vocab: Mapping[str, int]) -> Steps:
    """Unigram: for each beginning of the word, the pieces with the largest sum of log-probabilities."""
    scores = dict(model["vocab"])
    unknown = min(scores.values()) - UNKNOWN_PENALTY
    longest = max(map(len, scores))
    best: list[tuple[float, tuple[str, ...]]] = [(0.0, ())]
    for end in range(1, len(word) + 1):
        top: tuple[float, tuple[str, ...]] = (-inf, ())
        for start in range(max(0, end - longest), end):
            piece, (before, path) = word[start:end], best[start]
            score = scores.get(piece, unknown if len(piece) == 1 else -inf)
            if before + score > top[0]:
                top = before + score, (*path, piece)
        best.append(top)
    steps = [
        CutStep((*path, *([word[end:]] if end < len(word) else [])), "best", score=score)
        for end, (score, path) in enumerate(best)
        if end
    ]
    names = [symbol for piece in best[-1][1] for symbol in _unigram_symbols(piece, model, vocab)]
    return steps, names


def _unigram_symbols(piece: str, model: Content, vocab: Mapping[str, int]) -> list[str]:
    if piece in vocab:
        return [piece]
    names = [f"<0x{byte:02X}>" for byte in piece.encode()]
    return names if model.get("byte_fallback") else [model["vocab"][model["unk_id"]][0]]


def _lookup(word: str, model: Content, vocab: Mapping[str, int]) -> Steps:
    """Words: the word itself, or the unknown token."""
    known = word in vocab
    piece = word if known else model["unk_token"]
    return [CutStep((piece,), "known" if known else "unknown")], [piece]


def _each(word: str, model: Content, vocab: Mapping[str, int]) -> Steps:
    """Characters or bytes: each is a piece."""
    return [CutStep(tuple(word), "each")], list(word)


Cutter = Callable[[str, Any, Mapping[str, int]], Steps]
METHODS: Mapping[str, tuple[str, Cutter]] = {
    "bpe": (
        "a word starts as its symbols; the neighbours whose rule was learned first are joined, again and again",
        _merges,
    ),
    "wordpiece": ("from the left, the longest piece of the vocabulary that the rest of the word starts with", _longest),
    "unigram": (
        "of all ways to cut a word, the one whose pieces have the largest product of probabilities",
        _best_path,
    ),
    "words": ("each word is one piece, or unknown", _lookup),
    "characters": ("each character is a piece", _each),
    "bytes": ("each byte is a piece", _each),
}
