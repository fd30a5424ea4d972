"""The tables: every row works both ways, and nothing is left over on either side."""

import pytest
import torch

from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import build
from heddle.weights.families import GPT2, LLAMA
from heddle.weights.mapping import SAME, Fused, Row, Transform, Transposed, Vocabulary, to_ours, to_theirs

PADDED = preset("gpt2-small").override({"vocab_size": 10, "pad_vocab_to": 8, "dim": 12, "decoder.depth": 1})


@pytest.mark.parametrize("how", [SAME, Transposed(), Fused(0, 2), Fused(1, 3), Fused(1, 3, Transposed()), Vocabulary()])
def test_a_transform_and_back_is_the_same(how: Transform) -> None:
    theirs = torch.arange(120.0).reshape(10, 12)
    assert torch.equal(how.theirs(how.ours(theirs, PADDED), PADDED), theirs)


def test_fused_parts_stand_side_by_side() -> None:
    theirs = torch.arange(12.0).reshape(2, 6)
    first, second = Fused(1, 2, Transposed()).ours(theirs, PADDED)
    assert torch.equal(first, theirs[:, :3].T)
    assert torch.equal(second, theirs[:, 3:].T)


@pytest.mark.lecture("L0-86")
def test_extra_rows_of_a_vocabulary_are_left_here_and_come_back_as_zeros() -> None:
    ours = torch.ones(16, 12)
    theirs = Vocabulary().theirs((ours,), PADDED)
    assert theirs.shape == (10, 12)
    (back,) = Vocabulary().ours(theirs, PADDED)
    assert torch.equal(back[:10], ours[:10])
    assert back.shape == (16, 12)
    assert not back[10:].any()


@pytest.mark.parametrize("family", [GPT2, LLAMA], ids=lambda family: family.name)
def test_no_name_stands_in_two_rows(family: object) -> None:
    assert isinstance(family, type(GPT2))
    theirs = [row.theirs for row in family.table]
    ours = [name for row in family.table for name in row.ours]
    assert len(set(theirs)) == len(theirs)
    assert len(set(ours)) == len(ours)


def test_a_tensor_without_a_row_is_refused() -> None:
    weights = build(PADDED).state_dict()
    with pytest.raises(HeddleError, match=r"no place for decoder\.extra"):
        to_theirs(GPT2.table, PADDED, {**weights, "decoder.extra": torch.ones(1)})


def test_half_a_fused_row_is_refused() -> None:
    weights = build(PADDED).state_dict()
    del weights["decoder.blocks.0.mixer.k.bias"]
    with pytest.raises(HeddleError, match=r"no place for decoder.blocks.0.mixer.k.bias"):
        to_theirs(GPT2.table, PADDED, weights)


def test_a_table_works_on_the_meta_device() -> None:
    """Shapes alone are enough to know what a file must hold."""
    config: TransformerConfig = preset("gpt2-small")
    theirs = to_theirs(GPT2.table, config, build(config, "meta").state_dict())
    assert theirs["transformer.h.11.attn.c_attn.weight"].shape == (768, 2304)
    assert sum(tensor.numel() for tensor in theirs.values()) == 124_439_808


def test_layers_are_written_out() -> None:
    config = PADDED.override({"decoder.depth": 3})
    ours = {f"layer.{i}": torch.full((2,), float(i)) for i in range(3)}
    table = (Row("h.{i}.w", ("layer.{i}",)),)
    theirs = to_theirs(table, config, ours)
    assert list(theirs) == ["h.0.w", "h.1.w", "h.2.w"]
    back = to_ours(table, config, ours, theirs)
    assert all(torch.equal(back[name], ours[name]) for name in ours)
