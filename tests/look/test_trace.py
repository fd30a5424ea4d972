"""A trace holds the tensors of a pass, and a pass without one is the same as ever."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heddle.config import CustomConfig, TransformerConfig
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate import generate
from heddle.look import Edit, ablate, edited, names, trace
from heddle.look.sites import match_sites, sites
from heddle.model import Transformer
from heddle.nn import Layout
from tests.look.inputs import inputs_of
from tests.models import EVERY, awake, config_of, name_of, tokens_of


class Operations(TorchDispatchMode):
    """The names of the operations that run, with the shapes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.run: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.run.append(f"{func} {[list(each.shape) for each in args if isinstance(each, Tensor)]}")
        return func(*args, **(kwargs or {}))


def operations(call: Callable[[], Any]) -> list[str]:
    with torch.no_grad(), Operations() as mode:
        call()
    return mode.run


@pytest.mark.parametrize("config", EVERY[::5], ids=name_of)
def test_a_trace_of_nothing_runs_what_the_model_runs(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model)
    plain = operations(lambda: model(tokens, **more))
    assert plain == operations(lambda: trace(model, tokens, **more))
    trace(model, tokens, "*", attention="*", **more)  # nothing of it stays behind
    assert plain == operations(lambda: model(tokens, **more))


@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_every_name_can_be_read_and_none_changes_the_pass(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model)
    with torch.no_grad():
        expected = model(tokens, **more).hidden
    traced = trace(model, tokens, "*", **more)
    assert torch.equal(traced.output.hidden, expected)
    assert list(traced) == list(names(model))
    for name, site in sites(model).items():
        assert traced[name].dim() == len(site.axes.split()), name
    stack = "encoder" if model.decoder is None else "decoder"
    assert torch.equal(traced[f"{stack}.output"], expected)
    depth = len(model.last_stack().blocks)
    for number in range(depth - 1):
        after, before = f"{stack}.{number}.residual_after", f"{stack}.{number + 1}.residual_before"
        assert torch.equal(traced[after], traced[before])
    assert torch.equal(traced[f"{stack}.entry"], traced[f"{stack}.0.residual_before"])


@pytest.mark.parametrize(
    "config", [*EVERY[::9], config_of(ffn="moe"), config_of(family="both", kv_heads=2)], ids=name_of
)
def test_writing_back_what_was_read_changes_nothing(config: TransformerConfig) -> None:
    """Every site is replaced, all of them in one pass: by themselves they give the same output."""
    model, replaced = awake(config), set[str]()
    tokens, more = inputs_of(model)
    plain = model(tokens, **more).hidden

    def copied(name: str) -> Edit:
        return Edit(name, lambda tensor: replaced.add(name) or tensor.clone())

    with edited(model, [copied(site.name) for site in match_sites(model, "*")]):
        torch.testing.assert_close(model(tokens, **more).hidden, plain)
    assert replaced == set(names(model))
    torch.testing.assert_close(model(tokens, **more).hidden, plain, rtol=0, atol=0)


def test_names_are_matched_and_missed() -> None:
    model = awake(config_of())
    traced = trace(model, tokens_of(1, 4), ["decoder.*.mixer.q", "decoder.1.ffn.hidden"])
    assert list(traced) == ["decoder.0.mixer.q", "decoder.1.mixer.q", "decoder.1.ffn.hidden"]
    assert "decoder.1.ffn.hidden [1, 4, 64]" in repr(traced)
    assert "<td>1 × 4 × 64</td>" in traced._repr_html_()
    with pytest.raises(HeddleError, match=r"no tensor in this model matches 'decoder.0.mixr'.*names"):
        trace(model, tokens_of(1, 4), "decoder.0.mixr")


def test_the_path_of_a_module_names_its_output() -> None:
    model = awake(config_of())
    traced = trace(model, tokens_of(1, 4), "decoder.blocks.0.mixer.q")
    assert traced["decoder.blocks.0.mixer.q"].shape == (1, 4, 16)


def test_training_mode_and_gradients() -> None:
    model = awake(config_of(dropout=0.5)).train()
    first, second = (trace(model, tokens_of(1, 6), "decoder.0.residual_after") for _ in range(2))
    assert torch.equal(first["decoder.0.residual_after"], second["decoder.0.residual_after"])
    assert model.training
    assert all(module.training for module in model.modules())
    traced = trace(model, tokens_of(1, 6), "decoder.entry", gradients=True)
    assert traced["decoder.entry"].requires_grad
    assert not first["decoder.0.residual_after"].requires_grad


def test_a_failed_pass_leaves_no_hooks() -> None:
    model = awake(config_of(positions="learned"))
    with pytest.raises(HeddleError, match="exceed"):
        trace(model, tokens_of(1, 200), "*", attention="*")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_logits_are_the_models() -> None:
    model = awake(config_of(head_cap=5.0))
    tokens = tokens_of(2, 5)
    assert torch.equal(trace(model, tokens).logits, model.logits(model(tokens).hidden))


class Averages(nn.Module):
    """A mixer of one's own: the mean of all tokens so far, by weights that it names."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.weights = nn.Identity()

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        length = x.shape[1]
        even = torch.ones(length, length, dtype=x.dtype).tril()
        return self.weights(even / even.sum(-1, keepdim=True)) @ self.value(x)


def test_a_mixer_of_ones_own_is_looked_into() -> None:
    model = awake(config_of(first=CustomConfig(target="tests.look.test_trace:Averages")))
    tokens = tokens_of(2, 5)
    weights, value = "decoder.blocks.0.mixer.inner.weights", "decoder.0.mixer.added"
    traced = trace(model, tokens, [weights, value, "decoder.0.mixer.input"])
    assert traced[weights][1, :3].tolist() == [0.5, 0.5, 0]
    with edited(model, [ablate("decoder.0.mixer.added")]):
        without = trace(model, tokens, ["decoder.0.residual_before", "decoder.0.residual_middle"])
    assert torch.equal(*without.values())


def written(model: Transformer) -> list[int]:
    return [event.token for event in generate(model, [[3, 4]], SamplingConfig(max_tokens=12, temperature=0))]


def test_edits_act_in_every_step_of_generation() -> None:
    model = awake(config_of(kernel="plain"))
    with torch.no_grad():
        by_hand = awake(config_of(kernel="plain"))
        by_hand.decoder.blocks[0].mixer.o.weight[:, :4] = 0
    with edited(model, [ablate("decoder.0.mixer.heads", heads=[0])]):
        inside = written(model)
    assert inside == written(by_hand)
    assert inside != written(model)
