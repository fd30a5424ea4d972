"""Directories of sentence-transformers: read and written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import heddle
from heddle.convert import export_model, import_model
from heddle.convert.families import ALL, Family
from heddle.convert.sentence_transformers import _dense, _length, _prompts
from heddle.errors import HeddleError
from tests.convert.sentences import DIM, MEAN, NORMAL, TEXTS, dense, mode, save_json, write
from tests.convert.sentences import vectors as expected

QUERY = {"prompts": {"query": "query: ", "none": ""}, "default_prompt_name": "query"}
TINY = {
    "vocab_size": 19, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "pad_token_id": 0,
}  # fmt: skip
# transformers renames the experts of others when it loads them.
SINGLE = [f for f in ALL if len(f.options.stacks) == 1 and not any("{e}" in row.published for row in f.table)]
LINEAR = "torch.nn.modules.linear.Identity"
OLDER = {
    name: {"word_embedding_dimension": DIM, "pooling_mode_mean_tokens": False, name: True}
    for name in (
        "pooling_mode_cls_token",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens",
        "pooling_mode_lasttoken",
    )
}
# The pooling and the modules behind it, and what else the files say.
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "mean": ((MEAN, NORMAL), {}),
    "nothing said": (({"word_embedding_dimension": DIM},), {}),
    **{name: ((pooling,), {}) for name, pooling in OLDER.items()},
    "max and mean": (({**MEAN, "pooling_mode_max_tokens": True},), {}),
    **{name: ((mode(name),), {}) for name in ("cls", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")},
    "last and first": ((mode("mean", pooling_mode=["lasttoken", "cls"]), dense(2 * DIM, 7), NORMAL), {}),
    "two dense": ((MEAN, dense(DIM, 30, LINEAR, bias=False), dense(30, 8), NORMAL), {}),
    "short": ((MEAN,), {"length": {"max_seq_length": 9}}),
    "longer than the positions": ((MEAN,), {"length": {"max_seq_length": 999}}),
    "lower": ((MEAN,), {"length": {"do_lower_case": True}}),
    "in a folder": ((MEAN, ("Dropout", {"dropout": 0.2})), {"body": "0_Transformer"}),
    "prompt": ((MEAN,), {"prompts": QUERY}),
    "prompt not pooled": ((mode("weightedmean", include_prompt=False), NORMAL), {"prompts": QUERY}),
    "a head for masks": ((MEAN, NORMAL), {"kind": "BertForMaskedLM"}),
    "ModernBERT": ((mode("cls"), NORMAL), {"kind": "ModernBertModel"}),
    "a decoder": ((mode("lasttoken"), NORMAL), {"kind": "LlamaForCausalLM"}),
    "newest names": ((mode("mean"), NORMAL), {"owner": "sentence_transformers.base.modules.any."}),
}

EXPORTED = (
    "max and mean",
    "last and first",
    "two dense",
    "short",
    "lower",
    "prompt not pooled",
    "a decoder",
    "ModernBERT",
)


def vectors(run: Path, texts: list[str] = TEXTS, **how: Any) -> np.ndarray[Any, Any]:
    model, tokenizer = heddle.load(run, "cpu")
    assert tokenizer is not None
    # In fp64, so that no kernel's rounding is compared.
    return heddle.embed(model.double(), tokenizer, texts, **how).vectors


@pytest.mark.parametrize("name", CASES)
def test_a_directory_is_read_as_it_is_meant(name: str, tmp_path: Path) -> None:
    """Beside transformers' hidden vectors, pooled in fp64: short, padded and cut texts, in one batch. What is exported means
    the same again."""
    modules, message = CASES[name]
    folder = write(tmp_path / "published", *modules, **message)
    report = import_model(folder, tmp_path / "run")
    assert [note for note in report["notes"] if "Dropout" not in note] == []
    assert len(report["notes"]) == (name == "in a folder")
    prompt = "query: " if "prompts" in message else ""
    lower = message.get("length", {}).get("do_lower_case", False)
    reference = expected(folder, message.get("body", ""), prompt, lower)
    result = vectors(tmp_path / "run")
    np.testing.assert_allclose(result, reference, atol=1e-6, rtol=1e-5)
    if name not in EXPORTED:
        return
    export_model(tmp_path / "run", tmp_path / "exported")
    np.testing.assert_allclose(expected(tmp_path / "exported", "", prompt), reference, atol=1e-6, rtol=1e-5)
    import_model(tmp_path / "exported", tmp_path / "again")
    np.testing.assert_array_equal(vectors(tmp_path / "again"), result)


def test_prompts_are_named(tmp_path: Path) -> None:
    import_model(write(tmp_path / "published", MEAN, prompts=QUERY), tmp_path / "run")
    by_default, by_name = vectors(tmp_path / "run"), vectors(tmp_path / "run", prompt_name="query")
    np.testing.assert_array_equal(by_default, by_name)
    np.testing.assert_array_equal(by_default, vectors(tmp_path / "run", prompt="query: "))
    without = vectors(tmp_path / "run", prompt="")
    np.testing.assert_array_equal(without, vectors(tmp_path / "run", prompt_name="none"))
    assert np.abs(by_default - without).max() > 1e-2
    with pytest.raises(HeddleError, match=r"no prompt 'qery'; it has 'query', 'none'. Did you mean 'query'?"):
        vectors(tmp_path / "run", prompt_name="qery")
    with pytest.raises(HeddleError, match="exclude each other"):
        vectors(tmp_path / "run", prompt="", prompt_name="query")


def replaced(file: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A change of a JSON file."""

    def apply(folder: Path) -> None:
        path = folder / file
        save_json(path, change(json.loads(path.read_text()) if path.is_file() else {}))

    return apply


def module(number: int, **fields: Any) -> Callable[[Path], None]:
    """Other fields of a module."""
    return replaced("modules.json", lambda data: [m | fields if m["idx"] == number else m for m in data])


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "own code": (module(0, type="custom_st.Transformer"), "custom_st.Transformer is the model's own code"),
    "other module": (
        module(2, type="sentence_transformers.models.LayerNorm"),
        "LayerNorm, Normalize after the pooling",
    ),
    "no pooling": (
        module(1, type="sentence_transformers.models.WordWeights"),
        "must begin with Transformer and Pooling",
    ),
    "outside": (module(1, path="../elsewhere"), "outside the directory"),
    "not a list": (replaced("modules.json", lambda data: {"a": 1}), "not a list of modules"),
    "unknown mode": (
        replaced("1_Pooling/config.json", lambda data: {"pooling_mode": "median"}),
        "heddle supports cls, max",
    ),
    "unknown field": (replaced("1_Pooling/config.json", lambda data: {**data, "trim": 0.1}), "trim = 0.1"),
    "residual": (replaced("2_Dense/config.json", lambda data: {**data, "use_residual": True}), "supports only False"),
    "activation": (
        replaced("2_Dense/config.json", lambda data: {**data, "activation_function": "own.Tanh"}),
        "heddle supports torch's Tanh",
    ),
    "width": (replaced("2_Dense/config.json", lambda data: {**data, "out_features": 5}), "head.dense.0"),
    "no bias": (replaced("2_Dense/config.json", lambda data: {**data, "bias": False}), "must be linear.weight$"),
    "task": (
        replaced("sentence_bert_config.json", lambda data: {**data, "transformer_task": "fill-mask"}),
        "supports only 'feature-extraction'",
    ),
    "similarity": (
        replaced("config_sentence_transformers.json", lambda data: {"similarity_fn_name": "hamming"}),
        "heddle supports cosine",
    ),
    "default prompt": (
        replaced("config_sentence_transformers.json", lambda data: {"default_prompt_name": "query"}),
        "prompt = 'query' is not in prompts",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused(name: str, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    folder = write(tmp_path / "published", MEAN, dense(DIM, 6), NORMAL)
    change(folder)
    with pytest.raises(HeddleError, match=message):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", SINGLE, ids=lambda each: each.architecture)
def test_the_body_of_a_family_is_the_bare_class(family: Family) -> None:
    """Its tensors are named as transformers' class without a head names them: below a pooling, every family has one."""
    body = family.body()
    made = getattr(transformers, body.architecture)
    rows = {row.published.removeprefix(body.names.prefix) for row in body.table}
    with torch.device("meta"):
        names = made(made.config_class(**TINY)).state_dict()
    unread = {name for name in names if name.startswith("pooler.")}  # a head of the bare class itself
    assert {re.sub(r"\.\d+\.", ".{i}.", name) for name in names.keys() - unread} <= rows
    assert not any(name.startswith("head.") for row in body.table for name in row.heddle)


def test_what_files_leave_out_is_their_default(tmp_path: Path) -> None:
    """Those of sentence-transformers: the cosine, Tanh with a bias, the tokenizer's length, no text before a text."""
    file = tmp_path / "config.json"
    for name, similarity in ((None, "cosine"), ("dot_score", "dot"), ("dot", "dot"), ("euclidean", "euclidean")):
        save_json(file, {"similarity_fn_name": name, "prompts": {"query": "query: ", "none": None}})
        prompts = _prompts(file)
        assert (prompts["similarity"], prompts["prompt"]) == (similarity, None)
        assert prompts["prompts"] == {"query": "query: ", "none": ""}
    assert _prompts(tmp_path / "nothing.json")["similarity"] == "cosine"
    save_json(file, {"in_features": 4, "out_features": 3})
    assert _dense(file) == {"outputs": 3, "activation": "tanh", "bias": True}


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_the_length_is_the_files_or_the_tokenizers(name: str, tmp_path: Path) -> None:
    """Also of older files, which are named after the class."""
    assert _length(tmp_path) == (None, False)
    save_json(tmp_path / "tokenizer_config.json", {"model_max_length": 77})
    assert _length(tmp_path) == (77, False)
    save_json(tmp_path / name, {"max_seq_length": 9, "do_lower_case": True})
    assert _length(tmp_path) == (9, True)
    save_json(tmp_path / name, {"max_seq_length": None})
    assert _length(tmp_path) == (77, False)
    save_json(tmp_path / "tokenizer_config.json", {"model_max_length": 10**30})
    assert _length(tmp_path) == (None, False)
