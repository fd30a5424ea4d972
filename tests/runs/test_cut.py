"""Runs that start from a part of a published model: its first layers, its first positions; the same part in transformers is the
witness."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from heddle.config import RunConfig
from heddle.errors import HeddleError
from heddle.runs import Trainer, prepare
from heddle.runs.session import open_session
from heddle.weights import load
from tests import refusing
from tests.convert.conftest import KINDS
from tests.running import TRAIN
from tests.runs.test_published_start import DATA, imported
from tests.runs.test_resume import train, written

pytestmark = pytest.mark.usefixtures("roomy")

# What a variant calls its layers and its positions.
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
PLACES = ("max_position_embeddings", "n_positions")


def begun(folder: Path, variant: str, what: str, model: dict[str, Any], name: str = "run") -> tuple[Any, Path]:
    """The plan of a run that starts from a part of a published model, and its directory."""
    base, source = (folder / "base", folder / "plain.txt") if name != "run" else imported(folder, variant, what)
    data, task = DATA[what]
    settings = {
        "data": {"sources": [str(source)], **data},
        "task": {"kind": task},
        "model": {"from": str(base), **model},
        "train": {**TRAIN, "products": "torch"},
    }
    return prepare(RunConfig.of(settings), folder / name), folder / name


def part_of(variant: str, folder: Path, depth: int | None, context: int | None) -> transformers.PreTrainedModel:
    """The same part of the model in transformers: a smaller config, and the weights that it has a place for."""
    kind = getattr(transformers, KINDS[variant.split("-")[0]][0])
    config = kind.config_class.from_pretrained(folder / "published")
    for name in LAYERS if depth else ():
        if name in config.to_dict():
            setattr(config, name, depth)
    if depth and getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:depth]
    for name in PLACES if context else ():
        if name in config.to_dict():
            setattr(config, name, context + (2 if "roberta" in variant else 0))
    config._attn_implementation = "eager"
    smaller, state = kind(config), kind.from_pretrained(folder / "published").state_dict()
    computed = variant.startswith("marian")  # its positions
    tensors = {name: each for name, each in smaller.state_dict().items() if not (computed and "positions" in name)}
    smaller.load_state_dict({name: state[name][: len(each)] for name, each in tensors.items()}, strict=not computed)
    return smaller.eval()


@pytest.mark.parametrize(
    ("variant", "what", "depth", "context"),
    [
        ("bert", "masked", 2, None),
        ("bert", "masked", None, 12),
        ("roberta", "masked", 1, 12),
        ("electra", "masked", 2, 12),
        ("gpt2", "next_token", 2, 12),
        ("gpt2-by-layer", "next_token", 2, None),
        ("llama", "next_token", 1, 12),
        ("llama", "next_token", 2, 40),
        ("gemma2", "next_token", 2, None),
        ("modernbert", "masked", 2, None),
        ("t5", "translation", 2, None),
        ("umt5", "translation", 1, 12),
        ("bart", "translation", 1, 12),
        ("marian", "translation", 1, 40),
    ],
)
def test_the_part_computes_what_it_does_in_transformers(
    variant: str, what: str, depth: int | None, context: int | None, tmp_path: Path, quick: None
) -> None:
    model = {name: value for name, value in (("depth", depth), ("context", context)) if value is not None}
    planned, run = begun(tmp_path, variant, what, model)
    assert planned.cut
    shutil.rmtree(tmp_path / "base")  # the run needs nothing else
    ours, reference = open_session(run).model.eval(), part_of(variant, tmp_path, depth, context)
    assert context is None or ours.config.context == context
    assert {len(stack.blocks) for stack in ours.config.stacks().values()} == {depth} or depth is None
    tokens = torch.randint(3, ours.config.vocab_size, (2, min(40, ours.config.context)))
    with torch.inference_mode():
        if what == "translation":
            output = ours.logits(ours(tokens, source=tokens).hidden)
            expected = reference(input_ids=tokens, decoder_input_ids=tokens).logits
        else:
            output, expected = ours.logits(ours(tokens).hidden), reference(input_ids=tokens).logits
    assert torch.allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "what", "model", "error"),
    [
        ("bert", "masked", {"depth": 4}, r"encoder\.depth = 4: .* has 3 layers, .*; set depth=3 or less"),
        ("bert", "masked", {"context": 25}, r"context = 25: .* has learned 24 positions, .*; set context=24 or less"),
        ("t5", "translation", {"depth": 3}, r"decoder\.depth = 3: .* has 2 layers"),
    ],
)
def test_what_was_never_trained_is_refused(
    variant: str, what: str, model: dict[str, Any], error: str, tmp_path: Path, quick: None
) -> None:
    with pytest.raises(HeddleError, match=error) as refused:
        begun(tmp_path, variant, what, model)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_of_a_part_goes_on_as_if_it_had_not(tmp_path: Path, quick: None) -> None:
    model = {"depth": 2, "context": 12, "dropout": {"rate": 0.2}, "encoder": {"block": {"mixer": {"dropout": 0.1}}}}
    _, whole = begun(tmp_path, "bert", "masked", model)
    _, stopped = begun(tmp_path, "bert", "masked", model, "stopped")
    Trainer(whole).run()
    train(stopped, 5)
    assert written(whole) == written(stopped)
    block = load(whole).model.config.encoder.block
    assert (block.dropout, block.mixer.dropout) == (0.2, 0.1)
    text = refusing.refusal(lambda: begun(tmp_path, "bert", "masked", {**model, "dim": 48}, "wider"))
    assert text.endswith("leave out dim, encoder")
