"""Records of random words with labels, and models small enough to learn from them in seconds."""

from typing import Any

import numpy as np

from heddle.config import ModelChoice, TransformerConfig
from heddle.data.corpus import Corpus
from heddle.data.records import Column, Records
from heddle.tasks import DataSpec
from heddle.text import train_tokenizer

WORDS = ["the", "warp", "is", "held", "and", "the", "weft", "is", "thrown", "over"]
TOKENIZER = train_tokenizer("words", [" ".join(WORDS)], 100, ("[CLS]", "[SEP]"))
CLS, SEP = TOKENIZER.special["[CLS]"], TOKENIZER.special["[SEP]"]
NAMES = ("cold", "warm", "hot")


def texts(count: int, seed: int, most: int = 9) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [TOKENIZER.encode(" ".join(draw.choice(WORDS, draw.integers(1, most)))) for _ in range(count)]


def records(kind: str, count: int = 48, seed: int = 0, pairs: bool = False, **more: Any) -> Records:
    """`class`: how many of two ids the text has; `labels`: which of them; `tags`: of each id; `number`: the share of an id."""
    rows = texts(count, seed, **more)
    warp, weft = TOKENIZER.encode("warp weft")[0], TOKENIZER.encode("warp weft")[-1]
    columns = {"text": Column.of(rows)}
    if pairs:
        columns["pair"] = Column.of(texts(count, seed + 1, **more))
    if kind == "class":
        columns["label"] = Column.of([[(warp in text) + (weft in text)] for text in rows])
        return Records(columns, NAMES)
    if kind == "labels":
        columns["label"] = Column.of(
            [[number for number, id in enumerate((warp, weft)) if id in text] for text in rows]
        )
        return Records(columns, NAMES[:2])
    if kind == "tags":
        tags = {warp: 1, weft: 2}
        columns["label"] = Column.of([[tags.get(id, 0) for id in text] for text in rows])
        return Records(columns, ("O", "B-THREAD", "I-THREAD"))
    columns["label"] = Column.of([[text.count(warp) / len(text)] for text in rows], np.float64)
    return Records(columns)


def model_for(config: Any, corpus: Corpus, stack: str = "encoder", **more: Any) -> TransformerConfig:
    """A model of one block for a task; with `types` for pairs."""
    settings = {"depth": 1, "dim": 16, "heads": 2, "context": 16, stack: {"depth": 1}, **more}
    return ModelChoice.of(settings).resolve(TOKENIZER.vocab_size, 1, 16, config, classes=corpus.classes)


def spec_for(
    config: Any, kind: str, rows: int = 8, stack: str = "encoder", pairs: bool = False, **more: Any
) -> DataSpec:
    corpus = Corpus(records(kind, pairs=pairs), records(kind, 20, 7, pairs=pairs))
    return DataSpec(corpus, model_for(config, corpus, stack, **more), rows, tokenizer=TOKENIZER)
