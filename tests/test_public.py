"""Whatever a public function is given: it works, or one line says which argument is wrong, where, and what it should be.

One entry for each public function, with arguments that it accepts and, for every argument, values that it must refuse. A new public
name needs an entry, or a place among those that take nothing to check.
"""

import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import numpy as np
import pytest
import torch

import heddle
from heddle import account, config, data, generate, look, model, runs, tasks, text, train
from heddle.data import Corpus, Document, Example, Part, RecordStore, TokenStore
from heddle.errors import HeddleError
from heddle.model.head import Scores
from heddle.nn import Layout
from heddle.vectors import WordVectors

PACKAGES = (
    "account",
    "config",
    "convert",
    "data",
    "generate",
    "look",
    "model",
    "predict",
    "prove",
    "runs",
    "tasks",
    "text",
    "train",
    "vectors",
    "weights",
)

TEXT = "the warp is held, the weft is thrown"
NAN, INF = float("nan"), float("inf")
TOKENIZER = heddle.train_tokenizer("bytes", [])
CONFIG = heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=8, dim=16)
MODEL = model.build(CONFIG)
SEEING = model.build(CONFIG.override({"decoder.entry.positions": "learned", "decoder.entry.types": 2}))
ATTENTION = {"mixer": {"heads": 2}}
STACKS = {
    "encoder": {"depth": 1, "block": ATTENTION},
    "decoder": {"depth": 1, "block": {**ATTENTION, "cross": {"heads": 2}}},
}
BOTH = model.build(config.TransformerConfig.of({"vocab_size": 9, "dim": 16, "context": 8, **STACKS}))
BARE = model.build(CONFIG.override({"head.kind": "none"}))
CHATTING = model.build(CONFIG.override({"chat": {}}))
OTHERS = heddle.train_tokenizer("characters", ["ab"])
IDS = torch.tensor([TOKENIZER.encode("warp")])
HIDDEN = torch.ones(2, 3, 16)
LAYOUT = Layout.whole(*IDS.shape)
PART = Part(np.arange(20, dtype=np.uint16), 20, 1, 1)
STORE = TokenStore(
    directory=Path("data"),
    vocab_size=257,
    tokenizer="",
    sources="",
    bytes=0,
    separator=None,
    split={},
    train=PART,
    validation=PART,
)
EXAMPLES = [Example({"text": f"{TEXT} {number}"}, str(number % 2), "t") for number in range(20)]
SAMPLING = config.SamplingConfig(max_tokens=2)
BEAM = config.BeamConfig(beams=1, max_tokens=2)
PAIRED = model.build(heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=8, dim=16, stacks=("encoder", "decoder")))
BATCH = data.next_token_batch(np.arange(18).reshape(2, 9))
TRAIN = config.TrainConfig()
CLASSIFIER = model.build(CONFIG.override({"head": {"kind": "classifier", "classes": 2}}))
MASKED = heddle.train_tokenizer("words", [TEXT], special=("[MASK]",))
ENCODER = model.build(
    config.TransformerConfig.of(
        {"vocab_size": MASKED.vocab_size, "dim": 16, "context": 8, "encoder": STACKS["encoder"]}
    )
)
OPTIMIZER = train.Optimizer(model.build(CONFIG), TRAIN, 1e-3, "fp32")
OBJECTIVE = tasks.CrossEntropy(MODEL)
STATE = {"a.weight": torch.ones(2)}
COUNT = account.count(CONFIG)
SCORES = Scores(torch.ones(257, 16), 257)


def scores(**changes: Any) -> Scores:
    """Some that could not be made while shapes are checked."""
    made = copy.copy(SCORES)
    vars(made).update(changes)
    return made


LOSS = {"features": HIDDEN[0], "targets": torch.tensor([1, 2, 3]), "weights": torch.ones(3), "scores": SCORES}
SPEC = tasks.DataSpec(Corpus(PART, PART), CONFIG)
TASK = tasks.make_task(config.NextTokenConfig(), SPEC)


WORDS = WordVectors(("warp", "weft", "thread"), np.eye(3, dtype=np.float32))

VARIANTS = config.variants({"train": {"learning_rate": [1e-3, 2e-3]}})


class Bad(NamedTuple):
    """A value to refuse, and the word by which the refusal names it where that is not the argument's name."""

    value: Any
    word: str


class Call(NamedTuple):
    """Arguments that a public function takes, and for each argument values that it must refuse.

    The function is the one that the table's key names, unless another is given.
    """

    good: dict[str, Any]
    bad: dict[str, list[Any]]
    function: Callable[..., Any] | None = None


NO_STRING: list[Any] = [None, 3, b"warp", ["warp"], torch.ones(2)]
NO_NAME: list[Any] = [None, 3, ["gpt2-small"], Path("gpt2-small")]
NO_PATH: list[Any] = [None, 3, ["run"], b"run", "a\0b", "", "x" * 5000]
NO_PLACE: list[Any] = [*NO_PATH, Bad("none", "none")]
NO_COUNT: list[Any] = [0, -1, 1.5, NAN, "3", True, [1], torch.ones(1)]
NO_COUNT_OR_NONE: list[Any] = [each for each in NO_COUNT if each is not None]
NO_RATE: list[Any] = [0.0, -1.0, NAN, INF, "1e-3", True, None, [1.0]]
NO_SHARE: list[Any] = [-0.1, 1.5, NAN, "0.1", None, [0.1]]
ROWS: dict[str, Any] = {"length": NO_COUNT[:4], "targets": NO_SHARE}
NO_SEED: list[Any] = [-1, 2**64, 1.5, None, "0", True]
NO_SWITCH: list[Any] = [None, 1, "yes"]
NO_RUNS: list[Any] = [None, 3, "run", [3], [None]]
NO_PLACES: list[Any] = [each for each in NO_PLACE if each is not None]
NO_CALL: list[Any] = [3, "print"]
NO_CONFIG: list[Any] = [None, {"dim": 3}, "gpt2-small", MODEL]
NO_MODEL: list[Any] = [None, "run", CONFIG, torch.nn.Linear(2, 2)]
NO_TOKENIZER: list[Any] = [None, "bytes", TEXT.encode()]
NO_DEVICE: list[Any] = [None, 3, Bad("tpu", "device"), Bad("cuda:99", "device"), Bad("gpu:x", "device")]
NO_IDS: list[Any] = [
    [1, 2, 3], None, "warp", IDS[0], IDS.float(), IDS.numpy(), IDS + 257, -IDS, torch.ones(1, 4, dtype=torch.bool),
]  # fmt: skip
NO_LAYOUT: list[Any] = [3, "plain", Layout.whole(2, 9)]
NO_PRECISION: list[Any] = ["fp16", None, 3, torch.float32]
NO_WORKERS: list[Any] = [-1, 1.5, "2"]
NO_SOURCES: list[Any] = [None, "a.txt", 3, [3], []]
NO_READER: list[Any] = [3, "utf-8", {"encoding": "utf-8"}]
NO_COUNTS: list[Any] = [3, "null", [1]]
NO_LABELS: list[Any] = [None, 3, "words", ["classes"]]
NO_PROMPTS: list[Any] = [None, "warp", 3, ["warp"], [[1.5]], [["w"]]]
NO_TEXTS: list[Any] = [None, "warp", 3, [3], [None]]
BYTES_AND_MORE = heddle.train_tokenizer("bytes", [], special=("<a>", "<b>"))
SIZES = {"batch": [*NO_COUNT, 2**40, 2**63], "length": [*NO_COUNT_OR_NONE, 2**40, 2**63]}
COMPUTED = {"config": NO_CONFIG, **SIZES}
PASS = {"config": CONFIG, "batch": 1, "length": 4}

TEMPLATE = "{% for m in messages %}{{ m.role + m.content }}<|endoftext|>{% endfor %}"
CHAT = text.ChatTemplate(TOKENIZER, TEMPLATE)
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
NO_MESSAGES: list[Any] = [
    None,
    3,
    "a",
    ["a"],
    Bad([{"role": "user", "content": 3}], "content"),
    Bad([{"role": "bot", "content": ""}], "role"),
]
NO_TALK: dict[str, list[Any]] = {"messages": NO_MESSAGES, "add_generation_prompt": NO_SWITCH}

NO_WHOLE: list[Any] = [None, 1.5, "1", [1]]
NO_TOKEN: list[Any] = [*NO_WHOLE, Bad(-1, "-1"), Bad(300, "300")]
SEEN: dict[str, Any] = {"model": MODEL, "tokens": IDS}
NO_SEEN: dict[str, list[Any]] = {"model": NO_MODEL, "tokens": NO_IDS}
SEEN_LAYER = look.trace(MODEL, IDS, attention="*").attention["decoder.0.mixer"]
NO_LAYER: list[Any] = [None, 3, "decoder.0.mixer", IDS]
DRAWN = look.draw(CONFIG)
NO_DRAWING: list[Any] = [None, "gpt2-small", CONFIG]
NO_SCORE: dict[str, list[Any]] = {
    **NO_SEEN,
    "target": [*NO_WHOLE, Bad(300, "300")],
    "position": [*NO_WHOLE, Bad(9, "position")],
    "against": [1.5, "1", Bad(300, "300")],
}


def entered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A context manager that is entered and left."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        with function(*args, **kwargs):
            pass

    return call


TABLE: dict[str, Call] = {
    "account.attention_table": Call(
        {"config": CONFIG, "lengths": [8]},
        {
            "config": NO_CONFIG,
            "lengths": [None, 8, "8", [1.5], Bad([0], "length")],
            "batch": NO_COUNT,
            "precision": NO_PRECISION,
        },
    ),
    "account.available_memory": Call({}, {"device": NO_DEVICE}),
    "account.cache_size": Call(PASS, {**COMPUTED, "precision": NO_PRECISION}),
    "account.changed": Call(
        {"name": "gpt1"},
        {
            "name": [*NO_NAME, Bad("gpt1x", "gpt1x"), Bad("x" * 5000, "not a preset")],
            "words": [None, "dim=3", [3], Bad(["dim"], "key=value")],
        },
    ),
    "account.copy_rate": Call(
        {}, {"megabytes": [*NO_COUNT, 2**63], "seconds": [*NO_RATE[1:], 1e9], "device": NO_DEVICE}
    ),
    "account.count": Call({"config": CONFIG}, {**COMPUTED, "name": [None, 3]}),
    "account.counted": Call(PASS, {**COMPUTED, "kernel": [3, "sdqa"], "training": NO_SWITCH}),
    "account.family": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "account.flops": Call({"config": CONFIG}, COMPUTED),
    "account.saved_activations": Call(
        PASS, {**COMPUTED, "precision": NO_PRECISION, "kernel": [3, "sdqa"], "checkpointed": NO_SWITCH}
    ),
    "account.matmul_rate": Call(
        {"size": 8, "seconds": 0.01},
        {
            "dtype": ["fp32", None, torch.int8],
            "size": [*NO_COUNT, 2**63],
            "seconds": [*NO_RATE[1:], 1e9],
            "device": NO_DEVICE,
        },
    ),
    "account.memory": Call({"config": CONFIG}, COMPUTED),
    "account.parameter_count": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "account.parameters": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "account.render": Call({"report": COUNT}, {"report": [None, {}, CONFIG], "full": NO_SWITCH}),
    "account.resolve": Call({"name": "gpt1"}, {"name": [*NO_NAME, Bad("gpt1x", "gpt1x")]}),
    "account.slowdown": Call({"dtype": torch.float32}, {"dtype": ["bf16", None, torch.int8], "device": NO_DEVICE}),
    "account.states": Call(
        {"config": CONFIG, "optimizer": "muon", "precision": "fp32"},
        {"config": NO_CONFIG, "optimizer": ["adam", None, 3], "precision": NO_PRECISION},
    ),
    "account.training_bytes": Call(
        {"config": CONFIG, "rows": 1, "precision": "fp32", "train": TRAIN},
        {"config": NO_CONFIG, "rows": NO_COUNT, "precision": NO_PRECISION, "train": ["muon", None, CONFIG], **ROWS},
    ),
    "account.training_flops_per_token": Call(
        {"config": CONFIG, "length": 4},
        {"config": NO_CONFIG, "length": NO_COUNT, "targets": NO_SHARE, "trained": NO_SHARE},
    ),
    "account.training_settings": Call({"name": "gpt1"}, {"name": [*NO_NAME, Bad("gpt1x", "gpt1x")]}),
    "account.usable_precision": Call({"precision": "fp32"}, {"precision": NO_PRECISION, "device": NO_DEVICE}),
    "account.walk": Call(PASS, COMPUTED),
    "account.weights": Call({"model": MODEL}, {"model": NO_MODEL}),
    "config.Config.of": Call(
        {"data": CONFIG.to_dict()}, {"data": [None, [1], "dim = 3", 3], "where": []}, config.TransformerConfig.of
    ),
    "config.Config.override": Call(
        {"changes": {}},
        {"changes": [None, "dim=3", [("dim", 3)], {3: 4}, Bad({"dim": NAN}, "dim"), Bad({"dmi": 3}, "dmi")]},
        CONFIG.override,
    ),
    "config.Config.read": Call(
        {"path": "x.toml"}, {"path": [*NO_PATH, Bad("none.toml", "none.toml")]}, config.TransformerConfig.read
    ),
    "config.ModelChoice.resolve": Call(
        {"vocab_size": 9, "depth": 1, "context": 8},
        {
            "vocab_size": NO_COUNT,
            "depth": NO_COUNT,
            "context": NO_COUNT,
            "task": ["masked", {}],
            "start": ["gpt1", {}],
            "classes": [3, None, "ab"],
        },
        config.ModelChoice().resolve,
    ),
    "config.parse_overrides": Call({"pairs": []}, {"pairs": [None, "dim=3", [3], Bad(["dim"], "key=value")]}),
    "config.variants": Call(
        {"table": {}},
        {
            "table": [None, 3, "run.toml", Bad({"nonsense": 1}, "nonsense")],
            "seeds": [*NO_COUNT_OR_NONE, Bad(10**9, "1,000,000,000 runs are too many")],
            "where": [None, 3],
        },
    ),
    "config.preset": Call({"name": "gpt1"}, {"name": [*NO_NAME, Bad("gpt1x", "Did you mean 'gpt1'")]}),
    "config.sized": Call(
        {"depth": 1, "vocab_size": 9},
        {
            "depth": [*NO_COUNT, Bad(10**9, "dim = 64000000000")],
            "vocab_size": NO_COUNT,
            "context": NO_COUNT,
            "dim": NO_COUNT_OR_NONE,
            "stacks": [None, 3, "both", ("decoder", "encoder"), ()],
        },
    ),
    "data.Batch.split": Call(
        {"parts": 1}, {"parts": [1.5, None, "2", Bad(0, "0 equal"), Bad(3, "3 equal")]}, BATCH.split
    ),
    "data.Batch.to": Call({"device": "cpu"}, {"device": [None, 3, "", "none", "x" * 5000]}, BATCH.to),
    "data.TokenStore.open": Call({"directory": "data"}, {"directory": NO_PLACE}, TokenStore.open),
    "data.RecordStore.open": Call({"directory": "data"}, {"directory": NO_PLACE}, RecordStore.open),
    "data.build_records": Call(
        {"directory": "a", "examples": EXAMPLES, "tokenizer": TOKENIZER, "validation": 0.2},
        {
            "directory": NO_PATH,
            "examples": [None, TEXT, 3, Bad([], "no records")],
            "tokenizer": NO_TOKENIZER,
            "validation": [0.0, 1.0, -0.1, NAN, "0.1", Bad(None, "part")],
            "labels": NO_LABELS,
            "progress": NO_CALL,
            "left_out": NO_COUNTS,
            "described": [3, "a.txt"],
            "workers": NO_WORKERS,
            "provenance": [3, "a.txt", {}],
            "chat": [3, "{{ messages }}", {}],
        },
    ),
    "data.build_store": Call(
        {
            "directory": "a",
            "documents": [Document(TEXT, "t")],
            "tokenizer": TOKENIZER,
            "validation": 0.2,
            "end_of_text": False,
        },
        {
            "directory": NO_PATH,
            "documents": [None, TEXT, 3, [TEXT], Bad([], "no text")],
            "tokenizer": NO_TOKENIZER,
            "validation": [0.0, 1.0, -0.1, NAN, "0.1", Bad(None, "part")],
            "end_of_text": NO_SWITCH,
            "progress": NO_CALL,
            "left_out": NO_COUNTS,
            "described": [3, "a.txt"],
            "workers": NO_WORKERS,
            "provenance": [3, "a.txt", {}],
        },
    ),
    "data.describe": Call(
        {"sources": ["a.txt"]}, {"sources": NO_SOURCES, "stats": [3, "a.txt"], "text": NO_STRING, "reader": NO_READER}
    ),
    "data.held_out_windows": Call(
        {"length": 5, "context": 2},
        {"length": [-1, 1.5, None, "5"], "context": NO_COUNT, "most": [1.5, "2"]},
    ),
    "data.next_token_batch": Call(
        {"rows": np.zeros((2, 3), int)},
        {"rows": [None, [[1, 2]], np.zeros(3, int), np.zeros((2, 3)), torch.zeros(2, 3), np.zeros((2, 1), int)]},
    ),
    "data.open_store": Call({"directory": "data"}, {"directory": NO_PLACE}),
    "data.part_of": Call(
        {"documents": [Document(TEXT, "t")], "tokenizer": TOKENIZER},
        {"documents": [None, TEXT, 3, [TEXT], Bad([], "0 token(s)")], "tokenizer": NO_TOKENIZER},
    ),
    "data.permute": Call(
        {"indices": np.arange(3), "n": 3, "seed": 0},
        {
            "indices": [np.arange(4), -np.arange(3), np.array([0.5]), None, "1"],
            "n": [0, 2**63, 1.5, None],
            "seed": [None, 1.5, "0"],
        },
    ),
    "data.read_documents": Call(
        {"sources": ["a.txt"]}, {"sources": NO_SOURCES, "text": NO_STRING, "reader": NO_READER}
    ),
    "data.read_examples": Call(
        {"sources": ["a.jsonl"], "fields": ["text", "label"]},
        {
            "sources": NO_SOURCES,
            "fields": [None, "text", 3, [3], []],
            "columns": [3, "text", {3: "text"}],
            "reader": NO_READER,
            "labels": NO_LABELS,
            "separator": [None, 3],
        },
    ),
    "data.records_of": Call(
        {"examples": EXAMPLES, "tokenizer": TOKENIZER, "classes": ["0", "1"]},
        {
            "examples": [None, TEXT, 3, Bad([], "no records")],
            "tokenizer": NO_TOKENIZER,
            "labels": NO_LABELS,
            "classes": [None, 3, "01", [3]],
            "chat": [3, "{{ messages }}", {}],
        },
    ),
    "data.targets_left_out": Call(
        {"store_length": 20, "context": 4},
        {"store_length": [Bad(3, "3 tokens"), "20"], "context": NO_COUNT},
    ),
    "data.windows": Call(
        {"store_length": 20, "context": 4, "seed": 0, "step": 0, "batch": 2},
        {
            "store_length": [Bad(3, "3 tokens"), 1.5, None],
            "context": NO_COUNT,
            "seed": [None, 1.5],
            "step": [-1, 1.5, None],
            "batch": NO_COUNT,
            "ring": NO_SWITCH,
        },
    ),
    "data.windows_per_epoch": Call(
        {"store_length": 20, "context": 4},
        {"store_length": [Bad(3, "3 tokens"), "20"], "context": NO_COUNT, "ring": NO_SWITCH},
    ),
    "generate.Engine": Call(
        {"model": MODEL},
        {
            "model": NO_MODEL,
            "end_of_text": ["</s>", 1.5],
            "vocabulary": ["9", 1.5],
            "config": [3, {}, SAMPLING],
            "draft_source": [3, MODEL],
            "guides": [3, MODEL],
        },
    ),
    "generate.Engine.of": Call(
        {"model": MODEL, "prompts": [[1]], "sampling": SAMPLING},
        {
            "model": NO_MODEL,
            "prompts": [
                *NO_PROMPTS,
                Bad([[257]], "id 257"),
                Bad([[-1]], "id -1"),
                Bad([[]], "prompt 0 is empty"),
                Bad([[1] * 9], "prompt 0 has 9"),
            ],
            "sampling": [None, {}, 3],
            "end_of_text": ["</s>", 1.5],
            "seeds": [3, ["0"], [0, 0]],
            "vocabulary": ["9", 1.5],
            "draft_source": [3, MODEL],
            "guides": [3, MODEL],
            "sources": [3, "warp", [3], Bad([], "0 sources for 1 prompts"), Bad([[1]], "has no encoder")],
        },
        generate.Engine.of,
    ),
    "generate.Engine.submit": Call(
        {"prompt": [1], "sampling": SAMPLING},
        {
            "prompt": [
                None,
                "warp",
                3,
                [1.5],
                Bad([], "prompt 0 is empty"),
                Bad([257], "id 257"),
                Bad([1] * 9, "prompt 0 has 9"),
            ],
            "sampling": [None, {}, 3],
            "seed": ["0", 1.5],
            "source": [3, "warp", Bad([1], "has no encoder")],
            "echo": NO_SWITCH,
        },
        generate.Engine(MODEL).submit,
    ),
    "generate.Engine.leave": Call(
        {"rows": set()}, {"rows": [None, 0, "0"]}, generate.Engine.of(MODEL, [[1]], SAMPLING).leave
    ),
    "generate.chat_template": Call(
        {"model": CHATTING, "tokenizer": TOKENIZER},
        {"model": [*NO_MODEL, Bad(MODEL, "chat template")], "tokenizer": NO_TOKENIZER},
    ),
    "generate.beam_search": Call(
        {"model": MODEL, "prompts": [[1]], "config": BEAM},
        {
            "model": NO_MODEL,
            "prompts": NO_PROMPTS,
            "config": [None, {}, SAMPLING],
            "end_of_text": ["</s>"],
            "vocabulary": ["9"],
            "sources": [3, [3], Bad([[1]], "has no encoder")],
            "rows": NO_COUNT,
        },
    ),
    "generate.score_translations": Call(
        {"translations": ["a warp"], "references": ["a warp"]},
        {
            "translations": [None, [3], []],
            "references": [None, [3], []],
            "tokenize": [None, 3, Bad("moses", "no tokenization 'moses'")],
            "lowercase": NO_SWITCH,
        },
    ),
    "generate.translate": Call(
        {"model": PAIRED, "tokenizer": TOKENIZER, "sources": ["warp"], "max_tokens": 2},
        {
            "model": NO_MODEL,
            "tokenizer": NO_TOKENIZER,
            "sources": [None, 3, [3]],
            "config": [3, {}, SAMPLING, Bad(BEAM, "give a config or keywords, not both")],
            "beams": [0, None, "many", 1.5],
            "best": [0, Bad(6, "best = 6 is more than beams = 5")],
            "beam": [Bad(2, "Did you mean 'beams'")],
            "crop": NO_SWITCH,
            "rows": NO_COUNT,
            "progress": [3],
            "special": [None, 3, [3], Bad(["<nothing>"], "<nothing>")],
        },
    ),
    "generate.complete": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "prompts": ["warp"], "sampling": SAMPLING},
        {
            "model": NO_MODEL,
            "tokenizer": NO_TOKENIZER,
            "prompts": [None, "warp", [3], [None]],
            "sampling": [None, {}],
            "seeds": [3, ["0"]],
            "draft_source": [3, MODEL],
        },
    ),
    "generate.draw": Call(
        {"logits": torch.zeros(1, 3), "keys": [(0, 0)]},
        {"logits": [None, [0.0], torch.zeros(3), torch.zeros(1, 3, dtype=int)], "keys": [None, 3, [], [(0, 0)] * 2]},
    ),
    "generate.generate": Call(
        {"model": MODEL, "prompts": [[1]], "sampling": SAMPLING},
        {
            "model": NO_MODEL,
            "prompts": NO_PROMPTS,
            "sampling": [None, {}],
            "end_of_text": ["</s>"],
            "seeds": [3],
            "sources": [3, [3]],
        },
    ),
    "generate.generate_text": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "prompt": "warp"},
        {
            "model": NO_MODEL,
            "tokenizer": NO_TOKENIZER,
            "prompt": NO_STRING,
            "temperature": [-1, NAN, "hot", None],
            "max_tokens": [0, -1, 1.5, NAN, True, "many"],
            "top_k": [0, 1.5],
            "top_p": [0, 2, NAN],
            "seed": [-1, 1.5],
            "temprature": [1.0],
        },
    ),
    "generate.naive": Call(
        {"model": MODEL, "prompt": [1], "sampling": SAMPLING},
        {
            "model": NO_MODEL,
            "prompt": [None, "warp", 3, [1.5], Bad([257], "id 257")],
            "sampling": [None, {}],
            "end_of_text": ["</s>"],
            "source": [3, "warp", Bad([1], "has no encoder")],
            "seed": ["0", 1.5],
            "guide": [3, MODEL],
        },
    ),
    "generate.DraftModel": Call({"model": MODEL}, {"model": NO_MODEL, "count": NO_COUNT}),
    "generate.PromptLookup": Call({}, {"count": NO_COUNT, "longest": NO_COUNT, "shortest": NO_COUNT}),
    "generate.process": Call(
        {"logits": torch.zeros(1, 3), "sampling": SAMPLING},
        {"logits": [None, [0.0], torch.zeros(3), torch.zeros(1, 3, dtype=int)], "sampling": [None, {}]},
    ),
    "generate.reply": Call(
        {"model": CHATTING, "tokenizer": TOKENIZER, "messages": TALK["messages"], "window": True, "max_tokens": 1},
        {
            "model": [*NO_MODEL, Bad(MODEL, "chat template")],
            "tokenizer": NO_TOKENIZER,
            "messages": NO_MESSAGES,
            "temperature": [-1.0, NAN, "hot"],
        },
    ),
    "generate.stream": Call(
        {"model": MODEL, "prompt": [1], "sampling": SAMPLING},
        {"model": NO_MODEL, "prompt": [None, "warp", 3, [1.5]], "sampling": [None, {}], "end_of_text": ["</s>"]},
    ),
    "predict.classify": Call(
        {"model": CLASSIFIER, "tokenizer": TOKENIZER, "texts": [TEXT]},
        {
            "model": [*NO_MODEL, Bad(MODEL, "classify")],
            "tokenizer": [*NO_TOKENIZER, Bad(BYTES_AND_MORE, "tokenizer")],
            "texts": NO_TEXTS,
            "progress": NO_CALL,
            "threshold": [
                *(each for each in NO_SHARE if each is not None),
                0.5,
            ],  # this one has one class for each text
        },
    ),
    "predict.embed": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "texts": [TEXT]},
        {
            "model": NO_MODEL,
            "tokenizer": [*NO_TOKENIZER, Bad(BYTES_AND_MORE, "tokenizer")],
            "texts": NO_TEXTS,
            "pooling": [3, "cls", "none"],
            "normalise": NO_SWITCH,
            "progress": NO_CALL,
            "prompt": [3, ["query: "]],
            "prompt_name": [3, Bad("query", "no prompt 'query'")],
        },
    ),
    "predict.fill": Call(
        {"model": ENCODER, "tokenizer": MASKED, "texts": ["the [MASK] is held"]},
        {
            "model": [*NO_MODEL, Bad(MODEL, "decoder")],
            "tokenizer": [*NO_TOKENIZER, Bad(TOKENIZER, "mask")],
            "texts": [*NO_TEXTS, Bad(["warp"], "[MASK]")],
            "top": NO_COUNT,
            "progress": NO_CALL,
        },
    ),
    "look.ablate": Call({"name": "decoder.0.ffn.added"}, {"name": NO_STRING, "value": [None, "0", NAN]}),
    "look.activation_curves": Call(
        {},
        {
            "names": [None, "relu", [3], Bad(["rely"], "rely")],
            "low": [None, "0", NAN],
            "high": [None, "0", NAN],
            "points": [*NO_COUNT, 1],
        },
    ),
    "look.analogy": Call(
        {"model": MODEL, "a": 1, "b": 2, "c": 3},
        {"model": NO_MODEL, "a": NO_TOKEN, "b": NO_TOKEN, "c": NO_TOKEN, "count": NO_COUNT},
    ),
    "look.attribute": Call(
        SEEN,
        {
            **NO_SEEN,
            "targets": [3, "warp", Bad(torch.tensor([[1, 2]]), "targets"), Bad(torch.tensor([[300]]), "300")],
            "against": [3, "warp", Bad(torch.tensor([[1, 2]]), "against"), Bad(torch.tensor([[300]]), "300")],
            "positions": [None, 3, "0", [1.5], Bad([9], "position")],
        },
    ),
    "look.difference_of_logits": Call(
        {"first": 1, "second": 2}, {"first": NO_WHOLE, "second": NO_WHOLE, "position": NO_WHOLE}
    ),
    "look.costs": Call(
        {"config": CONFIG, "lengths": [1, 4]},
        {"config": NO_CONFIG, "lengths": [None, 3, "4", [1.5], Bad([0], "length")]},
    ),
    "look.draw": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "look.edited": Call(
        {"model": MODEL, "edits": []}, {"model": NO_MODEL, "edits": [None, 3, "a", [3]]}, entered(look.edited)
    ),
    "look.find_heads": Call(
        {"model": MODEL, "length": 2, "rows": 1},
        {
            "model": NO_MODEL,
            "length": [*NO_COUNT, 1],
            "repeats": [*NO_COUNT, 1],
            "rows": NO_COUNT,
            "seed": NO_SEED,
            "ids": [3, "1", [1.5], Bad([300], "300"), Bad([], "ids")],
        },
    ),
    "look.head_products": Call(
        {"attention": MODEL.decoder.blocks[0].mixer}, {"attention": [None, "decoder.0.mixer", torch.nn.Linear(2, 2)]}
    ),
    "look.input_gradients": Call(SEEN | {"target": 3}, {**NO_SCORE, "times_input": NO_SWITCH}),
    "look.integrated_gradients": Call(
        SEEN | {"target": 3, "steps": 1}, {**NO_SCORE, "steps": NO_COUNT, "baseline": [3, "0", torch.ones(3)]}
    ),
    "look.lens": Call(SEEN, {**NO_SEEN, "top": NO_COUNT, "edits": [None, 3, [3]]}),
    "look.matrix_text": Call(
        {"matrix": torch.ones(2, 9)},
        {"matrix": [None, 3, [[1.0]], torch.ones(3)], "rows": NO_STRING, "leading": NO_COUNT},
    ),
    "look.names": Call({"model": MODEL}, {"model": NO_MODEL}),
    "look.near": Call({"model": MODEL, "token": 1}, {"model": NO_MODEL, "token": NO_TOKEN, "count": NO_COUNT}),
    "look.patch": Call(
        {"model": MODEL, "clean": IDS, "corrupted": IDS, "metric": len, "names": "decoder.entry"},
        {
            "model": NO_MODEL,
            "clean": [None, "warp", [[1]], Bad(IDS[:, :2], "clean")],
            "corrupted": [None, "warp", [[1]], Bad(IDS[:, :2], "corrupted")],
            "metric": [None, *NO_CALL],
            "names": [None, 3, [3], Bad("decoder.9.entry", "decoder.9.entry")],
            "by": [None, 3, "words"],
            "done": NO_CALL,
        },
    ),
    "look.position_tables": Call({"model": MODEL}, {"model": NO_MODEL, "length": NO_COUNT_OR_NONE}),
    "look.probe": Call(
        {"model": MODEL, "tokens": IDS, "labels": IDS % 2, "names": "decoder.entry"},
        {**NO_SEEN, "labels": [None, "a", IDS[0]], "names": [None, 3, [3], Bad("entry", "entry")]},
    ),
    "look.probe_vectors": Call(
        {"vectors": torch.eye(8), "labels": torch.arange(8) % 2},
        {
            "vectors": [None, 3, [[1.0]], Bad(torch.eye(3), "vectors")],
            "labels": [None, 3, [1], Bad(torch.ones(2, dtype=torch.long), "labels")],
            "name": NO_STRING,
            "share": NO_SHARE,
            "penalty": NO_RATE,
            "seed": NO_SEED,
        },
    ),
    "look.read_readings": Call({"run": "run"}, {"run": NO_PATH}),
    "look.received": Call({"attention": SEEN_LAYER}, {"attention": NO_LAYER}),
    "look.replace": Call({"name": "decoder.entry", "tensor": HIDDEN}, {"name": NO_STRING, "tensor": [None, 3, "a"]}),
    "look.rollout": Call(
        {"layers": [SEEN_LAYER]},
        {"layers": [None, 3, [3], Bad([], "layer")], "residual": NO_SHARE, "combine": NO_CALL},
    ),
    "look.score_heads": Call({"attention": SEEN_LAYER}, {"attention": NO_LAYER, "tokens": [3, "warp", IDS[0]]}),
    "look.steer": Call(
        {"name": "decoder.entry", "vector": HIDDEN[0, 0]},
        {"name": NO_STRING, "vector": [None, 3, "a"], "factor": [None, "1", NAN]},
    ),
    "look.strongest": Call(
        {"attention": SEEN_LAYER, "head": 0},
        {"attention": NO_LAYER, "head": [*NO_WHOLE, 9], "count": NO_COUNT, "batch": [*NO_WHOLE, 9]},
    ),
    "look.take_reading": Call({"model": MODEL, "tokens": IDS[:1]}, NO_SEEN),
    "look.to_svg": Call({"drawing": DRAWN}, {"drawing": NO_DRAWING}),
    "look.treemap": Call({"drawing": DRAWN}, {"drawing": NO_DRAWING}),
    "look.write_drawing": Call(
        {"drawing": DRAWN, "path": "a.svg"}, {"drawing": NO_DRAWING, "path": [*NO_PATH, Bad("a.png", "a.png")]}
    ),
    "look.trace": Call(
        SEEN,
        {
            **NO_SEEN,
            "names": [None, 3, [3], Bad("entry", "entry")],
            "attention": [None, 3, [3], Bad("decoder.9.mixer", "decoder.9.mixer")],
            "edits": [None, 3, [3]],
            "gradients": NO_SWITCH,
        },
    ),
    "model.Stack": Call(
        {"config": CONFIG.decoder, "dim": 16, "context": 8},
        {"config": NO_CONFIG, "dim": NO_COUNT, "context": NO_COUNT, "causal": NO_SWITCH, "dropout": [0.1, {}]},
    ),
    "model.Stack.forward": Call(
        {"x": HIDDEN, "layout": Layout.whole(2, 3)},
        {
            "x": [None, [1.0], IDS, HIDDEN[..., 1:]],
            "layout": [None, 3, Bad(Layout.whole(1, 3), "[1, 3]")],
        },
        MODEL.decoder,
    ),
    "model.Transformer": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "model.Transformer.check_vocabulary": Call(
        {"ids": 257}, {"ids": [None, "257", Bad(3, "3 ids")]}, MODEL.check_vocabulary
    ),
    "model.Transformer.forward": Call(
        {"tokens": IDS},
        {
            "tokens": [*NO_IDS, Bad(torch.zeros(1, 9, dtype=int), "9 tokens")],
            "layout": NO_LAYOUT,
            "types": [[0], torch.zeros(1, 4), torch.full((1, 4), 2), torch.zeros(1, 3, dtype=int)],
            "source": [IDS],
        },
        SEEING,
    ),
    "model.Transformer.forward of both": Call(
        {"tokens": IDS % 9, "source": IDS % 9},
        {"tokens": NO_IDS, "source": NO_IDS, "source_layout": [Bad(3, "layout")]},
        BOTH,
    ),
    "model.Transformer.logits": Call({"hidden": HIDDEN}, {"hidden": [None, [1.0], IDS, HIDDEN[..., 1:]]}, MODEL.logits),
    "model.Transformer.scores": Call(
        {"hidden": HIDDEN}, {"hidden": [None, [1.0], IDS, HIDDEN[..., 1:], HIDDEN[0], HIDDEN[None]]}, CLASSIFIER.scores
    ),
    "model.Transformer.new_cache": Call(
        {"rows": 1}, {"rows": [-1, 1.5, None, "1"], "multiple": [0, 1.5, None, "1"]}, MODEL.new_cache
    ),
    "model.Transformer.forward with a cache": Call(
        {"tokens": IDS, "cache": MODEL.new_cache(1)},
        {"tokens": NO_IDS, "layout": NO_LAYOUT, "cache": [3, "cache", Bad(MODEL.new_cache(2), "2 rows")]},
        MODEL,
    ),
    "model.build": Call(
        {"config": CONFIG},
        {"config": NO_CONFIG, "device": NO_DEVICE, "seed": NO_SEED, "dtype": ["fp32", torch.int8, None]},
    ),
    "model.checkpoint_activations": Call({"model": MODEL}, {"model": NO_MODEL}),
    "model.initialise": Call(
        {"model": MODEL, "config": CONFIG},
        {"model": [None, "run"], "config": NO_CONFIG, "generator": [3, "0"]},
    ),
    "prove.laptop": Call({"config": CONFIG}, {"config": NO_CONFIG}),
    "prove.prove": Call(
        {"model": MODEL},
        {"model": NO_MODEL, "name": [None, 3], "compile": NO_SWITCH, "progress": NO_CALL, "seed": NO_SEED},
    ),
    "prove.prove_config": Call(
        {"config": CONFIG},
        {"config": NO_CONFIG, "name": [None, 3], "compile": NO_SWITCH, "progress": NO_CALL, "seed": NO_SEED},
    ),
    "prove.prove_run": Call(
        {"run": "run"},
        {
            "run": NO_PLACE,
            "name": [None, 3],
            "compile": NO_SWITCH,
            "progress": NO_CALL,
            "seed": NO_SEED,
            "kills": [-1, 1.5, None, "a"],
        },
    ),
    "prove.served_ids": Call(
        {"tokenizer": TOKENIZER, "data": "data"}, {"tokenizer": ["bytes"], "data": NO_PATH, "chat": [3, {}]}
    ),
    "text.TextStream": Call(
        {"tokenizer": TOKENIZER}, {"tokenizer": NO_TOKENIZER, "previous": ["a", 1.5], "stop": [3, "ab", [1], [""]]}
    ),
    "text.TextStream.push": Call({"id": 1}, {"id": [None, "a", 1.5, 257, -1]}, text.TextStream(TOKENIZER).push),
    "text.Tokenizer.after": Call(
        {"previous": None, "id": 1}, {"previous": [], "id": [None, "a", 1.5, 257, -1]}, TOKENIZER.after
    ),
    "text.Tokenizer.decode": Call(
        {"ids": [1]},
        {"ids": [None, 3, "warp", [1.5], ["a"], Bad([257], "id 257"), Bad([-1], "id -1")]},
        TOKENIZER.decode,
    ),
    "text.Tokenizer.decode_bytes": Call(
        {"ids": [1]}, {"ids": [None, 3, "warp", [None], Bad([257], "id 257")]}, TOKENIZER.decode_bytes
    ),
    "text.Tokenizer.encode": Call(
        {"text": "a"},
        {
            "text": NO_STRING,
            "allow_special": [None, 3, [3], Bad(["<x>"], "<x>")],
            "special": [*NO_SWITCH, Bad(True, "tokenizer_of")],
            "pair": [3, [3], Bad("b", "tokenizer_of")],
        },
        TOKENIZER.encode,
    ),
    "text.Tokenizer.encode_batch": Call(
        {"texts": ["a"]}, {"texts": [None, 3, "warp", [3], [None]]}, TOKENIZER.encode_batch
    ),
    "text.Tokenizer.piece": Call({"id": 1}, {"id": [None, "a", 1.5, 257, -1]}, TOKENIZER.piece),
    "text.Tokenizer.pieces": Call({"text": "a"}, {"text": NO_STRING}, TOKENIZER.pieces),
    "text.Tokenizer.save": Call({"path": "a"}, {"path": NO_PATH}, TOKENIZER.save),
    "text.Tokenizer.token_bytes": Call({"id": 1}, {"id": [None, "a", 1.5, 257, -1]}, TOKENIZER.token_bytes),
    "text.ChatTemplate": Call(
        {"tokenizer": TOKENIZER, "template": TEMPLATE},
        {
            "tokenizer": NO_TOKENIZER,
            "template": [None, 3, Bad("{% if %}", "Jinja")],
            "tokens": [3, "a"],
            "date": [3],
            "sandboxed": NO_SWITCH,
        },
    ),
    "text.ChatTemplate.text": Call(TALK, NO_TALK, CHAT.text),
    "text.ChatTemplate.render": Call(TALK, NO_TALK, CHAT.render),
    "text.ChatTemplate.conversation": Call(
        {"messages": TALK["messages"]}, {"messages": NO_TALK["messages"]}, CHAT.conversation
    ),
    "text.add_special_tokens": Call(
        {"tokenizer": TOKENIZER, "names": ["<a>"]},
        {"tokenizer": NO_TOKENIZER, "names": [None, 3, "<a>", [3], Bad([""], "whitespace"), Bad([" "], "whitespace")]},
    ),
    "text.load_gpt2_merges": Call({"path": "a"}, {"path": NO_PLACE}),
    "text.load_tokenizer": Call({"path": "a"}, {"path": NO_PLACE, "lowercase": NO_SWITCH}),
    "text.load_wordpiece_vocab": Call({"path": "a"}, {"path": NO_PLACE, "lowercase": NO_SWITCH}),
    "text.train_tokenizer": Call(
        {"kind": "characters", "texts": [TEXT]},
        {
            "kind": [None, 3, Bad("bytez", "Did you mean 'bytes'")],
            "texts": [None, 3, [3], iter([3]), [TEXT.encode()], Bad([""], "text")],
            "vocab_size": [1.5, "9", NAN, 0, -1],
            "special": [None, 3, "<end>", [3], ["<end>", "<end>"]],
            "progress": NO_CALL,
        },
    ),
    "tasks.CrossEntropy": Call(
        {"model": MODEL},
        {"model": [*NO_MODEL, Bad(BARE, "head")], "label_smoothing": NO_SHARE, "z_loss": NO_SHARE},
    ),
    "train.MovingAverage": Call(
        {"weights": STATE, "decay": 0.9},
        {"weights": [None, [1], {3: 4}], "decay": [0.0, 1.0, -0.1, 1.5, NAN, None, "0.9", True]},
    ),
    "train.Optimizer": Call(
        {"model": MODEL, "config": TRAIN, "learning_rate": 1e-3, "precision": "fp32"},
        {
            "model": NO_MODEL,
            "config": [None, {}, CONFIG],
            "learning_rate": NO_RATE,
            "precision": NO_PRECISION,
            "by_onednn": [None, "update", ["update"], ("updates",)],
        },
    ),
    "runs.Trainer": Call({"run": "run"}, {"run": NO_PLACE, "readers": [None, 3, ["print"]]}),
    "runs.compare_runs": Call({"runs": []}, {"runs": NO_RUNS}),
    "tasks.cross_entropy": Call(
        LOSS,
        {
            "features": [None, [1.0], HIDDEN, LOSS["targets"]],
            "targets": [
                None,
                [1, 2, 3],
                torch.tensor([1, 2]),
                torch.ones(3),
                torch.tensor([1, 2, 257]),
                torch.tensor([1, 2, -1]),
            ],
            "weights": [None, torch.ones(2), torch.ones(3, dtype=int)],
            "scores": [
                None,
                257,
                *(scores(table=table) for table in (None, torch.ones(257, 15), torch.ones(257))),
                *(scores(bias=bias) for bias in (torch.ones(3), 1.0)),
            ],
            "chunk": [0, -1, 1.5, "2"],
            "label_smoothing": NO_SHARE,
            "z_loss": NO_SHARE,
        },
    ),
    "train.evaluate": Call(
        {"model": MODEL, "task": TASK},
        {
            "model": [*NO_MODEL, Bad(BOTH, "encoder")],
            "task": [None, PART, config.NextTokenConfig()],
            "rows": NO_COUNT,
            "progress": NO_CALL,
            "most": ["2", 1.5, 0, -1],
        },
    ),
    "runs.extend": Call(
        {"run": "run", "settings": {}}, {"run": NO_PLACE, "settings": [None, "steps=3", [("train.steps", 3)], {3: 4}]}
    ),
    "train.fit": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "data": TEXT, "steps": 1},
        {
            "model": [*NO_MODEL, Bad(BOTH, "model's vocab_size")],
            "tokenizer": [*NO_TOKENIZER, OTHERS],
            "data": [
                None,
                3,
                TEXT.encode(),
                [3],
                [],
                {"text": TEXT},
                HIDDEN[0],
                IDS,
                Bad("", "text"),
                Bad("warp", "context"),
                BATCH,
                str,
                np.float64(1.5),
                torch.zeros(9, dtype=torch.long, device="meta"),
                torch.ones(9).to_sparse(),
            ],
            "steps": [None, *NO_COUNT],
            "task": [3, {}, "next", TRAIN, Bad("translation", "pairs")],
            "validation": [0.0, 1.0, -1, NAN, True, 3, b"warp", [3], Bad("", "text"), Bad("w", "text")],
            "config": [{}, CONFIG],
            "columns": ["text", 3, {3: "text"}, {"words": "text"}, Bad({"source": "text"}, "source")],
            "layout": [None, 3, "packed"],
            "readers": [None, 3, ["print"]],
            "progress": NO_SWITCH,
            "skip_invalid": NO_SWITCH,
            "loss": [3, "focal", "nowhere:focal"],
            "batch": NO_COUNT[:4],
            "learning_rate": [each for each in NO_RATE if each not in ("1e-3", None)],
            "device": [Bad("tpu", "device")],
            "precision": ["fp16", 3],
            "minutes": [1.0],
            "save_every": [3],
        },
    ),
    "tasks.make_task": Call(
        {"config": config.NextTokenConfig(), "spec": SPEC},
        {
            "config": [None, {}, "next_token", TRAIN],
            "spec": [None, PART, Bad(tasks.DataSpec(Corpus(PART), CONFIG.override({"context": 20})), "context")],
        },
    ),
    "runs.model_for": Call(
        {
            "task": "classification",
            "tokenizer": TOKENIZER,
            "data": [(TEXT, "a"), (TEXT, "b")],
            "depth": 1,
            "context": 8,
        },
        {
            "task": [None, 3, "classify", TRAIN],
            "tokenizer": NO_TOKENIZER,
            "data": [None, 3, Bad([TEXT], "pairs (text, label)")],
            "depth": NO_COUNT,
            "context": NO_COUNT,
            "seed": NO_SEED,
            "columns": ["text", 3, {3: "text"}, Bad({"words": "text"}, "words")],
            "skip_invalid": NO_SWITCH,
            "start": [3, Bad("nowhere", "nowhere")],
            "dim": [0, 1.5],
            "family": ["encoder-decoder"],
            "preset": ["gpt1"],
        },
    ),
    "runs.open_session": Call({"run": "run"}, {"run": NO_PLACE}),
    "runs.plan": Call(
        {"resolved": runs.resolve(config.RunConfig()), "store": STORE, "tokenizer": TOKENIZER},
        {
            "resolved": [None, config.RunConfig(), "run"],
            "store": [None, "data"],
            "tokenizer": NO_TOKENIZER,
            "vectors": [3, {}],
        },
    ),
    "runs.plot_runs": Call(
        {"runs": ["run"], "file": "a.png"}, {"runs": [*NO_RUNS, []], "file": [*NO_PATH, Bad("a.gif", ".png")]}
    ),
    "runs.prepare": Call(
        {"config": config.RunConfig(), "run": "run"},
        {
            "config": NO_CONFIG,
            "run": [*NO_PATH, Bad(".", "already exists")],
            "tell": [None, *NO_CALL],
            "texts_of": [None, "a.txt", 3, [3]],
        },
    ),
    "runs.resolve": Call({"config": config.RunConfig()}, {"config": NO_CONFIG, "now": [3, {}]}),
    "runs.runs_in": Call({"folder": "runs"}, {"folder": NO_PATH}),
    "runs.show_step": Call(
        {"run": "run"},
        {"run": NO_PLACE, "step": NO_COUNT, "rows": NO_COUNT, "length": NO_COUNT, "start": [-1, 0.5, "0"]},
    ),
    "runs.seed_statistics": Call({"results": [1.0]}, {"results": [None, 3, "1", ["1"], [None], []]}),
    "runs.statistics_by_variant": Call({"outcomes": []}, {"outcomes": [None, 3, [3], ["run"]]}),
    "runs.sweep": Call(
        {"variants": VARIANTS, "run": "a"},
        {
            "variants": [None, 3, [], [{}], config.variants({}), VARIANTS * 2],
            "run": [*NO_PATH, "."],
            "tell": [None, *NO_CALL],
            "watch": NO_CALL,
        },
    ),
    "runs.tokenizer_for": Call(
        {"task": "next_token", "data": TEXT, "kind": "characters"},
        {
            "task": [None, 3, "next", TRAIN],
            "data": [None, 3, [3], Bad([(TEXT, TEXT)], "a text"), Bad("", "text")],
            "kind": [None, 3, Bad("bytez", "Did you mean 'bytes'")],
            "vocab_size": NO_COUNT,
            "columns": ["text", 3, {3: "text"}, Bad({"words": "text"}, "words")],
            "skip_invalid": NO_SWITCH,
        },
    ),
    "train.train_step": Call(
        {"objective": OBJECTIVE, "optimizer": OPTIMIZER, "batch": BATCH, "accumulate": 1, "factor": 1.0, "clip": 1.0},
        {
            "objective": [None, 3],
            "optimizer": [None, torch.optim.SGD(MODEL.parameters())],
            "batch": [None, IDS],
            "accumulate": [*NO_COUNT, Bad(3, "3 equal micro-batches")],
            "factor": [-1.0, NAN, None],
            "clip": [-1.0, NAN, None],
            "reduce": [None, 3],
        },
    ),
    "runs.write_csv": Call({"runs": ["run"], "file": "a.csv"}, {"runs": [*NO_RUNS, []], "file": NO_PATH}),
    "runs.write_events": Call(
        {"runs": ["run"], "directory": "a"}, {"runs": [*NO_RUNS, []], "directory": NO_PATH, "follow": NO_SWITCH}
    ),
    "convert.export_adapter": Call({"run": "run", "directory": "out"}, {"run": NO_PLACE, "directory": NO_PATH}),
    "convert.merge_adapter": Call(
        {"base": "run", "adapter": "adapter", "run": "new"},
        {"base": NO_PLACE, "adapter": NO_PATH, "run": NO_PATH},
    ),
    "vectors.WordVectors.analogy": Call(
        {"a": "warp", "b": "weft", "c": "thread"},
        {
            "a": [*NO_STRING, Bad("wrap", "Did you mean 'warp'")],
            "b": [*NO_STRING, Bad("wefts", "Did you mean 'weft'")],
            "c": [*NO_STRING, Bad("", "''")],
            "count": NO_COUNT,
        },
        WORDS.analogy,
    ),
    "vectors.WordVectors.near": Call(
        {"word": "warp"}, {"word": [*NO_STRING, Bad("wrap", "Did you mean 'warp'")], "count": NO_COUNT}, WORDS.near
    ),
    "vectors.WordVectors.read": Call({"path": "v"}, {"path": NO_PLACE, "tell": NO_CALL}, WordVectors.read),
    "vectors.WordVectors.save": Call(
        {"path": "v"},
        {"path": [*NO_PATH, Bad(".", "already exists")], "form": [3, "word2vec"], "overwrite": NO_SWITCH},
        WORDS.save,
    ),
    "vectors.train_vectors": Call(
        {"texts": [TEXT * 9]},
        {
            "texts": [None, TEXT, 3, [3], Bad([], "give more text"), Bad([TEXT], "lower min_count")],
            "config": ["glove", {"method": "glove"}, CONFIG],
            "tell": NO_CALL,
        },
    ),
    "convert.export_model": Call(
        {"run": "run", "directory": "out"},
        {"run": NO_PLACE, "directory": NO_PATH},
    ),
    "convert.export_gguf": Call({"run": "run", "file": "out.gguf"}, {"run": NO_PLACE, "file": NO_PATH}),
    "convert.import_model": Call(
        {"source": "theirs", "run": "run"},
        {"source": NO_PLACE, "run": NO_PATH, "hub": NO_SWITCH},
    ),
    "weights.load": Call({"source": "run"}, {"source": NO_PLACE, "device": [None, 3, "tpu", "gpu"]}),
    "weights.newest_valid": Call({"run": "run"}, {"run": NO_PATH}),
    "weights.publish": Call(
        {"run": "run", "model_tensors": STATE, "step": 1},
        {
            "run": NO_PLACE,
            "model_tensors": [None, [1], {3: 4}, {}, {"a": 1}],
            "step": [-1, 1.5, None],
            "extra": [3, "x"],
            "adapter": [3, {}],
        },
    ),
    "weights.read_config": Call({"run": "run"}, {"run": NO_PLACE}),
    "weights.average": Call({"run": "run", "count": 2}, {"run": NO_PLACE, "count": NO_COUNT}),
    "weights.add_tokens": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "known": 257},
        {"model": NO_MODEL, "tokenizer": NO_TOKENIZER, "known": [*NO_COUNT, 258]},
    ),
    "weights.tokenizer_of": Call(
        {"model": MODEL, "tokenizer": TOKENIZER},
        {"model": NO_MODEL, "tokenizer": [*NO_TOKENIZER, Bad(BYTES_AND_MORE, "tokenizer")]},
    ),
    "weights.read_state": Call({"directory": "run"}, {"directory": NO_PLACE}),
    "convert.read_vectors": Call({"path": "v"}, {"path": NO_PLACE, "tell": NO_CALL}),
    "weights.save": Call(
        {"model": MODEL, "run": "run"},
        {
            "model": NO_MODEL,
            "run": [*NO_PATH, Bad(".", "already exists")],
            "tokenizer": ["bytes", 3, heddle.train_tokenizer("bytes", [], special=("<a>", "<b>"))],
            "overwrite": NO_SWITCH,
        },
    ),
    "weights.save_checkpoint": Call(
        {"run": "run", "step": 1, "model_tensors": STATE, "optimizer_tensors": STATE, "state": {}, "keep": 1},
        {
            "run": NO_PLACE,
            "step": [-1, 1.5, None],
            "model_tensors": [None, [1], {3: 4}, {}, {"a": 1}],
            "optimizer_tensors": [None, [1], {3: 4}, {"a": 1}],
            "state": [None, 3],
            "keep": [-1, 1.5, None],
            "also": [None, 3, [1.5]],
            "full": NO_SWITCH,
        },
    ),
    "convert.load_vectors": Call(
        {"model": MODEL, "tokenizer": TOKENIZER, "path": "v"},
        {"model": NO_MODEL, "tokenizer": NO_TOKENIZER, "path": NO_PLACE},
    ),
}

# Public names without an entry, and why.
RECORDS = "what heddle gives, not what it takes"
UNCHECKED = {
    "account": {
        RECORDS: ("Flops", "Line", "Memory", "Parameters", "Accounts", "Walk"),
        "takes nothing": ("preset_table",),
    },
    "config": {
        "refuses as a whole, see below": tuple(
            name for name in config.__all__ if isinstance(getattr(config, name), type)
        ),
        "takes nothing": ("preset_names",),
    },
    "convert": {RECORDS: ("Coverage",)},
    "data": {
        "a number": ("IGNORED",),
        RECORDS: (
            "Corpus",
            "Description",
            "Document",
            "Example",
            "Part",
            "TokenStore",
            "Batch",
            "Column",
            "Records",
            "RecordStore",
        ),
        "takes nothing": ("python_library",),
    },
    "generate": {
        RECORDS: ("Event", "Hypothesis", "Piece", "Translation", "TranslationScore"),
        "an error": ("QueueFull",),
        "a protocol": ("DraftSource",),
    },
    "look": {
        RECORDS: (
            "AttentionPass",
            "Attribution",
            "Drawing",
            "Edit",
            "HeadScores",
            "Lens",
            "Patching",
            "Probe",
            "TokenScores",
            "Trace",
        )
    },
    "model": {},
    "predict": {
        RECORDS: (
            "Candidate",
            "Embeddings",
            "Filling",
            "TextClass",
            "TextLabels",
            "TextNumber",
            "WordClass",
            "WordClasses",
        ),
        "the name of a union": ("Prediction",),
    },
    "prove": {"a number": ("LARGE",), RECORDS: ("Proof", "Verdict")},
    "runs": {RECORDS: ("Interrupted", "Plan", "Resolved", "Session", "Member", "SeedStatistics")},
    "tasks": {
        RECORDS: ("ExampleIndices", "EvalSet", "Loss", "DataSpec"),
        "what tasks are made from": (
            "ChatTask",
            "ClassificationTask",
            "ContrastiveTask",
            "MaskedTask",
            "MultiLabelTask",
            "NextTokenTask",
            "PrefixLMTask",
            "RegressionTask",
            "SpanCorruptionTask",
            "Task",
            "TokenClassificationTask",
            "TranslationTask",
        ),
    },
    "text": {"a word": ("END_OF_TEXT",), "a protocol": ("Tokenizer",)},
    "train": {RECORDS: ("Evaluation", "StopTraining", "SelectedWeights", "History", "Report")},
    "vectors": {},
    "weights": {RECORDS: ("Adapter", "Loaded")},
}

CASES = [(name, argument) for name, call in TABLE.items() for argument in call.bad]


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the shape checks that tests add, and where nothing is."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_bad_input_is_one_line_that_names_the_argument(name: str, argument: str, tmp_path: Path) -> None:
    call, faults = TABLE[name], []
    for bad in call.bad[argument]:
        value, word = bad if isinstance(bad, Bad) else (bad, argument)
        said = outcome(function_of(name), {**call.good, argument: value})
        if not said.startswith("HeddleError: ") or word not in said or "\n" in said or len(said) > 400:
            faults.append(f"{argument} = {value!r}: {said}")
    assert not faults, "\n".join(faults)
    assert not list(tmp_path.iterdir())


# What people pass by mistake: other ranks, widths, dtypes and containers, ids that do not exist, nothing at all.
STRANGE: list[Any] = [
    [1, 2, 3], [], [[300]], [[-1]], [""], "", None, -1, 1.5, NAN, torch.tensor([1, 2]), torch.tensor([[1, 300]]),
    torch.tensor([[-1, 2]]), torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long), torch.tensor(3),
    torch.ones(2, 3, 17), torch.ones(0, 3, 16), torch.ones(2, 2, dtype=torch.bool), np.ones(3), np.ones((2, 3), int), "\ud800",
    np.array(3), range(3), {"a": 1}, {1: 2}, [None], [3], "a\nb", "x" * 5000,
]  # fmt: skip
LONG = ("prove.prove", "prove.prove_config", "runs.prepare", "runs.sweep")  # which do much where an argument is taken


@pytest.mark.parametrize("name", [name for name in TABLE if name not in LONG])
def test_whatever_is_passed_it_works_or_is_refused_in_one_line(name: str) -> None:
    """Never an error of torch, numpy or Python itself, whichever argument is strange."""
    call, faults = TABLE[name], []
    for argument in call.bad:
        for value in STRANGE:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a blank text is told so
                said = outcome(function_of(name), {**call.good, argument: value})
            if not said.startswith(("HeddleError: ", "it was taken")) or "\n" in said:
                faults.append(f"{argument} = {value!r}: {said}")
    assert not faults, "\n".join(faults)


def function_of(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = TABLE[name].function or attrgetter(name)(heddle)
    return function


def outcome(call: Callable[..., Any], given: dict[str, Any]) -> str:
    """What comes of a call, in words."""
    try:
        found = call(**given)
        if isinstance(found, types.GeneratorType):
            next(found, None)
    except Exception as error:
        kind = (
            "HeddleError" if isinstance(error, HeddleError) else type(error).__name__
        )  # its own kinds are caught as it
        return f"{kind}: {error}"
    return f"it was taken and gave {type(found).__name__}"


@pytest.mark.parametrize("name", TABLE)
def test_every_argument_has_a_value_to_refuse(name: str) -> None:
    function = function_of(name)
    signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    named = {each.name for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD}
    left = (
        named
        - set(TABLE[name].bad)
        - {"cache", "source_types", "source_layout", "encoded", "types", "layout", "source"}
    )
    assert not left, f"{name} takes {left}, and no value of theirs is tried"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_entry_or_a_reason(package: str) -> None:
    public = set(import_module(f"heddle.{package}").__all__)
    named = {name.split(".")[1] for name in TABLE if name.startswith(f"{package}.")}
    reasons = {name for names in UNCHECKED[package].values() for name in names}
    assert public - named - reasons == set(), "a new public name needs an entry in TABLE, or a reason in UNCHECKED"
    assert (named - {"Config"}) | reasons <= public | {"Tokenizer", "TextStream"}


def test_the_root_adds_no_name_of_its_own() -> None:
    named = {name for package in PACKAGES for name in import_module(f"heddle.{package}").__all__}
    assert set(heddle.__all__) <= named | {"HeddleError"}


@pytest.mark.parametrize("name", UNCHECKED["config"]["refuses as a whole, see below"])
def test_a_config_refuses_in_one_line_however_it_is_made(name: str) -> None:
    kind = getattr(config, name)
    for make in (lambda: kind(nonsense=1), lambda: kind.of({"nonsense": 1})):
        with pytest.raises(HeddleError, match="nonsense") as refusal:
            make()
        assert "\n" not in str(refusal.value)
    for key in kind.model_fields:
        with pytest.raises(HeddleError) as refusal:
            kind(**{key: object()})
        assert key in str(refusal.value) or "is missing" in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_a_package_shows_its_public_names(package: str) -> None:
    shown = import_module(f"heddle.{package}".rstrip("."))
    extra = [name for name in dir(shown) if not name.startswith("__") and name not in shown.__all__]
    assert [name for name in extra if not isinstance(getattr(shown, name), types.ModuleType)] == []
    assert not set(extra) & {"importlib", "typing"}
    assert set(shown.__all__) <= set(dir(shown))


def test_what_is_given_well_is_taken() -> None:
    """The checks refuse nothing that people have at hand: numpy's numbers, paths of both sorts, lists and tuples."""
    assert heddle.sized(np.int64(1), vocab_size=np.int32(9), dim=16).vocab_size == 9
    history = heddle.fit(
        model.build(CONFIG, seed=np.int64(1)), TOKENIZER, TEXT, np.int64(1), learning_rate=np.float32(1e-3)
    )
    assert len(history.losses) == 1
    assert heddle.build(CONFIG, device=torch.device("cpu")).device.type == "cpu"
    assert len(list(generate.stream(MODEL, (1, np.int64(2)), SAMPLING))) <= 2
    heddle.save(MODEL, Path("run"), TOKENIZER)
    assert heddle.load("run").tokenizer is not None
    assert SEEING(IDS.int()).hidden.shape == (1, 4, 16)
