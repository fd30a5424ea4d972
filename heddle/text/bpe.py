"""Byte-level BPE: learned by `tokenizers`, encoded by `tiktoken` if that provably gives the same ids."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.text.base import END_OF_TEXT, Base
from heddle.text.file import (
    Content,
    bpe_model,
    byte_level,
    byte_symbols,
    describe,
    model_type,
    plain_vocabulary,
    steps_of,
)
from heddle.text.max_piece_length import BOUND, max_piece_length, stretches

# How text is split before merging; no piece crosses a split. Part of the file format, so exactly as published.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPLIT = GPT4_SPLIT.replace("{1,3}", "")
# tiktoken drops text that a pattern leaves unmatched; these match every character, and both engines treat them alike.
KNOWN_SPLITS = (GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT)

# tiktoken's regex engine keeps a state for each character of `\s+(?!\S)` and aborts at a million.
BLANK_STRETCH = 250_000

GPT2_MERGES = 50_000


class BPE(Base):
    """Byte-level byte pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019), from heddle or published.

    Attributes:
        split: the pattern that splits text before merging; None if other steps come before merging too. The bound on the
            length of a stretch does not count.
        bounded: whether long stretches without whitespace, or of whitespace alone, are split first.

    Raises:
        HeddleError: the content is BPE, but not over the 256 bytes.
    """

    kind = "bpe"
    min_vocab_size = 256

    def __init__(self, content: Content) -> None:
        symbols = byte_symbols()
        vocab = plain_vocabulary(content)
        steps = _cuts(content)
        if not vocab.keys() >= symbols.keys():
            raise HeddleError("BPE that lacks some of the 256 bytes, so text could be lost, which is not supported")
        ordinary = {bytes(map(symbols.__getitem__, piece)): i for piece, i in vocab.items()}
        super().__init__(content, ordinary.items())
        self._reference = _reference(content, vocab)
        self._normalizer = self._reference.normalizer
        self.bounded = steps[0] == BOUND
        split = _split(content, steps[1:] if self.bounded else steps)
        self.split = split
        self._fast: tiktoken.Encoding | None = None
        if split in KNOWN_SPLITS and _ids_are_ranks(content, vocab, self._reference):
            self._fast = tiktoken.Encoding("heddle", pat_str=split, mergeable_ranks=ordinary, special_tokens={})

    @property
    def ranked(self) -> bool:
        """Whether merging by lowest id provably equals merging by the list, and each piece encodes to its own id."""
        return self._fast is not None

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The merged pairs, in order, in the symbols of `byte_symbols`."""
        return [_pair(merge) for merge in self._content["model"]["merges"]]

    @property
    def normalizers(self) -> list[str]:
        """The kinds of steps that change the text first, such as NFC."""
        return [str(step.get("type")) for step in steps_of(self._content.get("normalizer"), "normalizers")]

    def _plain(self, text: str) -> list[int]:
        if self._fast is None or (not self.bounded and _has_blank_stretch(text)):
            return self._reference.encode(text, add_special_tokens=False).ids
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if not self.bounded:
            return self._fast.encode_ordinary(text)
        return [id for piece in stretches(text) for id in self._fast.encode_ordinary(piece)]

    @staticmethod
    def recognises(content: Content) -> bool:
        """Whether a BPE file is byte-level, whoever wrote it (GPT-2, Llama 3, Qwen)."""
        decoder = content.get("decoder") or {}
        if model_type(content) != "BPE" or _cuts(content)[-1].get("type") != "ByteLevel":
            return False
        return decoder.get("type") == "ByteLevel" and set().union(*plain_vocabulary(content)) <= byte_symbols().keys()

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int | None, special: Sequence[str]) -> Self:
        """Learn merges until there are `vocab_size` ids or no pair of pieces occurs twice."""
        assert vocab_size is not None
        split = pre_tokenizers.Split(tokenizers.Regex(GPT4_SPLIT), "isolated")
        learner = tokenizers.Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.Sequence(
            [max_piece_length(), split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(special),
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[],
            show_progress=False,
        )
        learner.train_from_iterator(texts, trainer)
        merges = [" ".join(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
        # The library numbers bytes by their sorted symbols; here the id of a byte is its value, as in `Bytes`.
        model = bpe_model(_vocabulary(byte_symbols(), merges), merges)
        entry = {"type": "Split", "pattern": {"Regex": GPT4_SPLIT}, "behavior": "Isolated", "invert": False}
        pre_tokenizer = {"type": "Sequence", "pretokenizers": [BOUND, entry, byte_level()]}
        return cls(describe(model, pre_tokenizer, byte_level(), special))


@checked()
def load_gpt2_merges(path: str | Path) -> BPE:
    """GPT-2's tokenizer, with its 50,257 ids, from its merges file (`vocab.bpe` or `merges.txt`) alone.

    The ids are 256 byte symbols, printable ones first, then the 50,000 merges, then `<|endoftext|>` = 50256
    (Radford et al. 2019, released encoder).

    Raises:
        HeddleError: the file cannot be read, a line is not two known pieces, or lines are missing.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise HeddleError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise HeddleError(f"{path} is not UTF-8 text, so not GPT-2's merges file") from None
    pieces = set(byte_symbols())
    merges = []
    for number, line in enumerate(lines, start=1):
        if (number == 1 and line.startswith("#version")) or (number == len(lines) and not line):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not pieces.issuperset(parts) or "".join(parts) in pieces:
            raise HeddleError(f"{path}, line {number}: {line!r} is not two known pieces that form a new one")
        pieces.add("".join(parts))
        merges.append(line)
    if len(merges) != GPT2_MERGES:
        raise HeddleError(f"{path} has {len(merges):,} merges, but GPT-2 has {GPT2_MERGES:,}; download the file again")
    model = bpe_model(_vocabulary(byte_symbols("gpt2"), merges), merges)
    return BPE(describe(model, byte_level(use_regex=True), byte_level(), [END_OF_TEXT]))


def _has_blank_stretch(text: str) -> bool:
    """Whether there may be a million consecutive whitespace characters: they would fill one of these windows."""
    windows = range(0, len(text) - BLANK_STRETCH, BLANK_STRETCH)
    return any(text[i : i + BLANK_STRETCH].isspace() for i in windows)


def _cuts(content: Content) -> list[Content]:
    """The steps before merging, in order."""
    pre_tokenizer = content.get("pre_tokenizer") or {}
    return pre_tokenizer.get("pretokenizers") or [pre_tokenizer]


def _vocabulary(symbols: Mapping[str, int], merges: Iterable[str]) -> dict[str, int]:
    """Symbols, then the result of each merge; a merge that gives an existing piece adds no id."""
    vocab = dict(symbols)
    for merge in merges:
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
    return vocab


def _reference(content: Content, vocab: Mapping[str, int]) -> tokenizers.Tokenizer:
    """`tokenizers` on the file itself, without special tokens, truncation, padding or dropout."""
    model = {**content["model"], "type": "BPE", "vocab": vocab, "dropout": None}
    bare: Content = {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None, "model": model}
    return tokenizers.Tokenizer.from_str(json.dumps({**content, **bare}))


def _split(content: Content, steps: Sequence[Content]) -> str | None:
    """The pattern that splits the text, if splitting by one pattern is all that happens before merging."""
    *before, last = steps
    model = content["model"]
    altered = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    # Both flags of ByteLevel default to true.
    if last.get("add_prefix_space", True) or any(model.get(key) for key in altered):
        return None
    if not before:
        return GPT2_SPLIT if last.get("use_regex", True) else None
    match before:
        case [{"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}]:
            return None if last.get("use_regex", True) else pattern
    return None


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """The two pieces of a merge, which newer files write as a list."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _ids_are_ranks(content: Content, vocab: Mapping[str, int], reference: tokenizers.Tokenizer) -> bool:
    """Whether merging by lowest id, as tiktoken does, is merging by the list, as `tokenizers` does.

    tiktoken joins any two neighbours whose bytes form a piece, lowest id first. Both methods agree if (1) the list
    creates pieces in the order of their ids, and (2) each piece, encoded as a text, gives just itself. Proof: suppose the
    two agree so far, and tiktoken now joins c and d into a piece. No join has crossed the ends of that stretch, so inside
    it the joins were those of the piece alone; and from c, d the piece alone can only result if the list has this merge.
    """
    merged_ids = [vocab["".join(_pair(merge))] for merge in content["model"]["merges"]]
    if merged_ids != sorted(merged_ids):
        return False
    bare = tokenizers.Tokenizer(reference.model)
    bare.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # no symbol is whitespace, so this separates the pieces
    ignore_merges, bare.model.ignore_merges = bare.model.ignore_merges, False
    encodes_itself = bare.encode(" ".join(vocab)).ids == list(vocab.values())
    bare.model.ignore_merges = ignore_merges
    return encodes_itself
