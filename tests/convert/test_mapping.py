"""The tables: every row works both ways, and nothing is left over on either side."""

import pytest
import torch

from heddle.config import TransformerConfig, preset
from heddle.convert.families import ALL, Family
from heddle.convert.families.gpt2 import GPT2
from heddle.convert.mapping import (
    SAME,
    Fused,
    Grouped,
    OneRow,
    TensorRow,
    Transform,
    Transposed,
    Vocabulary,
    to_heddle,
    to_published,
)
from heddle.errors import HeddleError
from heddle.model import build

PADDED = preset("gpt2-small").override({"vocab_size": 10, "pad_vocab_to": 8, "dim": 12, "decoder.depth": 1})


@pytest.mark.parametrize(
    "how", [SAME, Transposed(), Fused(0, 2), Fused(1, 3), Fused(1, 3, Transposed()), Vocabulary(), OneRow()]
)
def test_a_transform_and_back_is_the_same(how: Transform) -> None:
    reference = torch.arange(120.0).reshape(10, 12) if not isinstance(how, OneRow) else torch.arange(10.0)[None]
    assert torch.equal(how.to_published(how.to_heddle(reference, PADDED), PADDED), reference)


def test_fused_parts_stand_side_by_side() -> None:
    reference = torch.arange(12.0).reshape(2, 6)
    first, second = Fused(1, 2, Transposed()).to_heddle(reference, PADDED)
    assert torch.equal(first, reference[:, :3].T)
    assert torch.equal(second, reference[:, 3:].T)


@pytest.mark.parametrize(("heads", "kv_heads", "order"), [
    (4, 4, ["q0", "k0", "v0", "q1", "k1", "v1", "q2", "k2", "v2", "q3", "k3", "v3"]),
    (4, 2, ["q0", "q1", "k0", "v0", "q2", "q3", "k1", "v1"]),
    (4, 1, ["q0", "q1", "q2", "q3", "k0", "v0"]),
])  # fmt: skip
def test_grouped_heads_stand_with_their_key_and_value(heads: int, kv_heads: int, order: list[str]) -> None:
    """Every head is one number, written out by hand: query h is h, key k is 10 + k, value k is 20 + k."""
    mixer = {"heads": heads, "kv_heads": kv_heads, "head_dim": 3}
    config = PADDED.override({f"decoder.block.mixer.{name}": value for name, value in mixer.items()})
    start = {"q": 0.0, "k": 10.0, "v": 20.0}
    parts = [
        torch.arange(n).repeat_interleave(3) + start[p] for p, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    ]
    reference = Grouped().to_published(tuple(parts), config)
    assert reference[::3].tolist() == [start[name[0]] + int(name[1]) for name in order]
    back = Grouped().to_heddle(reference, config)
    assert all(torch.equal(one, other) for one, other in zip(back, parts, strict=True))


def test_experts_are_one_tensor_each_on_the_disk() -> None:
    ours = {"decoder.experts": torch.arange(12.0).reshape(3, 2, 2)}
    table = (TensorRow("experts.{e}.w", ("decoder.experts",)),)
    reference = to_published(table, PADDED, ours)
    assert list(reference) == ["experts.0.w", "experts.1.w", "experts.2.w"]
    assert reference["experts.1.w"].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert torch.equal(to_heddle(table, PADDED, ours, reference)["decoder.experts"], ours["decoder.experts"])


def test_a_shift_is_of_weights_and_not_of_gradients() -> None:
    ours, table = {"decoder.gain": torch.tensor([1.5, 0.0])}, (TensorRow("gain", ("decoder.gain",), shift=1.0),)
    assert to_published(table, PADDED, ours)["gain"].tolist() == [0.5, -1.0]
    assert to_published(table, PADDED, ours, gradients=True)["gain"].tolist() == [1.5, 0.0]
    assert to_heddle(table, PADDED, ours, {"gain": torch.tensor([0.5, -1.0])})["decoder.gain"].tolist() == [1.5, 0.0]


def test_a_shift_is_of_each_expert_both_ways() -> None:
    ours, table = {"decoder.gain": torch.tensor([[1.5], [0.0]])}, (TensorRow("{e}.gain", ("decoder.gain",), shift=1.0),)
    reference = to_published(table, PADDED, ours)
    assert {name: tensor.tolist() for name, tensor in reference.items()} == {"0.gain": [0.5], "1.gain": [-1.0]}
    assert to_published(table, PADDED, ours, gradients=True)["0.gain"].tolist() == [1.5]
    assert torch.equal(to_heddle(table, PADDED, ours, reference)["decoder.gain"], ours["decoder.gain"])


@pytest.mark.lecture("L0-86")
def test_extra_rows_of_a_vocabulary_are_left_here_and_come_back_as_zeros() -> None:
    ours = torch.ones(16, 12)
    reference = Vocabulary().to_published((ours,), PADDED)
    assert reference.shape == (10, 12)
    (back,) = Vocabulary().to_heddle(reference, PADDED)
    assert torch.equal(back[:10], ours[:10])
    assert back.shape == (16, 12)
    assert not back[10:].any()


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
def test_no_name_stands_in_two_rows(family: Family) -> None:
    reference = [(row.published, row.when) for row in family.table]  # some models have a row, and others another
    ours = [name for row in family.table if row.when is None for name in row.heddle]
    assert len(set(reference)) == len(reference)
    assert len(set(ours)) == len(ours)


def test_a_tensor_without_a_row_is_refused() -> None:
    weights = build(PADDED).state_dict()
    with pytest.raises(HeddleError, match=r"no place for decoder\.extra"):
        to_published(GPT2.table, PADDED, {**weights, "decoder.extra": torch.ones(1)})


def test_half_a_fused_row_is_refused() -> None:
    weights = build(PADDED).state_dict()
    del weights["decoder.blocks.0.mixer.k.bias"]
    with pytest.raises(HeddleError, match=r"no place for decoder.blocks.0.mixer.k.bias"):
        to_published(GPT2.table, PADDED, weights)


def test_a_table_works_on_the_meta_device() -> None:
    """Shapes alone are enough to know what a file must hold."""
    config: TransformerConfig = preset("gpt2-small")
    reference = to_published(GPT2.table, config, build(config, "meta").state_dict())
    assert reference["transformer.h.11.attn.c_attn.weight"].shape == (768, 2304)
    assert sum(tensor.numel() for tensor in reference.values()) == 124_439_808


def test_layers_are_written_out() -> None:
    config = PADDED.override({"decoder.depth": 3})
    ours = {f"decoder.layer.{i}": torch.full((2,), float(i)) for i in range(3)}
    table = (TensorRow("h.{i}.w", ("decoder.layer.{i}",)),)
    reference = to_published(table, config, ours)
    assert list(reference) == ["h.0.w", "h.1.w", "h.2.w"]
    back = to_heddle(table, config, ours, reference)
    assert all(torch.equal(back[name], ours[name]) for name in ours)
