"""transformers as the outside witness: equal logits, equal gradients of every parameter, nothing lost on the way."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from heddle.model import Transformer
from heddle.weights import export_model, import_model, load, read_config
from heddle.weights.convert import FAMILIES
from heddle.weights.families.family import resolved
from heddle.weights.mapping import to_theirs

TOKENS = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(3))
Make = Callable[..., PreTrainedModel]


def taken_over(published: PreTrainedModel, tmp_path: Path) -> Transformer:
    published.save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    return load(tmp_path / "run", "cpu").model


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, over the largest entry."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def test_logits_and_all_gradients_are_equal(published: PreTrainedModel, tmp_path: Path) -> None:
    model = taken_over(published, tmp_path)
    expected = published(TOKENS).logits
    logits = model.logits(model(TOKENS))
    assert relative(logits, expected) < 1e-5

    F.cross_entropy(expected[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    family = FAMILIES[published.config.model_type]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    ours = to_theirs(family.table, model.config, gradients)
    theirs = {name: parameter.grad for name, parameter in published.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert gradient is not None, name
        assert relative(ours[name], gradient) < 1e-5, name


def test_there_and_back_changes_nothing(published: PreTrainedModel, tmp_path: Path) -> None:
    model = taken_over(published, tmp_path)
    report = export_model(tmp_path / "run", tmp_path / "again")
    assert report["checked"]
    assert report["difference"] <= 1e-5

    first, again = (load_file(tmp_path / name / "model.safetensors") for name in ("published", "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)

    import_model(tmp_path / "again", tmp_path / "run-again")
    assert resolved(read_config(tmp_path / "run-again").model) == resolved(model.config)
    back = load(tmp_path / "run-again", "cpu").model
    ours, theirs = model.state_dict(), back.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    back_logits, logits = (m.logits(m(TOKENS)) for m in (back, model))
    assert torch.equal(back_logits, logits)


def test_transformers_loads_the_export_by_itself(published: PreTrainedModel, tmp_path: Path) -> None:
    taken_over(published, tmp_path)
    export_model(tmp_path / "run", tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert type(again) is type(published)
    assert again.dtype == torch.float32
    with torch.inference_mode():
        assert torch.equal(again(TOKENS).logits, published(TOKENS).logits)


@pytest.mark.lecture("D-07")
def test_the_exact_gelu_in_a_gpt2_would_be_noticed(make_published: Make, tmp_path: Path) -> None:
    """The slip of taking erf for tanh: small enough to be overlooked, larger than the tolerance."""
    published = make_published("gpt2")
    taken_over(published, tmp_path)
    config = tmp_path / "published" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "activation_function": "gelu"}))
    import_model(tmp_path / "published", tmp_path / "slipped")
    slipped = load(tmp_path / "slipped", "cpu").model
    with torch.inference_mode():
        difference = relative(slipped.logits(slipped(TOKENS)), published(TOKENS).logits)
    assert 1e-5 < difference < 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_fp32(make_published: Make, tmp_path: Path, dtype: torch.dtype) -> None:
    published = make_published("llama").to(dtype)
    model = taken_over(published, tmp_path)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    table = published.model.embed_tokens.weight
    assert table.dtype == dtype
    assert torch.equal(model.embedding.weight, table.float())


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_files_in_several_parts_are_read(make_published: Make, tmp_path: Path, variant: str) -> None:
    published = make_published(variant)
    whole = taken_over(published, tmp_path).state_dict()
    published.save_pretrained(tmp_path / "parts", max_shard_size="5KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
    import_model(tmp_path / "parts", tmp_path / "from-parts")
    parts = load(tmp_path / "from-parts", "cpu").model.state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
