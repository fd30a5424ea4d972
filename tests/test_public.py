"""Whatever a public function is given: it works, or one line says which argument is wrong, where, and what it should be.

What must be refused follows from an argument's annotation: all of `VALUES` and `STRANGE` that it excludes. `LIMITS` has the numbers
and words that an argument's name excludes, `REFUSED` what only the function can know. A public function of which these tables say
nothing is tried too, if `GOOD` has arguments of the names that it needs.
"""

import copy
import functools
import inspect
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jaxtyping
import numpy as np
import pytest
import torch

import heddle
from heddle import config, generate, model, tasks
from heddle.checks import short_repr
from heddle.data import Corpus
from heddle.errors import HeddleError
from heddle.model.head import Scores
from heddle.nn import Layout
from tests.calls import (
    BARE,
    BATCH,
    BEAM,
    BOTH,
    BYTES_AND_MORE,
    CALLS,
    CONFIG,
    FUNCTIONS,
    HIDDEN,
    IDS,
    INF,
    LAYER,
    MODEL,
    NAN,
    PACKAGES,
    PART,
    RESULTS,
    SAMPLING,
    SCORES,
    SEEING,
    TEXT,
    TOKENIZER,
    TRAIN,
    VARIANTS,
    good,
    parameters,
    words,
)


def scores(**changes: Any) -> Scores:
    """Some that could not be made while shapes are checked."""
    made = copy.copy(SCORES)
    vars(made).update(changes)
    return made


class Bad(NamedTuple):
    """A value to refuse, and the word by which the refusal names it where that is not the argument's name."""

    value: Any
    word: str


@pytest.fixture(autouse=True, scope="module")
def one_measurement() -> Iterator[None]:
    """A device's rates are measured once: they are the same whatever else is passed."""
    module = import_module("heddle.bench.run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ceilings", functools.cache(module.ceilings))
        yield


@functools.cache
def arguments(name: str) -> dict[str, Any]:
    """A function's arguments with their annotations, and the keywords beside them that `REFUSED` has."""
    home = getattr(inspect.unwrap(FUNCTIONS[name]), "__globals__", {})
    annotations = {each.name: each.annotation for each in parameters(name)}
    for argument, annotation in annotations.items():
        annotations[argument] = eval(annotation, home) if isinstance(annotation, str) else annotation
    every = dict.fromkeys(REFUSED.get(name, {}), Any) | annotations
    return {
        argument: annotation for argument, annotation in every.items() if argument not in words(UNTRIED.get(name, ""))
    }


def excludes(annotation: Any, value: Any) -> bool:
    """Whether an annotation says for certain that a value must be refused."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return all(excludes(Path if option is str and Path in inner else option, value) for option in inner)
    if origin is Literal:
        return not any(type(value) is type(word) and value == word for word in inner)
    if origin is Callable:
        return not callable(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return not isinstance(value, Mapping) or any(
            excludes(*each) for pair in value.items() for each in zip(inner, pair, strict=True)
        )
    if isinstance(origin, type) and issubclass(origin, Iterable) and origin is not np.ndarray:
        if hasattr(value, "dtype"):  # a column is read as a list, if its items are what is needed
            return False
        other = (str, bytes, Mapping) if origin is Iterable else (str, bytes)
        if not isinstance(value, origin) or isinstance(value, other):
            return True
        return any(all(excludes(option, item) for option in inner if option is not ...) for item in value)
    if annotation is bool:
        return not isinstance(value, bool)
    if annotation in (int, float):
        number = isinstance(value, Integral if annotation is int else Real) and not isinstance(value, bool)
        return not number or not isfinite(value)
    if annotation is Path:
        return not isinstance(value, str | Path) or value in NO_FILES
    kind = origin or annotation
    return isinstance(kind, type) and kind is not Any and not isinstance(value, kind)


NO_FILES = ["", "a\0b", "\ud800", "x" * 5000]
# A value or more of every type; one is tried where the annotation excludes it.
VALUES: list[Any] = [
    True, 1, 3, INF, "warp", "3", "a\0b", b"warp", Path("warp"), ["warp"], [b"warp"], [1.5], [[1.5]], [["w"]], ("warp",),
    torch.ones(1), torch.ones(2), torch.ones(3, dtype=int), IDS, IDS.float(), IDS.numpy(), HIDDEN, torch.int8, torch.float32,
    torch.nn.Linear(2, 2), CONFIG, CONFIG.decoder, TRAIN, SAMPLING, MODEL, TOKENIZER, PART, BATCH, LAYER,
]  # fmt: skip
# What people pass by mistake: other ranks, widths, dtypes and containers, ids that do not exist, nothing at all.
STRANGE: list[Any] = [
    [1, 2, 3], [], [[300]], [[-1]], [""], "", None, -1, 1.5, NAN, torch.tensor([1, 2]), torch.tensor([[1, 300]]),
    torch.tensor([[-1, 2]]), torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 1, 1, dtype=torch.long), torch.tensor(3),
    torch.ones(2, 3, 17), torch.ones(0, 3, 16), torch.ones(2, 2, dtype=torch.bool), np.ones(3), np.ones((2, 3), int), "\ud800",
    np.array(3), range(3), {"a": 1}, {1: 2}, [None], [3], "a\nb", "x" * 5000,
]  # fmt: skip
# What people pass by mistake where a type alone does not exclude it.
LIMITS: dict[str, list[Any]] = {
    **{name: [0, -1] for name in words(
        "accumulate batch chunk context count depth dim known leading length longest megabytes multiple points repeats rows seeds "
        "shortest size steps top vocab_size"
    )},
    **{name: [-1] for name in words("keep kills most start step workers")},
    **{name: [-0.1, 1.5] for name in words("label_smoothing residual share targets threshold trained z_loss")},
    **{name: [0.0, -1.0] for name in ("learning_rate", "penalty")},
    **{name: [Bad(-1, "-1"), Bad(300, "300")] for name in ("a", "b", "c", "token")},
    **{name: [Bad(300, "300")] for name in ("against", "target")},
    "columns": [Bad({"words": "text"}, "words")],
    "decay": [0.0, 1.0, -0.1, 1.5],
    "device": ["tpu", "cuda:99", "gpu:x"],
    "dtype": [torch.int8],
    "kernel": ["sdqa"],
    "layout": [Layout.whole(2, 9)],
    "messages": [Bad([{"role": "user", "content": 3}], "content"), Bad([{"role": "bot", "content": ""}], "role")],
    "optimizer": ["adam"],
    "position": [9],
    "precision": ["fp16"],
    "seconds": [-1.0, 1e9],
    "seed": [-1, 2**64],
    "store_length": [Bad(3, "3 tokens")],
    "tokens": [IDS + 257, -IDS],
    "validation": [0.0, 1.0, -0.1],
}  # fmt: skip
# Other limits of the same names.
OTHER_LIMITS: dict[str, list[Any]] = {
    "data.held_out_windows.length": [-1],
    "data.read_examples.columns": [],
    "data.permute.seed": [],
    "data.windows.seed": [],
    "look.difference_of_logits.position": [],
    "look.score_heads.tokens": [],
    "look.strongest.batch": [9],
    "model.Transformer.new_cache.rows": [-1],
}
# Arguments whose types nothing checks for themselves, since that would take time in every call; `REFUSED` has some values.
LOOSE = {
    "config.Config.of": "data where", "model.Transformer.forward of both": "source_layout source_types",
    "tasks.cross_entropy": "chunk label_smoothing z_loss", "text.TextStream.push": "id", "text.Tokenizer.after": "id previous",
    "text.Tokenizer.piece": "id", "text.Tokenizer.token_bytes": "id",
}  # fmt: skip
# Arguments that only modules pass to each other.
UNTRIED = {"model.Stack.forward": "cache encoded types", "model.Transformer.scores": "layout"}
NO_ID, SECOND = [None, "a", 1.5, 257, -1], [Bad([[1]], "has no encoder")]
PRESETS = [Bad("gpt1x", "gpt1x"), Bad("x" * 5000, "not a preset")]
# Arguments that name what must be there, and lists that must not be empty.
READ = {
    "convert.export_adapter": "run", "convert.export_gguf": "run", "convert.export_model": "run", "convert.import_model": "source",
    "convert.load_vectors": "path", "convert.merge_adapter": "base", "convert.read_vectors": "path",
    "data.RecordStore.open": "directory", "data.TokenStore.open": "directory", "data.open_store": "directory",
    "prove.prove_run": "run", "runs.Trainer": "run", "runs.extend": "run", "runs.open_session": "run", "runs.show_step": "run",
    "text.load_gpt2_merges": "path", "text.load_tokenizer": "path", "text.load_wordpiece_vocab": "path",
    "vectors.WordVectors.read": "path", "weights.average": "run", "weights.load": "source", "weights.publish": "run",
    "weights.read_config": "run", "weights.read_state": "directory", "weights.save_checkpoint": "run",
}  # fmt: skip
FILLED = {
    "data.describe": "sources", "data.read_documents": "sources", "data.read_examples": "fields sources",
    "generate.score_translations": "references translations", "runs.plot_runs": "runs", "runs.seed_statistics": "results",
    "runs.write_csv": "runs", "runs.write_events": "runs",
}  # fmt: skip
# Functions of `account` that refuse sizes without an end.
COUNTED = words("cache_size count counted flops memory saved_activations walk")
# What only the function itself can know.
REFUSED: dict[str, dict[str, list[Any]]] = {
    **{f"account.{name}": {"batch": [2**40, 2**63], "length": [2**40, 2**63]} for name in COUNTED},
    "account.attention_table": {"lengths": [Bad([0], "length")]},
    "account.changed": {"name": PRESETS, "words": [Bad(["dim"], "key=value")]},
    "account.copy_rate": {"megabytes": [2**63]},
    "account.matmul_rate": {"size": [2**63]},
    "account.resolve": {"name": PRESETS[:1]},
    "account.training_settings": {"name": PRESETS[:1]},
    "config.Config.of": {"data": [None, [1], "dim = 3", 3]},
    "config.Config.override": {"changes": [Bad({"dim": NAN}, "dim"), Bad({"dmi": 3}, "dmi")]},
    "config.Config.read": {"path": [Bad("none.toml", "none.toml")]},
    "config.parse_overrides": {"pairs": [Bad(["dim"], "key=value")]},
    "config.preset": {"name": [Bad("gpt1x", "Did you mean 'gpt1'")]},
    "config.sized": {"depth": [Bad(10**9, "dim = 64000000000")], "stacks": [("decoder", "encoder"), ()]},
    "config.variants": {"seeds": [Bad(10**9, "1,000,000,000 runs are too many")], "table": [Bad({"nonsense": 1}, "nonsense")]},
    "data.Batch.split": {"parts": [Bad(0, "0 equal"), Bad(3, "3 equal")]},
    "data.Batch.to": {"device": ["", "none", "x" * 5000]},
    "data.build_records": {"examples": [Bad([], "no records")], "validation": [Bad(None, "part")]},
    "data.build_store": {"documents": [Bad([], "no text")], "validation": [Bad(None, "part")]},
    "data.next_token_batch": {"rows": [np.zeros((2, 1), int)]},
    "data.part_of": {"documents": [Bad([], "0 token(s)")]},
    "data.permute": {"indices": [np.arange(4), -np.arange(3), np.array([0.5])], "n": [0, 2**63]},
    "data.records_of": {"examples": [Bad([], "no records")]},
    "generate.Engine.of": {
        "prompts": [Bad([[257]], "id 257"), Bad([[-1]], "id -1"), Bad([[]], "prompt 0 is empty"),
            Bad([[1] * 9], "prompt 0 has 9")], "seeds": [[0, 0]], "sources": [Bad([], "0 sources for 1 prompts"), *SECOND],
    },
    "generate.Engine.submit": {
        "prompt": [Bad([257], "id 257"), Bad([], "is empty"), Bad([1] * 9, "has 9 tokens")],  # its number counts those before
        "source": [Bad([1], "has no encoder")],
    },
    "generate.beam_search": {"sources": SECOND},
    "generate.chat_template": {"model": [Bad(MODEL, "chat template")]},
    "generate.draw": {"keys": [[], [(0, 0)] * 2]},
    "generate.generate": {"sources": SECOND},
    "generate.generate_text": {
        "max_tokens": [0, -1, 1.5, NAN, True, "many"], "seed": [-1, 1.5], "temperature": [-1, NAN, "hot", None],
        "temprature": [1.0], "top_k": [0, 1.5], "top_p": [0, 2, NAN],
    },
    "generate.naive": {"prompt": [Bad([257], "id 257")], "source": [Bad([1], "has no encoder")]},
    "generate.reply": {"model": [Bad(MODEL, "chat template")], "temperature": [-1.0, NAN, "hot"]},
    "generate.score_translations": {"tokenize": [Bad("moses", "no tokenization 'moses'")]},
    "generate.translate": {
        "beam": [Bad(2, "Did you mean 'beams'")], "beams": [0, None, "many", 1.5],
        "best": [0, Bad(6, "best = 6 is more than beams = 5")], "config": [Bad(BEAM, "give a config or keywords, not both")],
        "special": [Bad(["<nothing>"], "<nothing>")],
    },
    "look.activation_curves": {"names": [Bad(["rely"], "rely")], "points": [1]},
    "look.attribute": {
        "against": [Bad(torch.tensor([[1, 2]]), "against"), Bad(torch.tensor([[300]]), "300")],
        "positions": [Bad([9], "position")],
        "targets": [Bad(torch.tensor([[1, 2]]), "targets"), Bad(torch.tensor([[300]]), "300")],
    },
    "look.costs": {"lengths": [Bad([0], "length")]},
    "look.find_heads": {"ids": [Bad([300], "300"), Bad([], "ids")], "length": [1], "repeats": [1]},
    "look.integrated_gradients": {"baseline": [torch.ones(3)]},
    "look.patch": {
        "by": ["words"], "clean": [Bad(IDS[:, :2], "clean")], "corrupted": [Bad(IDS[:, :2], "corrupted")],
        "names": [Bad("decoder.9.entry", "decoder.9.entry")],
    },
    "look.probe": {"names": [Bad("entry", "entry")]},
    "look.probe_vectors": {
        "labels": [Bad(torch.ones(2, dtype=torch.long), "labels")], "vectors": [Bad(torch.eye(3), "vectors")],
    },
    "look.rollout": {"layers": [Bad([], "layer")]},
    "look.strongest": {"head": [9]},
    "look.trace": {"attention": [Bad("decoder.9.mixer", "decoder.9.mixer")], "names": [Bad("entry", "entry")]},
    "look.write_drawing": {"path": [Bad("a.png", "a.png")]},
    "model.Stack.forward": {"layout": [Bad(Layout.whole(1, 3), "[1, 3]")], "x": [HIDDEN[..., 1:]]},
    "model.Transformer.check_vocabulary": {"ids": [Bad(3, "3 ids")]},
    "model.Transformer.forward of both": {
        "source": [None, IDS + 257, -IDS], "source_layout": [Bad(3, "layout")], "source_types": [Bad(IDS, "types")],
    },
    "model.Transformer.forward with a cache": {"cache": [Bad(MODEL.new_cache(2), "2 rows")]},
    "model.Transformer.forward": {
        "source": [IDS], "tokens": [Bad(torch.zeros(1, 9, dtype=int), "9 tokens")],
        "types": [torch.full((1, 4), 2), torch.zeros(1, 3, dtype=int)],
    },
    "model.Transformer.logits": {"hidden": [HIDDEN[..., 1:]]},
    "model.Transformer.scores": {"hidden": [HIDDEN[..., 1:], HIDDEN[0], HIDDEN[None]]},
    "predict.classify": {
        "model": [Bad(MODEL, "classify")], "texts": [[3], [None]], "threshold": [0.5],
        "tokenizer": [Bad(BYTES_AND_MORE, "tokenizer")],
    },
    "predict.embed": {
        "prompt_name": [Bad("query", "no prompt 'query'")], "texts": [[3], [None]],
        "tokenizer": [Bad(BYTES_AND_MORE, "tokenizer")],
    },
    "predict.fill": {
        "model": [Bad(MODEL, "decoder")], "texts": [Bad(["warp"], "[MASK]")], "tokenizer": [Bad(TOKENIZER, "mask")],
    },
    "runs.model_for": {
        "data": [None, 3, Bad([TEXT], "pairs (text, label)")], "dim": [0, 1.5], "family": ["encoder-decoder"],
        "preset": ["gpt1"], "start": [Bad("nowhere", "nowhere")], "task": ["classify", TRAIN],
    },
    "runs.plot_runs": {"file": [Bad("a.gif", ".png")]},
    "runs.prepare": {"run": [Bad(".", "already exists")]},
    "runs.show_step": {"step": [0]},
    "runs.sweep": {"run": ["."], "variants": [[], config.variants({}), VARIANTS * 2]},
    "runs.tokenize": {"config": [Bad(config.RunConfig(), "store")], "part": [(2, 2), (-1, 2), (0, 0), (0,)]},
    "runs.tokenizer_for": {
        "data": [None, 3, [3], Bad([(TEXT, TEXT)], "a text"), Bad("", "text")], "kind": [Bad("bytez", "Did you mean 'bytes'")],
        "task": ["next", TRAIN],
    },
    "tasks.CrossEntropy": {"model": [Bad(BARE, "head")]},
    "tasks.cross_entropy": {
        "chunk": [1.5, "2"], "label_smoothing": [NAN, "0.1", None, [0.1]], "z_loss": [NAN, "0.1", None, [0.1]],
        "scores": [*(scores(table=table) for table in (None, torch.ones(257, 15), torch.ones(257))),
            *(scores(bias=bias) for bias in (torch.ones(3), 1.0))],
        "targets": [torch.tensor([1, 2]), torch.tensor([1, 2, 257]), torch.tensor([1, 2, -1])], "weights": [torch.ones(2)],
    },
    "tasks.make_task": {
        "config": [TRAIN], "spec": [Bad(tasks.DataSpec(Corpus(PART), CONFIG.override({"context": 20})), "context")],
    },
    "text.ChatTemplate": {"template": [Bad("{% if %}", "Jinja")]},
    "text.TextStream.push": {"id": NO_ID},
    "text.Tokenizer.after": {"id": NO_ID},
    "text.Tokenizer.decode": {"ids": [Bad([257], "id 257"), Bad([-1], "id -1")]},
    "text.Tokenizer.decode_bytes": {"ids": [Bad([257], "id 257")]},
    "text.Tokenizer.encode": {
        "allow_special": [Bad(["<x>"], "<x>")], "pair": [Bad("b", "tokenizer_of")], "special": [Bad(True, "tokenizer_of")],
    },
    "text.Tokenizer.piece": {"id": NO_ID},
    "text.Tokenizer.token_bytes": {"id": NO_ID},
    "text.add_special_tokens": {"names": [Bad([""], "whitespace"), Bad([" "], "whitespace")]},
    "text.train_tokenizer": {
        "kind": [Bad("bytez", "Did you mean 'bytes'")], "special": [["<end>", "<end>"]],
        "texts": [iter([3]), Bad([""], "text")],
    },
    "train.Optimizer": {"by_onednn": [("updates",)]},
    "train.evaluate": {"most": [0], "model": [Bad(BOTH, "encoder")]},
    "train.fit": {
        "batch": [0, -1, 1.5, NAN], "columns": [Bad({"source": "text"}, "source")],
        "data": [None, 3, TEXT.encode(), [3], [], {"text": TEXT}, HIDDEN[0], IDS, Bad("", "text"), Bad("warp", "context"),
            BATCH, str, np.float64(1.5), torch.zeros(9, dtype=torch.long, device="meta"), torch.ones(9).to_sparse()],
        "device": ["tpu"], "learning_rate": [0.0, -1.0, NAN, INF, True, [1.0]], "loss": ["focal", "nowhere:focal"],
        "minutes": [1.0], "model": [Bad(BOTH, "model's vocab_size")], "precision": ["fp16", 3], "save_every": [3],
        "steps": [None], "task": ["next", TRAIN, Bad("translation", "pairs")],
        "tokenizer": [None, heddle.train_tokenizer("characters", ["ab"])],
        "validation": [0.0, 1.0, -1, NAN, True, 3, b"warp", [3], Bad("", "text"), Bad("w", "text")],
    },
    "train.train_step": {"accumulate": [Bad(3, "3 equal micro-batches")], "clip": [-1.0], "factor": [-1.0]},
    "vectors.WordVectors.analogy": {
        "a": [Bad("wrap", "Did you mean 'warp'")], "b": [Bad("wefts", "Did you mean 'weft'")], "c": [Bad("", "''")],
    },
    "vectors.WordVectors.near": {"word": [Bad("wrap", "Did you mean 'warp'")]},
    "vectors.WordVectors.save": {"form": ["word2vec"], "path": [Bad(".", "already exists")]},
    "vectors.train_vectors": {"texts": [Bad([], "give more text"), Bad([TEXT], "lower min_count")]},
    "weights.add_tokens": {"known": [258]},
    "weights.publish": {"model_tensors": [{}]},
    "weights.save": {"run": [Bad(".", "already exists")], "tokenizer": [BYTES_AND_MORE]},
    "weights.save_checkpoint": {"model_tensors": [{}]},
    "weights.tokenizer_of": {"tokenizer": [Bad(BYTES_AND_MORE, "tokenizer")]},
}  # fmt: skip
LONG = ("prove.prove", "prove.prove_config", "runs.prepare", "runs.sweep")  # which do much where an argument is taken


def is_excluded(name: str, argument: str, value: Any) -> bool:
    """Whether the annotation of a function's argument says for certain that a value must be refused."""
    return argument not in words(LOOSE.get(name, "")) and excludes(arguments(name)[argument], value)


@functools.cache
def to_refuse(name: str) -> list[tuple[str, Any, str]]:
    """Arguments with a value that must be refused, and the word by which the refusal names it."""
    rows: list[tuple[str, Any, str]] = []
    for argument in arguments(name):
        excluded = [value for value in (*VALUES, *STRANGE) if is_excluded(name, argument, value)]
        limits = OTHER_LIMITS.get(f"{name}.{argument}", LIMITS.get(argument, []))
        missing = [Bad("none", "none")] if argument in words(READ.get(name, "")) else []
        empty = [[]] if argument in words(FILLED.get(name, "")) else []
        for bad in (*excluded, *limits, *missing, *empty, *REFUSED.get(name, {}).get(argument, [])):
            value, word = bad if isinstance(bad, Bad) else (bad, argument)
            rows.append((argument, value, word))
    return rows


def outcome(name: str, argument: str, value: Any) -> str:
    """What comes of a call, in words."""
    try:
        result = FUNCTIONS[name](**{**good(name), argument: value})
        if isinstance(result, types.GeneratorType):
            next(result, None)
    except Exception as error:
        kind = HeddleError if isinstance(error, HeddleError) else type(error)  # its own kinds are caught as it
        return f"{kind.__name__}: {error}"
    return f"it was taken and gave {type(result).__name__}"


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the shape checks that tests add, and where nothing is."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.chdir(tmp_path)


TAKING = [name for name in FUNCTIONS if arguments(name)]


@pytest.mark.parametrize("name", TAKING)
def test_bad_input_is_one_line_that_names_the_argument(name: str, tmp_path: Path) -> None:
    faults = []
    for argument, value, word in to_refuse(name):
        line = outcome(name, argument, value)
        if not line.startswith("HeddleError: ") or word not in line or "\n" in line or len(line) > 400:
            faults.append(f"{argument} = {short_repr(value)}: {line}")
    assert not faults, "\n".join(faults)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in TAKING if name not in LONG])
def test_whatever_is_passed_it_works_or_is_refused_in_one_line(name: str) -> None:
    """Never an error of torch, numpy or Python itself, whichever argument is strange; what must be refused is tried above."""
    faults = []
    for argument in arguments(name):
        for value in (value for value in STRANGE if not is_excluded(name, argument, value)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a blank text is told so
                line = outcome(name, argument, value)
            if not line.startswith(("HeddleError: ", "it was taken")) or "\n" in line:
                faults.append(f"{argument} = {short_repr(value)}: {line}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", TAKING)
def test_every_argument_has_a_value_to_refuse(name: str) -> None:
    refused = {argument for argument, _, _ in to_refuse(name)}
    left = arguments(name).keys() - refused - {"where", "previous"}  # which are no more than shown, or any id
    assert not left, f"{name} takes {left}, and no value of theirs is tried"


def test_every_table_is_about_what_exists() -> None:
    rows = {
        f"{name}.{argument}"
        for table in (LOOSE, READ, FILLED)
        for name, each in table.items()
        for argument in words(each)
    }
    rows |= {f"{name}.{argument}" for name, each in REFUSED.items() for argument in each} | OTHER_LIMITS.keys()
    assert {f"{name}.{argument}" for name in TAKING for argument in arguments(name)} >= rows
    assert FUNCTIONS.keys() >= CALLS.keys() | UNTRIED.keys()
    assert {name for package in PACKAGES for name in import_module(f"heddle.{package}").__all__} >= set(RESULTS)


def test_the_root_adds_no_name_of_its_own() -> None:
    named = {name for package in PACKAGES for name in import_module(f"heddle.{package}").__all__}
    assert set(heddle.__all__) <= named | {"HeddleError"}


@pytest.mark.parametrize("name", [name for name in config.__all__ if isinstance(getattr(config, name), type)])
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
