"""Checkpointed activations change the memory of a training step, and not a number of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.account import saved_activations
from heddle.config import sized
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.checkpointing import can_compile, checkpoint_activations, checkpointed
from heddle.runs import Trainer, extend
from tests.models import BOTH, tokens_of
from tests.running import Begin
from tests.running import begin as begin
from tests.running import config as config
from tests.running import corpus as corpus
from tests.running import quick as quick

TINY = sized(3, vocab_size=41, context=16, dim=16)
EXPERTS = {"kind": "moe", "experts": 4, "active": 2, "balance": 0.1, "expert": {"kind": "gated", "hidden": 8}}
COUNTING = {"kind": "custom", "target": "tests.model.modules:Counting"}
MODELS = {
    "dropout": TINY.override({"decoder.block.dropout": 0.3, "decoder.block.mixer.dropout": 0.3}),
    "experts": TINY.override({"decoder.block.ffn": EXPERTS}),
    "parallel": TINY.override({"decoder.block.wiring": "parallel"}),
    "both": BOTH[0],
    "a user's own": TINY.override({"decoder.block.mixer": COUNTING}),
}


def learned(model: Transformer) -> tuple[float, dict[str, Tensor]]:
    """A loss, the gradients, and the buffers afterwards."""
    torch.manual_seed(3)
    source = tokens_of(2, 6, seed=2) if model.encoder is not None and model.decoder is not None else None
    hidden, routings = model(tokens_of(2, 8), source=source)
    loss = hidden.square().sum() + sum(routing.terms for routing in routings)
    loss.backward()
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return loss.item(), {**gradients, **dict(model.named_buffers())}


@pytest.mark.lecture("L0-58")
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_the_same(name: str) -> None:
    """Bit for bit: with the same dropout masks, and buffers of a user's own module that were updated once."""
    plain, saving = (build(MODELS[name]).train() for _ in range(2))
    checkpoint_activations(saving)
    (loss, expected), (other, gradients) = learned(plain), learned(saving)
    assert other == loss
    assert gradients.keys() == expected.keys()
    assert all(torch.equal(gradients[key], value) for key, value in expected.items())
    assert list(saving.state_dict()) == list(plain.state_dict())


def saved(model: Transformer) -> int:
    """Bytes that autograd keeps after a forward pass, the weights excepted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(tokens_of(2, 16))
    return sum(each.untyped_storage().nbytes() for place, each in held.items() if place not in own)


def test_a_block_keeps_its_input_alone() -> None:
    """One vector a token and block; the account adds the largest block, as the backward pass holds it once more."""
    model, vectors = build(TINY).train(), 2 * 16 * 16 * 4
    with checkpointed(model):
        short = saved(model)
    assert vectors * 3 <= short <= vectors * 5 + 2**10
    whole = saved(model)  # outside of the `with` block nothing is checkpointed any more
    assert whole == saved_activations(TINY, 2, 16).bytes
    one = TINY.override({"decoder.depth": 1})
    block = saved_activations(one, 2, 16).bytes
    result = saved_activations(TINY, 2, 16, checkpointed=True).bytes
    assert short + (whole - short) / 4 < result <= short + block
    deep = [TINY.override({"decoder.depth": depth}) for depth in (4, 20)]
    assert (
        saved_activations(deep[1], 2, 16, checkpointed=True).bytes
        - saved_activations(deep[0], 2, 16, checkpointed=True).bytes
        == 16 * vectors
    )


def test_blocks_run_again_only_for_a_backward_pass() -> None:
    """A hook on a block fires once a pass, on a module inside it again; without gradients or in prediction nothing is repeated."""
    model = build(TINY)
    checkpoint_activations(model)
    fired: list[str] = []
    blocks = model.last_stack().blocks
    blocks[1].register_forward_hook(lambda *args: fired.append("block"))
    blocks[1].mixer.register_forward_hook(lambda *args: fired.append("mixer"))
    learned(model.train())
    assert fired == ["block", "mixer", "mixer"] or sorted(fired) == ["block", "mixer", "mixer"]
    fired.clear()
    learned(model.eval())
    with torch.no_grad():
        model.train()(tokens_of(2, 8))
    assert fired == ["mixer", "block"] * 2
    cache = model.new_cache(2)
    model(tokens_of(2, 4), cache=cache)
    assert model(tokens_of(2, 4), cache=cache).hidden.shape == (2, 4, 16)


def test_a_run_learns_the_same(begin: Begin, tmp_path: Path) -> None:
    """Also if it is switched on when the run continues."""
    run = begin(steps=4, evaluate_every=2, model={"dropout": 0.2})
    other = shutil.copytree(run, tmp_path / "other")
    assert extend(other, {"train.checkpoint_activations": True}) == ["checkpoint_activations: False -> True"]
    trainers = [Trainer(each) for each in (run, other)]
    wrapped = ["forward" in vars(each.session.model.decoder.blocks[0]) for each in trainers]
    assert wrapped == [False, True]
    for trainer in trainers:
        trainer.run()
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (other / name).read_bytes()


def test_compiling_what_has_buffers_is_refused(begin: Begin) -> None:
    settings: dict[str, Any] = {"model": {"heads": None, "decoder": {"block": {"mixer": COUNTING}}}}
    with pytest.raises(HeddleError, match="compile = on cannot be combined with checkpoint_activations here"):
        begin(compile="on", checkpoint_activations=True, **settings)
    assert can_compile(build(TINY, "meta"))
