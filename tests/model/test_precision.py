"""Casting: matrices change, norms do not; nothing is lost that the next step would need."""

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.precision import DTYPES, cast
from tests.models import COMBINATIONS, awake, config_of, name_of, tokens_of


@pytest.mark.parametrize("tables", [True, False])
def test_matrices_are_cast_and_norms_are_not(tables: bool) -> None:
    model = cast(build(config_of(positions="learned", tied=False)), "bf16", tables)
    for name, parameter in model.named_parameters():
        kept = "norm" in name or "_residual" in name or "positions" in name
        table = name in ("embedding.weight", "head.weight")
        wide = kept or (table and not tables)
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

    Twice that without norms and skips, where nothing damps a rounding error.
    """
    tokens = tokens_of(2, 8)
    wide = awake(config, torch.float32)
    narrow = cast(awake(config, torch.float32), "bf16")
    with torch.no_grad():
        exact, found = wide(tokens).hidden, narrow(tokens).hidden
    assert found.dtype == torch.bfloat16
    block = config.decoder.block
    undamped = block.placement == "bare" and block.norm.kind == "none"
    assert (found.float() - exact).norm() < (0.1 if undamped else 0.05) * exact.norm()


def test_a_precision_that_does_not_exist() -> None:
    model = build(config_of())
    with pytest.raises(HeddleError, match=r"precision = 'fp16' is not one of fp32, bf16\. Did you mean '.*'\?"):
        cast(model, "fp16")
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
