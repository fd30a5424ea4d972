"""Pairs of texts for tests: a toy language whose translation is its reverse, as records in memory, and models that read it."""

from typing import Any

import numpy as np

from heddle.config import TranslationConfig, sized
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.tasks import DataSpec
from heddle.tasks.translation import TranslationTask
from heddle.text import train_tokenizer

LETTERS = "abcdefghijkl"
SPECIAL = ("<|endoftext|>", "<start_translation>")
TOKENIZER = train_tokenizer("characters", [LETTERS], special=SPECIAL)
END, BOUNDARY = (TOKENIZER.special[name] for name in SPECIAL)
FAMILIES = {"both": ("encoder", "decoder"), "decoder": ("decoder",)}
MODELS = {
    name: sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16, stacks=stacks)
    for name, stacks in FAMILIES.items()
}


def pairs(count: int, seed: int = 0, longest: int = 8) -> Records:
    """Words of random letters, each with its reverse."""
    draw = np.random.default_rng(seed)
    sources = [draw.integers(0, len(LETTERS), draw.integers(1, longest + 1)).tolist() for _ in range(count)]
    return Records({"source": Column.of(sources), "target": Column.of([ids[::-1] for ids in sources])})


def of(*texts: tuple[str, str]) -> Records:
    """Records of these pairs."""
    columns = zip(*[[TOKENIZER.encode(text) for text in pair] for pair in texts], strict=True)
    return Records({name: Column.of(ids) for name, ids in zip(("source", "target"), columns, strict=True)})


def task(
    family: str = "both", records: Records | None = None, rows: int = 8, context: int | None = None, **settings: Any
) -> TranslationTask:
    """A task on some pairs, whose first twenty are held out too."""
    corpus = Corpus(pairs(300) if records is None else records, pairs(20, seed=1) if records is None else records)
    tokens, layout = settings.pop("batch_tokens", None), settings.pop("layout", "concatenate")
    spec = DataSpec(corpus, MODELS[family], rows, 3, context, TOKENIZER, tokens, layout=layout)
    return TranslationTask(TranslationConfig(**settings), spec)
