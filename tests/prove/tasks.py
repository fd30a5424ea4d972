"""Small runs to put the laws of training to: one row per task and family of models. A new task is a row in `RUNS`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from heddle.config import MaskedConfig, NextTokenConfig, TransformerConfig
from heddle.config.base import Config
from heddle.data.sources import Document
from heddle.data.store import TokenStore, build_store
from heddle.model import build
from heddle.prove.subject import Subject, awaken
from heddle.prove.training import Training
from heddle.text import train_tokenizer
from heddle.train import Reading, make_task

CONTEXT = 16
WORDS = [
    "the",
    "warp",
    "is",
    "held",
    "and",
    "weft",
    "thrown",
    "over",
    "under",
    "every",
    "thread",
    "that",
    "a",
    "heddle",
    "lifts",
]
TEXTS = [" ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 9)) for number in range(60)]
TEXTS += [" ".join(WORDS[number % 7 : number % 7 + 3]) + "." for number in range(20)]  # some of them twice
ROTARY = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}}, "norm": {"kind": "rms"}}
LEARNED = {"mixer": {"heads": 2, "bias": True}, "norm": {"kind": "layer"}, "placement": "post"}
EXPERTS = {**ROTARY, "ffn": {"kind": "moe", "experts": 4, "active": 2, "balance": 0.1, "z": 0.05, "bias_rate": 0.01,
                             "expert": {"kind": "gated", "hidden": 12}}}  # fmt: skip
RECURRENT = {"mixer": {"kind": "recurrent", "cell": "gru"}}
CONVOLUTION = {"mixer": {"kind": "convolution", "taps": 3}}
TOKENIZER = train_tokenizer("bytes", [], special=("<|endoftext|>", "[MASK]"))


@dataclass(frozen=True)
class Small:
    """A task and a model for it."""

    task: Config
    stack: str
    block: dict[str, Any]
    entry: dict[str, Any]


def small(task: Config, stack: str, block: dict[str, Any], **entry: Any) -> Small:
    return Small(task, stack, block, entry)


RUNS = {
    "next token, rotary": small(NextTokenConfig(), "decoder", ROTARY),
    "next token, learned positions": small(NextTokenConfig(), "decoder", LEARNED, positions="learned"),
    "next token, experts": small(NextTokenConfig(), "decoder", EXPERTS),
    "next token, recurrent": small(NextTokenConfig(), "decoder", RECURRENT),
    "next token, convolution": small(NextTokenConfig(), "decoder", CONVOLUTION),
    "masked, rotary": small(MaskedConfig(), "encoder", ROTARY),
    "masked, learned positions": small(MaskedConfig(whole_words=True), "encoder", LEARNED, positions="learned"),
    "masked, experts": small(MaskedConfig(masked=1.0, random=0.0), "encoder", EXPERTS),
}


def store(place: Path, texts: list[str] = TEXTS, validation: float = 0.3) -> TokenStore:
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    return build_store(place / "data", documents, TOKENIZER, validation, end_of_text=len(texts) > 1)


def training(name: str, texts: TokenStore, rows: int = 8) -> Training:
    """One of the small runs, with weights at which every part has a say."""
    model, rounding = _model(name)
    reading = Reading(texts.corpus, model.config, rows, seed=5, tokenizer=TOKENIZER)
    return Training(lambda: make_task(RUNS[name].task, reading), model, rounding, texts)


@cache
def _model(name: str) -> tuple[Any, float]:
    run = RUNS[name]
    stack = {"depth": 2, "block": run.block, "entry": run.entry} if run.entry else {"depth": 2, "block": run.block}
    sizes = {"vocab_size": TOKENIZER.vocab_size, "dim": 16, "context": CONTEXT, "dropout": {}}
    config = TransformerConfig.of({**sizes, run.stack: stack})
    model = awaken(build(config, seed=1), 1)
    return model, Subject(model).bounds["output"]


Plant = Callable[..., None]
