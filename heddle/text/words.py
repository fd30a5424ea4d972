"""Words, and words split into subwords (WordPiece); words outside the vocabulary become the unknown token."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.text.decoder_table import DecoderTable
from heddle.text.file import Content, describe, model_type
from heddle.text.wrapped import Wrapped

UNKNOWN_WORD = "<unk>"
UNKNOWN = "[UNK]"
PREFIX = "##"
LONGEST_WORD = 100  # characters of the longest word that WordPiece splits; the library's and BERT's number

# A word is a run of these; every other character, including whitespace, is a piece. A single space between two words is left
# out: two words can only be neighbours if there was one, so decoding can restore it.
LETTER = r"[\p{L}\p{M}\p{N}_]"
GAP = {"type": "Split", "pattern": {"Regex": f"(?<={LETTER}) (?={LETTER})"}, "behavior": "Removed", "invert": False}
WORD = {"type": "Split", "pattern": {"Regex": f"{LETTER}+"}, "behavior": "Isolated", "invert": False}
CHARACTER = {
    "type": "Split",
    "pattern": {"Regex": r"[^\p{L}\p{M}\p{N}_]"},
    "behavior": "Isolated",
    "invert": False,
}
STEPS: list[Content] = [GAP, WORD, CHARACTER]
CUT = {"type": "Sequence", "pretokenizers": STEPS}

# The same rule for spaces, for readers of the file that use `tokenizers`: mark the edges of words; there is a space where
# two edges meet. The marks are noncharacters.
EDGE, INSIDE = "\ufdd0", "\ufdd1"


def _replace(pattern: Content, new: str) -> Content:
    return {"type": "Replace", "pattern": pattern, "content": new}


def _join(unknown: str) -> Content:
    steps = [
        _replace({"Regex": rf"\A{PREFIX}(?={LETTER})"}, INSIDE),
        _replace({"Regex": rf"\A(?={LETTER})|(?<={LETTER})\z"}, EDGE),
        _replace({"Regex": rf"\A{re.escape(unknown)}\z"}, EDGE + unknown + EDGE),
        {"type": "Fuse"},
        _replace({"String": EDGE + INSIDE}, ""),
        _replace({"String": EDGE + EDGE}, " "),
        _replace({"String": EDGE}, ""),
        _replace({"String": INSIDE}, ""),
    ]
    return {"type": "Sequence", "decoders": steps}


class Spaced(Wrapped):
    """Words separate from everything else, with the single space between two of them implied.

    Text without unknown parts decodes exactly; an unknown part decodes as the unknown token's name.
    """

    prefix = ""

    def _spell(self, content: Content) -> DecoderTable:
        pieces = self._pieces
        special = {token["id"] for token in content["added_tokens"]}
        inside = {i for i, piece in pieces.items() if self.prefix and piece.startswith(self.prefix)} - special
        inside = {i for i in inside if len(pieces[i]) > len(self.prefix)}
        texts = {i: piece.removeprefix(self.prefix) if i in inside else piece for i, piece in pieces.items()}
        letters = letters_among({text[0] for text in texts.values() if text})
        unknown = content["model"].get("unk_token")
        words = {i for i, text in texts.items() if text and (text[0] in letters or text == unknown)} - special
        spelt = {i: text.encode() for i, text in texts.items()}
        return DecoderTable(spelt, spelt, frozenset(words), frozenset(words - inside))


def _cutter() -> pre_tokenizers.PreTokenizer:
    """`CUT` as a pre-tokenizer."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(step["pattern"]["Regex"]), step["behavior"].lower()) for step in STEPS]
    )


class Words(Spaced):
    """One id per word from 1 on, most frequent first; id 0 is `<unk>`, for every other word (L2-46)."""

    kind = "words"
    min_vocab_size = 2

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        max_words = 2**20 if vocab_size is None else vocab_size - len(special)
        learner = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN_WORD))
        learner.pre_tokenizer = _cutter()
        trainer = trainers.WordLevelTrainer(
            vocab_size=max_words, min_frequency=1, show_progress=False, special_tokens=[UNKNOWN_WORD]
        )
        learner.train_from_iterator(texts, trainer)
        return cls(describe(json.loads(learner.to_str())["model"], CUT, _join(UNKNOWN_WORD), special))

    @staticmethod
    def recognises(content: Content) -> bool:
        return model_type(content) == "WordLevel" and content.get("pre_tokenizer") == CUT


class WordPiece(Spaced):
    """Words split into the longest pieces in the vocabulary, from the left; `##` marks a piece inside a word.

    A word with a character that no piece has, or with more than 100 characters, is `[UNK]`. (Schuster & Nakajima 2012;
    Devlin et al. 2019; the pieces are learned by merging frequent pairs, as the library does.)
    """

    kind = "wordpiece"
    min_vocab_size = 2
    prefix = PREFIX

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        assert vocab_size is not None
        cutter = _cutter()
        words: Counter[str] = Counter()
        for text in texts:
            # Longer words are never split into pieces, so no piece is learned from them.
            words.update(word for word, _ in cutter.pre_tokenize_str(text) if len(word) <= LONGEST_WORD)
        # The library numbers letters in the order of a hash table, and the numbers decide between equal pairs. Fixing the
        # letters in advance makes the result reproducible.
        letters = sorted({word[0] for word in words}) + sorted(
            {PREFIX + letter for word in words for letter in word[1:]}
        )
        learner = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
        learner.pre_tokenizer = cutter
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size - len(special),
            min_frequency=2,
            show_progress=False,
            special_tokens=[UNKNOWN, *letters],
            continuing_subword_prefix=PREFIX,
        )
        learner.train_from_iterator(_repeated(words), trainer)
        return cls(describe(json.loads(learner.to_str())["model"], CUT, _join(UNKNOWN), special))

    @classmethod
    def of(cls, pieces: Sequence[str], special: Sequence[str] = ()) -> Self:
        """A tokenizer from a list of pieces, those inside words with `##`; ids are positions in the list."""
        model = {
            "type": "WordPiece",
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": PREFIX,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
        }
        return cls(describe(model, CUT, _join(UNKNOWN), special))

    @staticmethod
    def recognises(content: Content) -> bool:
        return model_type(content) == "WordPiece" and content.get("pre_tokenizer") == CUT


@checked()
def load_wordpiece_vocab(path: str | Path, lowercase: bool = True) -> Wrapped:
    """BERT's tokenizer from its `vocab.txt`, one piece per line; ids are the line numbers from 0 (Devlin et al. 2019).

    Text is cleaned, lower-cased with accents removed (unless `lowercase` is False, as for the cased models), and split at
    whitespace and punctuation. Pieces in square brackets that BERT names ([PAD], [CLS], ...) are special.

    Raises:
        HeddleError: the file cannot be read, a piece occurs twice, or there is no [UNK].
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise HeddleError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise HeddleError(f"{path} is not UTF-8 text, so not a vocab.txt") from None
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines):
        if vocab.setdefault(line.removesuffix("\r"), number) != number:
            raise HeddleError(f"{path}, line {number + 1}: {line!r} occurs twice")
    if UNKNOWN not in vocab:
        raise HeddleError(f"{path} has no {UNKNOWN}, so it is not BERT's vocabulary")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    named = [name for name in ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]") if name in vocab]
    return Wrapped(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": vocab[name], "content": name, **flags} for name in named],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None,
            "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": UNKNOWN,
                "continuing_subword_prefix": PREFIX,
                "max_input_chars_per_word": LONGEST_WORD,
                "vocab": vocab,
            },
        }
    )


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Texts that contain these words, each as often as counted."""
    letters = letters_among({word[0] for word in words})
    for word, count in words.items():
        for done in range(0, count, 10_000):
            times = min(10_000, count - done)
            yield " ".join([word] * times) if word[0] in letters else word * times


def letters_among(characters: Iterable[str]) -> set[str]:
    """The characters that the library treats as parts of words; Python's tables may follow another version of Unicode."""
    keep = pre_tokenizers.Split(tokenizers.Regex(LETTER), "removed", invert=True)
    return {letter for piece, _ in keep.pre_tokenize_str("".join(sorted(characters))) for letter in piece}
