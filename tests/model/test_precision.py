"""Casting: matrices change, norms do not; nothing is lost that the next step would need."""

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.precision import DTYPES, cast
from heddle.nn.moe import Router
from tests.models import COMBINATIONS, awake, config_of, name_of, tokens_of


@pytest.mark.parametrize("tables", [True, False])
def test_matrices_are_cast_and_norms_are_not(tables: bool) -> None:
    model = cast(build(config_of(positions="learned", tied=False)), "bf16", tables)
    for name, parameter in model.named_parameters():
        is_fp32 = "norm" in name or "_residual" in name or "positions" in name
        table = name in ("embedding.weight", "head.weight")
        wide = is_fp32 or (table and not tables)
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16), name
    assert model.working_dtype() == torch.bfloat16


def test_casting_back_is_exact_for_what_was_rounded() -> None:
    model = cast(build(config_of()), "bf16")
    rounded = {name: tensor.float() for name, tensor in model.state_dict().items()}
    for name, tensor in cast(model, "fp32").state_dict().items():
        assert tensor.dtype == DTYPES["fp32"]
        assert torch.equal(tensor, rounded[name])


def test_a_cast_table_gives_what_a_cast_row_gives() -> None:
    config, tokens = config_of(positions="both"), tokens_of(2, 6)
    narrow, wide = cast(build(config), "bf16"), cast(build(config), "bf16", tables=False)
    assert torch.equal(narrow(tokens).hidden, wide(tokens).hidden)
    assert torch.equal(narrow.logits(narrow(tokens).hidden), wide.logits(wide(tokens).hidden))


@pytest.mark.parametrize("config", COMBINATIONS, ids=name_of)
def test_bf16_is_close_to_fp32(config: TransformerConfig) -> None:
    """Within 5 % of the size of a hidden vector: bf16 keeps 8 bits, and there are two blocks.

    Twice that without norms and skips, where nothing damps a rounding error. A token that is as near to one expert as to another
    may go to the other, and its vector is another then.
    """
    tokens = tokens_of(2, 8)
    wide = awake(config, torch.float32)
    narrow = cast(awake(config, torch.float32), "bf16")
    chosen = [experts_of(model) for model in (wide, narrow)]
    with torch.no_grad():
        exact, rounded = wide(tokens).hidden, narrow(tokens).hidden
    assert rounded.dtype == torch.bfloat16
    same = torch.ones(2, 8, dtype=torch.bool)
    for ours, others in zip(*chosen, strict=True):
        same &= (ours == others).all(-1)
    assert same.sum() >= 15
    block = config.decoder.block
    undamped = block.placement == "bare" and block.norm.kind == "none"
    error = (rounded.float() - exact)[same].norm() / exact[same].norm()
    assert error < (0.1 if undamped else 0.05)


def experts_of(model: Transformer) -> list[torch.Tensor]:
    """The experts of every token, as the routers choose them from now on."""
    chosen: list[torch.Tensor] = []
    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(lambda router, inputs, out: chosen.append(out[1].sort(-1).values))
    return chosen


def test_a_precision_that_does_not_exist() -> None:
    model = build(config_of())
    with pytest.raises(HeddleError, match=r"precision = 'fp16' is not one of fp32, bf16\. Did you mean '.*'\?"):
        cast(model, "fp16")
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
