"""Strict safetensors: whatever does not fit is refused before memory is taken, in one line that says what."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from heddle.config import TransformerConfig, sized
from heddle.errors import HeddleError
from heddle.model import build
from heddle.weights.tensors import Spec, Weights, check_depth, fill, read_tensors, save_tensors
from tests import refusing

UP = "decoder.blocks.1.ffn.up.weight"


def refusal(path: Path, model: nn.Module, early: bool = True) -> str:
    """The one line with which a file is refused; if `early`, the model has taken no memory then."""
    message = refusing.refusal(lambda: fill(model, Weights([path]), path))
    assert str(path) in message
    assert early == all(parameter.is_meta for parameter in model.parameters())
    return message


@pytest.fixture
def weights(tiny: TransformerConfig) -> dict[str, torch.Tensor]:
    return build(tiny, seed=1).state_dict()


@pytest.fixture
def empty(tiny: TransformerConfig) -> nn.Module:
    return build(tiny, "meta")


def test_a_model_comes_back_bit_for_bit(tmp_path: Path, weights: dict[str, torch.Tensor], empty: nn.Module) -> None:
    file = tmp_path / "model.safetensors"
    save_tensors(file, weights, {"format": "pt"})
    fill(empty, Weights([file]), file)
    filled = empty.state_dict()
    assert list(filled) == list(weights)
    assert all(torch.equal(filled[name], weights[name]) for name in weights)


def test_a_model_that_has_memory_is_filled_in_place(
    tmp_path: Path, tiny: TransformerConfig, weights: dict[str, torch.Tensor]
) -> None:
    file = tmp_path / "model.safetensors"
    save_tensors(file, weights)
    model = build(tiny, seed=2)
    before = model.embedding.weight
    assert not torch.equal(before, weights["embedding.weight"])
    fill(model, Weights([file]), file)
    assert model.embedding.weight is before
    assert torch.equal(before, weights["embedding.weight"])


def test_the_header_is_read_without_the_tensors(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    tensors = {"b": torch.zeros(2, 3, dtype=torch.bfloat16), "a": torch.arange(4), "scalar": torch.tensor(1.5)}
    save_tensors(file, tensors)
    assert Weights([file]).specs == {"a": Spec("I64", (4,)), "b": Spec("BF16", (2, 3)), "scalar": Spec("F32", ())}
    back = read_tensors(file)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_what_was_read_does_not_hang_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    save_tensors(file, {"a": torch.ones(1000)})
    read = read_tensors(file)["a"]
    with file.open("r+b") as stream:
        stream.seek(-4000, os.SEEK_END)
        stream.write(bytes(4000))
    assert read.sum() == 1000


def test_views_and_slices_are_saved_as_what_they_show(tmp_path: Path) -> None:
    file = tmp_path / "some.safetensors"
    whole = torch.arange(12.0).reshape(3, 4)
    save_tensors(file, {"turned": whole.T, "rows": whole[1:]})
    back = read_tensors(file)
    assert torch.equal(back["turned"], whole.T)
    assert torch.equal(back["rows"], whole[1:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop(UP), [f"{UP} [64, 16] is not in the file", "tensors 1 missing"]),
        (
            lambda w: w.update({"extra.weight": torch.ones(2), "other.weight": torch.ones(2)}),
            ["extra.weight [2] is not in the model", "2 not known to the model"],
        ),
        (
            lambda w: w.update({UP: torch.ones(32, 16)}),
            [f"{UP} has shape [32, 16] in the file and [64, 16] in the model"],
        ),
        (lambda w: w.update({UP: w[UP].bfloat16()}), [f"{UP} is BF16 in the file and F32 in the model"]),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_what_does_not_fit(
    tmp_path: Path,
    weights: dict[str, torch.Tensor],
    empty: nn.Module,
    change: Callable[[dict[str, torch.Tensor]], object],
    words: list[str],
) -> None:
    file = tmp_path / "model.safetensors"
    change(weights)
    save_tensors(file, weights)
    message = refusal(file, empty)
    assert all(part in message for part in words), message


def test_another_number_of_layers(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(HeddleError, match="the weights have 2 layers, the config says 24"):
        check_depth(weights, "decoder.blocks.{i}.", 24, tmp_path)
    names = ["h.0.ln_1.weight", "h.1.ln_1.weight", "wte.weight"]
    check_depth(names, "transformer.h.{i}.", 2, tmp_path, prefix="transformer.")
    check_depth([f"transformer.{name}" for name in names], "transformer.h.{i}.", 2, tmp_path, prefix="transformer.")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite(
    tmp_path: Path, weights: dict[str, torch.Tensor], empty: nn.Module, value: float
) -> None:
    file = tmp_path / "model.safetensors"
    weights[UP][3, 4] = value
    save_tensors(file, weights)
    message = refusal(file, empty, early=False)
    assert f"1 of the 1024 numbers of {UP}" in message


def test_a_missing_file_and_a_directory(tmp_path: Path, empty: nn.Module) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.safetensors", empty)
    assert "not a file" in refusal(tmp_path, empty)


@pytest.mark.parametrize("length", [0, 5, 8, 100, -1, -4000])
def test_a_file_cut_short(tmp_path: Path, weights: dict[str, torch.Tensor], empty: nn.Module, length: int) -> None:
    file = tmp_path / "model.safetensors"
    save_tensors(file, weights)
    file.write_bytes(file.read_bytes()[:length])
    assert "not a complete safetensors file" in refusal(file, empty)


@pytest.mark.parametrize("foreign", [b"PK\x03\x04" + bytes(400), b"{}" * 50, b"\x80\x02}q\x00." + bytes(100)])
def test_a_foreign_file(tmp_path: Path, empty: nn.Module, foreign: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(foreign)
    assert "not a complete safetensors file" in refusal(file, empty)


def test_no_flipped_bit_of_a_header_is_a_crash(
    tmp_path: Path, weights: dict[str, torch.Tensor], tiny: TransformerConfig
) -> None:
    """Each is refused, or (in a blank of the padding) leaves the very same header."""
    file = tmp_path / "model.safetensors"
    save_tensors(file, weights)
    sound = file.read_bytes()
    length = 8 + int.from_bytes(sound[:8], "little")
    model, lines = build(tiny, "meta"), list[str]()
    for place in [*range(8), *range(8, length, 13)]:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            fill(model, Weights([file]), file)
        except HeddleError as error:
            lines.append(str(error))
    assert len(lines) > 0.9 * len(range(8, length, 13))
    assert not any("\n" in line for line in lines)


def test_two_parts_with_the_same_tensor(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_tensors(tmp_path / f"{name}.safetensors", {"x": torch.ones(2)})
    with pytest.raises(HeddleError, match="contains x, which is also in another file"):
        Weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


def test_a_file_that_claims_too_much_takes_no_memory(tmp_path: Path) -> None:
    """3 GB (of holes, on the disk) for a tiny model: the header alone decides."""
    file = tmp_path / "model.safetensors"
    header = json.dumps({"embedding.weight": {"dtype": "F32", "shape": [3, 2**28], "data_offsets": [0, 3 * 2**30]}})
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header.encode())
        stream.truncate(8 + len(header) + 3 * 2**30)
    message = refusal(file, build(sized(1, vocab_size=3, dim=16), "meta"))
    assert "embedding.weight has shape [3, 268435456] in the file" in message


# Shards


def shard(file: Path, pieces: dict[str, tuple[torch.Tensor, list[int]]]) -> Path:
    """Write some pieces of tensors, with where they begin, as torch's writer does."""
    offsets = json.dumps({name: {"saved_offsets": offset} for name, (_, offset) in pieces.items()})
    save_tensors(
        file, {name: tensor for name, (tensor, _) in pieces.items()}, {"DCP_SHARDING_INFO": offsets, "format": "pt"}
    )
    return file


def test_shards_are_one_tensor(tmp_path: Path) -> None:
    """Cut in any way, also into pieces without numbers; a region is read from the shards that have it."""
    table, vector = torch.arange(42.0).reshape(6, 7), torch.arange(5)
    rows, columns, ends = [0, 2, 6, 6], [0, 4, 7], [0, 5, 5, 5]
    files = [
        shard(
            tmp_path / f"{i}-{j}.safetensors",
            {"table": (table[rows[i] : rows[i + 1], columns[j] : columns[j + 1]], [rows[i], columns[j]])}
            | ({"vector": (vector[ends[i] : ends[i + 1]], [ends[i]])} if j == 0 else {}),
        )
        for i in range(3)
        for j in range(2)
    ]
    weights = Weights(files)
    assert weights.specs == {"table": Spec("F32", (6, 7)), "vector": Spec("I64", (5,))}
    assert weights.metadata == {"format": "pt"}
    assert torch.equal(weights["table"], table)
    assert torch.equal(weights["vector"], vector)
    for region in ((slice(1, 5), slice(3, 6)), (slice(2, 6), slice(0, 4)), (slice(6, 6), slice(0, 7))):
        assert torch.equal(weights.region("table", region), table[region])


def test_shards_that_are_not_all_there_are_refused(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(4, 3)
    one, two, three = (
        shard(tmp_path / f"{row}.safetensors", {"table": (table[row : row + size], [row, 0])})
        for row, size in ((0, 2), (2, 1), (3, 1))
    )
    assert torch.equal(Weights([three, one, two])["table"], table)
    for files, numbers in (([one, three], 9), ([one, two, two, three], 15)):
        with pytest.raises(HeddleError, match=rf"{tmp_path}: the shards of table have {numbers} numbers of 12"):
            Weights(files)
