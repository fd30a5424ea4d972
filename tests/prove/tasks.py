"""Small runs to put the laws of training to: one row per task and family of models. A new task is a row in `RUNS`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from heddle.config import DataConfig, MaskedConfig, NextTokenConfig, PrefixLMConfig, TransformerConfig
from heddle.config.chat_template import CHAT_TOKENS
from heddle.config.saved import Chosen, SavedConfig
from heddle.config.tasks import (
    ChatConfig,
    ClassificationConfig,
    ContrastiveConfig,
    MultiLabelConfig,
    RegressionConfig,
    SpanCorruptionConfig,
    TaskSettings,
    TokenClassificationConfig,
    TranslationConfig,
)
from heddle.config.train import TrainConfig
from heddle.data.record_store import Store, build_records
from heddle.data.sources.documents import Document
from heddle.data.sources.examples import Example
from heddle.data.store import TokenStore, build_store
from heddle.model import build
from heddle.prove.subject import Subject, awaken
from heddle.prove.training import TrainingSubject
from heddle.tasks import DataSpec, make_task
from heddle.text import train_tokenizer
from heddle.weights.run import write_model

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
SHORT = [text[: 3 + number % 7].strip() for number, text in enumerate(TEXTS)]
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(4))
SPECIAL = ("<|endoftext|>", "[MASK]", "<start_translation>", "[CLS]", "[SEP]", *SENTINELS, *CHAT_TOKENS)
TOKENIZER = train_tokenizer("bytes", [], special=SPECIAL)

ROTARY = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}}, "norm": {"kind": "rms"}}
LEARNED = {"mixer": {"heads": 2, "bias": True}, "norm": {"kind": "layer"}, "placement": "post"}
EXPERTS = {**ROTARY, "ffn": {"kind": "moe", "experts": 4, "active": 2, "balance": 0.1, "z": 0.05, "bias_rate": 0.01,
                             "expert": {"kind": "gated", "hidden": 12}}}  # fmt: skip
DISTANCES = {"mixer": {"heads": 2, "relative": {"kind": "buckets", "buckets": 8, "furthest": 12}}}
RECURRENT = {"mixer": {"kind": "recurrent", "cell": "gru"}}
CONVOLUTION = {"mixer": {"kind": "convolution", "taps": 3}}
CLASSES = {"kind": "classifier", "classes": 3, "pooling": "mean", "names": ("a", "b", "c")}
TAGS = {**CLASSES, "pooling": "none"}
LABELS = {**CLASSES, "several": True, "threshold": 0.4}
NUMBER = {"kind": "classifier", "classes": 1, "pooling": "first"}


@dataclass(frozen=True)
class Small:
    """A task and a model for it: its stacks, and its head."""

    task: TaskSettings
    stacks: dict[str, dict[str, Any]]
    head: dict[str, Any]
    layout: Any = "concatenate"


def small(
    task: TaskSettings,
    stacks: str,
    block: dict[str, Any],
    head: dict[str, Any] | None = None,
    prefix: bool = False,
    **entry: Any,
) -> Small:
    names = stacks.split()
    made = {name: {"depth": 2 if len(names) == 1 else 1, "block": block, "entry": entry} for name in names}
    if len(names) == 2:
        made["decoder"]["block"] = {**block, "cross": {"heads": 2}}
    if prefix:
        made["decoder"]["prefix"] = True
    return Small(task, made, head or {})


BOTH = "encoder decoder"
RUNS: dict[str, Any] = {
    "next token, rotary": small(NextTokenConfig(), "decoder", ROTARY),
    "next token, learned positions": small(NextTokenConfig(), "decoder", LEARNED, positions="learned"),
    "next token, experts": small(NextTokenConfig(), "decoder", EXPERTS),
    "next token, recurrent": small(NextTokenConfig(), "decoder", RECURRENT),
    "next token, convolution": small(NextTokenConfig(), "decoder", CONVOLUTION),
    "next token, documents": replace(small(NextTokenConfig(), "decoder", ROTARY), layout="documents"),
    "next token, packed": replace(small(NextTokenConfig(), "decoder", ROTARY), layout="pack"),
    "prefix, documents": replace(small(PrefixLMConfig(), "decoder", ROTARY, prefix=True), layout="documents"),
    "masked, rotary": small(MaskedConfig(), "encoder", ROTARY),
    "masked, learned positions": small(MaskedConfig(whole_words=True), "encoder", LEARNED, positions="learned"),
    "masked, experts": small(MaskedConfig(masked=1.0, random=0.0), "encoder", EXPERTS),
    "prefix, rotary": small(PrefixLMConfig(), "decoder", ROTARY, prefix=True),
    "prefix, distances, experts": small(PrefixLMConfig(), "decoder", {**EXPERTS, **DISTANCES}, prefix=True),
    "translation, both": small(TranslationConfig(), BOTH, ROTARY),
    "translation, both, experts": small(TranslationConfig(), BOTH, EXPERTS),
    "translation, decoder": small(TranslationConfig(), "decoder", ROTARY),
    "translation, decoder, prefix": small(TranslationConfig(), "decoder", ROTARY, prefix=True),
    "translation, decoder, all targets": small(
        TranslationConfig(source_loss=True), "decoder", LEARNED, positions="learned"
    ),
    "translation, packed": replace(small(TranslationConfig(), "decoder", ROTARY), layout="pack"),
    "translation, packed, prefix": replace(small(TranslationConfig(), "decoder", ROTARY, prefix=True), layout="pack"),
    "translation, packed, experts": replace(small(TranslationConfig(), "decoder", EXPERTS), layout="pack"),
    "chat": small(ChatConfig(), "decoder", ROTARY),
    "chat, packed": replace(small(ChatConfig(), "decoder", LEARNED, positions="learned"), layout="pack"),
    "chat, packed, experts": replace(small(ChatConfig(), "decoder", EXPERTS), layout="pack"),
    "spans, both": small(SpanCorruptionConfig(), BOTH, ROTARY),
    "classes, encoder": small(
        ClassificationConfig(class_weights="balanced"), "encoder", LEARNED, CLASSES, positions="learned"
    ),
    "classes, decoder": small(ClassificationConfig(), "decoder", ROTARY, {**CLASSES, "pooling": "last"}),
    "tags, encoder": small(TokenClassificationConfig(), "encoder", ROTARY, TAGS),
    "tags, decoder": small(TokenClassificationConfig(), "decoder", ROTARY, TAGS),
    "labels, encoder": small(
        MultiLabelConfig(label_weights="balanced"), "encoder", LEARNED, LABELS, positions="learned"
    ),
    "labels, decoder": small(MultiLabelConfig(), "decoder", ROTARY, {**LABELS, "pooling": "last"}),
    "contrast, encoder": small(
        ContrastiveConfig(group=3), "encoder", LEARNED, {"kind": "embedding"}, positions="learned"
    ),
    "contrast, decoder, experts": small(
        ContrastiveConfig(group=3), "decoder", EXPERTS, {"kind": "embedding", "pooling": "last", "normalise": True}
    ),
    "numbers, encoder": small(RegressionConfig(), "encoder", ROTARY, NUMBER),
}


def texts(place: Path) -> TokenStore:
    """Documents, for the tasks that read windows of a text."""
    documents = [Document(text, str(number)) for number, text in enumerate(TEXTS)]
    return build_store(place / "data", documents, TOKENIZER, 0.3, end_of_text=True)


def pairs(number: int, text: str) -> tuple[dict[str, Any], Any]:
    return {"source": text, "target": text[::-1]}, None


def classes(number: int, text: str) -> tuple[dict[str, Any], Any]:
    return {"text": text}, "abc"[len(text) % 3]


def labels(number: int, text: str) -> tuple[dict[str, Any], Any]:
    return {"text": text}, tuple(name for name, word in zip("abc", ("warp", "the", "is"), strict=True) if word in text)


def tags(number: int, text: str) -> tuple[dict[str, Any], Any]:
    words = tuple(text.split())
    return {"text": words}, tuple("abc"[len(word) % 3] for word in words)


def numbers(number: int, text: str) -> tuple[dict[str, Any], Any]:
    return {"text": text}, str(len(text) / 4)


def talks(number: int, text: str) -> tuple[dict[str, Any], Any]:
    contents = (
        text[:3],
        text[::-1][:4],
        *((text[:1], text[-1:]) if number % 3 == 0 else ()),
        *("?!"[: number % 2 * 2]),
    )
    return {"messages": contents}, tuple(("user", "assistant")[place % 2] for place in range(len(contents)))


def alike(number: int, text: str) -> tuple[dict[str, Any], Any]:
    return {"text": text, "pair": text[::-1], "negative": text[:2]}, None


# How the texts become records, by the kind of task.
RECORDS: dict[str, Callable[[int, str], tuple[dict[str, Any], Any]]] = {
    "translation": pairs,
    "chat": talks,
    "classification": classes,
    "multi_label_classification": labels,
    "token_classification": tags,
    "regression": numbers,
    "contrastive": alike,
}


def store(name: str, place: Path) -> Store:
    """What a run reads, in `place/data`."""
    task: Any = RUNS[name].task
    if task.kind not in RECORDS:
        return texts(place)
    records = [RECORDS[task.kind](number, text) for number, text in enumerate(SHORT)]
    examples = [Example(record, label, str(number)) for number, (record, label) in enumerate(records)]
    return build_records(place / "data", examples, TOKENIZER, 0.3, task.labels, chat=task.chat(None))


def training(name: str, texts: Store, rows: int = 4) -> TrainingSubject:
    """One of the small runs, with weights at which every part has a say."""
    model, rounding = _model(name)
    reading = DataSpec(texts.corpus, model.config, rows, seed=5, tokenizer=TOKENIZER, layout=RUNS[name].layout)
    return TrainingSubject(lambda: make_task(RUNS[name].task, reading), model, rounding, texts)


def config_of(name: str, depth: int | None = None) -> TransformerConfig:
    """The model of one of the small runs, with its own depth or another one."""
    run = RUNS[name]
    stacks = {stack: {**each, "depth": depth or each["depth"]} for stack, each in run.stacks.items()}
    sizes = {"vocab_size": TOKENIZER.vocab_size, "dim": 16, "context": CONTEXT}
    config = TransformerConfig.of({**sizes, **stacks, **({"head": run.head} if run.head else {})})
    prompts = run.task.prompts(run.layout, config.stacks())
    return config.model_copy(update={"chat": run.task.chat(None), "prompts": prompts})


@cache
def _model(name: str) -> tuple[Any, float]:
    model = awaken(build(config_of(name), seed=1), 1)
    return model, Subject(model).bounds["output"]


def directory(name: str, place: Path) -> Path:
    """One of the small runs on the disk, as a trained run is: its weights, texts, tokenizer and settings."""
    model, _ = _model(name)
    place.mkdir()
    chosen = {"device": "cpu", "precision": "fp32", "compile": False, "threads": 1, "steps": 6, "batch": 4, "peak": 1e10,
              "learning_rate": 1e-3, "warmup": 1, "evaluate_every": 3, "save_every": 2, "tokens_per_second": 1e4}  # fmt: skip
    data = DataConfig(layout=RUNS[name].layout)
    config = SavedConfig(
        data=data, model=model.config, task=RUNS[name].task, train=TrainConfig(), chosen=Chosen.of(chosen)
    )
    write_model(place, model.state_dict(), config, TOKENIZER, step=6)
    store(name, place)  # after the manifest, so that it may be removed
    return place
