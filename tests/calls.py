"""Every public function, with arguments that it takes, for `tests/test_public.py`."""

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import heddle
from heddle import account, config, data, generate, look, model, runs, tasks, text, train
from heddle.data import Corpus, Document, Example, Part, RecordStore, TokenStore
from heddle.model.head import Scores
from heddle.nn import Layout
from heddle.vectors import WordVectors

PACKAGES = (
    "account", "bench", "config", "convert", "data", "generate", "look", "model", "predict", "prove", "runs", "tasks", "text",
    "train", "vectors", "weights",
)  # fmt: skip
TEXT = "the warp is held, the weft is thrown"
NAN, INF = float("nan"), float("inf")
TOKENIZER = heddle.train_tokenizer("bytes", [])
BYTES_AND_MORE = heddle.train_tokenizer("bytes", [], special=("<a>", "<b>"))
CONFIG = heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=8, dim=16)
MODEL = model.build(CONFIG)
SEEING = model.build(CONFIG.override({"decoder.entry.positions": "learned", "decoder.entry.types": 2}))
PAIRED = model.build(heddle.sized(1, vocab_size=TOKENIZER.vocab_size, context=8, dim=16, stacks=("encoder", "decoder")))
BOTH = model.build(heddle.sized(1, vocab_size=9, context=8, dim=16, stacks=("encoder", "decoder")))
BARE = model.build(CONFIG.override({"head.kind": "none"}))
CHATTING = model.build(CONFIG.override({"chat": {}}))
CLASSIFIER = model.build(CONFIG.override({"head": {"kind": "classifier", "classes": 2}}))
MASKED = heddle.train_tokenizer("words", [TEXT], special=("[MASK]",))
ENCODER = model.build(heddle.sized(1, vocab_size=MASKED.vocab_size, context=8, dim=16, stacks=("encoder",)))
IDS = torch.tensor([TOKENIZER.encode("warp")])
HIDDEN = torch.ones(2, 3, 16)
PART = Part(np.arange(20, dtype=np.uint16), 20, 1, 1)
STORE = TokenStore(
    directory=Path("data"), vocab_size=257, tokenizer="", sources="", bytes=0, separator=None, split={}, train=PART,
    validation=PART,
)  # fmt: skip
EXAMPLES = [Example({"text": f"{TEXT} {number}"}, str(number % 2), "t") for number in range(20)]
SAMPLING = config.SamplingConfig(max_tokens=2)
BEAM = config.BeamConfig(beams=1, max_tokens=2)
BATCH = data.next_token_batch(np.arange(18).reshape(2, 9))
TRAIN = config.TrainConfig()
STATE = {"a.weight": torch.ones(2)}
SCORES = Scores(torch.ones(257, 16), 257)
SPEC = tasks.DataSpec(Corpus(PART, PART), CONFIG)
WORDS = WordVectors(("warp", "weft", "thread"), np.eye(3, dtype=np.float32))
VARIANTS = config.variants({"train": {"learning_rate": [1e-3, 2e-3]}})
TEMPLATE = "{% for m in messages %}{{ m.role + m.content }}<|endoftext|>{% endfor %}"
LAYER = look.trace(MODEL, IDS, attention="*").attention["decoder.0.mixer"]


def entered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A context manager that is entered and left."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        with function(*args, **kwargs):
            pass

    return call


@functools.wraps(MODEL.forward)
def cached(tokens: Any, **more: Any) -> Any:
    """A call with a new cache."""
    return MODEL(tokens, **{"cache": MODEL.new_cache(1), **more})


def words(text: str) -> list[str]:
    return text.split()


# Public methods, with an object that has them, and functions that are not called as they stand.
OWNERS: dict[str, tuple[Any, str]] = {
    "config.Config": (CONFIG, "of override read"),
    "config.ModelChoice": (config.ModelChoice(), "resolve"),
    "data.Batch": (BATCH, "split to"),
    "data.RecordStore": (RecordStore, "open"),
    "data.TokenStore": (TokenStore, "open"),
    "generate.Engine": (generate.Engine(MODEL), "leave of submit"),
    "model.Transformer": (MODEL, "check_vocabulary logits new_cache"),
    "text.ChatTemplate": (text.ChatTemplate(TOKENIZER, TEMPLATE), "conversation render text"),
    "text.TextStream": (text.TextStream(TOKENIZER), "push"),
    "text.Tokenizer": (TOKENIZER, "after decode decode_bytes encode encode_batch piece pieces save token_bytes"),
    "vectors.WordVectors": (WORDS, "analogy near read save"),
}
METHODS: dict[str, Callable[..., Any]] = {
    "look.edited": entered(look.edited),
    "model.Stack.forward": MODEL.decoder,
    "model.Transformer.forward": SEEING,
    "model.Transformer.forward of both": BOTH,
    "model.Transformer.forward with a cache": cached,
    "model.Transformer.scores": CLASSIFIER.scores,
    **{f"{owner}.{name}": getattr(each, name) for owner, (each, names) in OWNERS.items() for name in words(names)},
}
# Classes that heddle returns and nobody else makes.
RESULTS = words(
    "Accounts Flops Line Memory Parameters Walk Coverage Batch Column Corpus Description Document Example Part RecordStore "
    "Records TokenStore Event Hypothesis Piece Translation TranslationScore AttentionPass Attribution Drawing Edit HeadScores "
    "Switch Explanation Bench Ceiling Rounds Speed "
    "Lens Patching Probe TokenScores Trace Candidate Embeddings Filling TextClass TextLabels TextNumber WordClass WordClasses "
    "Proof Verdict Member Plan Resolved SeedStatistics Session DataSpec EvalSet ExampleIndices Loss Evaluation History Report "
    "Tokenized SelectedWeights Adapter Loaded WordVectors Switch Explanation"
)


def takes_arguments(public: Any) -> bool:
    """Whether people call it: no number, union, protocol or error, no class that other functions make for them."""
    apart = (config.Config, tasks.Task, Exception)
    made = isinstance(public, type) and (issubclass(public, apart) or getattr(public, "_is_protocol", False))
    return callable(public) and not made and public.__name__ not in RESULTS


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{package}.{name}": getattr(import_module(f"heddle.{package}"), name)
    for package in PACKAGES
    for name in import_module(f"heddle.{package}").__all__
    if takes_arguments(getattr(import_module(f"heddle.{package}"), name))
} | METHODS


def parameters(name: str) -> list[inspect.Parameter]:
    function = FUNCTIONS[name]
    signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    return [each for each in signature.parameters.values() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


# The arguments that functions need, by name; and those of single functions.
GOOD: dict[str, Any] = {
    "a": 1, "accumulate": 1, "adapter": "adapter", "attention": LAYER, "b": 2, "base": "run", "batch": 1, "c": 3, "changes": {},
    "clean": IDS, "clip": 1.0, "config": CONFIG, "context": 4, "corrupted": IDS, "count": 2, "data": TEXT, "decay": 0.9, "depth": 1,
    "device": "cpu", "dim": 16, "directory": "a", "documents": [Document(TEXT, "t")], "drawing": look.draw(CONFIG),
    "dtype": torch.float32, "edits": [], "end_of_text": False, "examples": EXAMPLES, "factor": 1.0, "features": HIDDEN[0],
    "fields": ["text", "label"], "file": "a.csv", "first": 1, "folder": "runs", "head": 0, "hidden": HIDDEN, "id": 1, "ids": [1],
    "indices": np.arange(3), "keep": 1, "keys": [(0, 0)], "kind": "characters", "known": 257, "layers": [LAYER],
    "layout": Layout.whole(2, 3), "learning_rate": 1e-3, "length": 4, "lengths": [1, 4], "logits": torch.zeros(1, 3),
    "matrix": torch.ones(2, 9), "messages": [{"role": "user", "content": "a"}], "metric": len, "model": MODEL,
    "model_tensors": STATE, "n": 3, "name": "gpt1", "names": "decoder.entry", "optimizer": "muon", "optimizer_tensors": STATE,
    "outcomes": [], "pairs": [], "parts": 1, "path": "v", "precision": "fp32", "previous": None, "prompt": [1], "prompts": [[1]],
    "references": ["a warp"], "report": account.count(CONFIG), "resolved": runs.resolve(config.RunConfig()), "results": [1.0],
    "rows": 1, "run": "run", "runs": ["run"], "sampling": SAMPLING, "scores": SCORES, "second": 2, "seed": 0, "settings": {},
    "source": "run", "sources": ["a.txt"], "spec": SPEC, "state": {}, "step": 1, "store": STORE, "store_length": 20, "table": {},
    "target": 3, "targets": torch.tensor([1, 2, 3]), "template": TEMPLATE, "tensor": HIDDEN, "text": "a", "texts": [TEXT],
    "token": 1, "tokenizer": TOKENIZER, "tokens": IDS, "train": TRAIN, "translations": ["a warp"], "validation": 0.2,
    "variants": VARIANTS, "vector": HIDDEN[0, 0], "vectors": torch.eye(8), "vocab_size": 9, "weights": STATE, "word": "warp",
    "x": HIDDEN,
}  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {
    "account.matmul_rate": {"size": 8, "seconds": 0.01},
    "bench.bench": {"device": "cpu", "parts": ["ceilings"], "quick": True},
    "config.Config.of": {"data": CONFIG.to_dict()},
    "config.Config.read": {"path": "x.toml"},
    "convert.merge_adapter": {"run": "new"},
    "data.next_token_batch": {"rows": np.zeros((2, 3), int)},
    "data.read_examples": {"sources": ["a.jsonl"]},
    "data.records_of": {"classes": ["0", "1"]},
    "data.windows": {"batch": 2, "step": 0},
    "generate.Engine.leave": {"rows": set()},
    "generate.beam_search": {"config": BEAM},
    "generate.chat_template": {"model": CHATTING},
    "generate.complete": {"prompts": ["warp"]},
    "generate.generate_text": {"prompt": "warp"},
    "generate.reply": {"model": CHATTING, "window": True, "max_tokens": 1},
    "generate.translate": {"model": PAIRED, "sources": ["warp"], "max_tokens": 2},
    "look.ablate": {"name": "decoder.0.ffn.added"},
    "look.find_heads": {"length": 2, "rows": 1},
    "look.head_products": {"attention": MODEL.decoder.blocks[0].mixer},
    "look.integrated_gradients": {"steps": 1},
    "look.probe": {"labels": IDS % 2},
    "look.probe_vectors": {"labels": torch.arange(8) % 2},
    "look.replace": {"name": "decoder.entry"},
    "look.steer": {"name": "decoder.entry"},
    "look.write_drawing": {"path": "a.svg"},
    "model.Stack": {"config": CONFIG.decoder},
    "model.Transformer.check_vocabulary": {"ids": 257},
    "model.Transformer.forward of both": {"tokens": IDS % 9, "source": IDS % 9},
    "predict.classify": {"model": CLASSIFIER},
    "predict.fill": {"model": ENCODER, "tokenizer": MASKED, "texts": ["the [MASK] is held"]},
    "prove.served_ids": {"data": "data"},
    "runs.compare_runs": {"runs": []},
    "runs.model_for": {"task": "classification", "data": [(TEXT, "a"), (TEXT, "b")], "depth": 1, "context": 8},
    "runs.plot_runs": {"file": "a.png"},
    "runs.prepare": {"config": config.RunConfig()},
    "runs.resolve": {"config": config.RunConfig()},
    "runs.sweep": {"run": "a"},
    "runs.tokenize": {"config": config.RunConfig.of({"data": {"store": "a"}})},
    "runs.tokenizer_for": {"task": "next_token", "kind": "characters"},
    "tasks.cross_entropy": {"weights": torch.ones(3)},
    "tasks.make_task": {"config": config.NextTokenConfig()},
    "train.Optimizer": {"config": TRAIN},
    "train.evaluate": {"task": tasks.make_task(config.NextTokenConfig(), SPEC)},
    "train.fit": {"steps": 1},
    "train.train_step": {
        "objective": tasks.CrossEntropy(MODEL), "optimizer": train.Optimizer(model.build(CONFIG), TRAIN, 1e-3, "fp32"),
        "batch": BATCH,
    },
    "vectors.WordVectors.analogy": {"a": "warp", "b": "weft", "c": "thread"},
    "vectors.train_vectors": {"texts": [TEXT * 9]},
}  # fmt: skip


def good(name: str) -> dict[str, Any]:
    """Arguments that a function takes."""
    own = CALLS.get(name, {})
    return {
        each.name: GOOD[each.name] for each in parameters(name) if each.default is each.empty and each.name not in own
    } | own
