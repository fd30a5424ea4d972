"""Angles that depend on the length of a text in transformers: heddle has those of one length, however the text is fed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from heddle.convert import import_model
from heddle.model import Transformer, build
from heddle.weights import load
from tests.convert.conftest import long_rope, slowed
from tests.convert.test_parity import TOKENS, relative

Make = Callable[..., PreTrainedModel]
KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {**slowed("dynamic"), "max_position_embeddings": 8},
    "longrope": long_rope(8, attention_factor=1.2),
}


def imported(published: PreTrainedModel, folder: Path, length: int) -> Transformer:
    """The imported model, for texts of `length` tokens."""
    published.save_pretrained(folder / "published")
    notes = import_model(folder / "published", folder / "run")["notes"]
    assert any("change once a text is longer than 8" in note for note in notes), notes
    model = load(folder / "run", "cpu").model
    longer = build(model.config.override({"decoder.block.mixer.relative.scaling.length": length})).eval()
    longer.load_state_dict(model.state_dict())
    return longer


def in_pieces(model: Transformer, tokens: Tensor, sizes: list[int]) -> Tensor:
    cache = model.new_cache(len(tokens))
    return torch.cat([model.logits(model(piece, cache=cache).hidden) for piece in tokens.split(sizes, dim=1)], dim=1)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_beyond_the_original_context_it_is_one_pass_of_transformers(
    make_published: Make, tmp_path: Path, kind: str
) -> None:
    published = make_published("llama", **KINDS[kind])
    whole = published(TOKENS).logits
    model = imported(published, tmp_path, 20)
    assert relative(model.logits(model(TOKENS).hidden), whole) < 1e-5
    for sizes in ([1] * 20, [3, 9, 8], [8, 12]):
        assert relative(in_pieces(model, TOKENS, sizes), whole) < 1e-5
    first = published(TOKENS[:, :5], use_cache=True)
    second = published(TOKENS[:, 5:], past_key_values=first.past_key_values).logits
    assert relative(second, whole[:, 5:]) > 0.01, "in transformers, keys in the cache keep the angles of a shorter text"


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_within_the_original_context_nothing_is_scaled(make_published: Make, tmp_path: Path, kind: str) -> None:
    published = make_published("llama", **KINDS[kind])
    short = TOKENS[:, :8]
    model = imported(published, tmp_path, 8)
    assert relative(in_pieces(model, short, [5, 3]), published(short).logits) < 1e-5
