"""Generation by encoder-decoders: rows with their sources, and the special ids of published models."""

from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import SamplingConfig, SpecialIds
from heddle.convert import import_model
from heddle.errors import HeddleError
from heddle.generate import generate, stream
from heddle.model import Transformer, build
from heddle.weights import load
from tests.convert.conftest import make as make_published
from tests.models import BOTH, name_of
from tests.running import unchecked

END = 0
SOURCES = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7], [4]]
PROMPTS = [[], [3, 2], [1], []]


def drawn(model: Transformer, rows: list[int], **sampling: Any) -> list[list[int]]:
    texts: dict[int, list[int]] = {row: [] for row in range(len(rows))}
    prompts, sources = [PROMPTS[row] for row in rows], [SOURCES[row] for row in rows]
    for event in generate(model, prompts, SamplingConfig(**sampling), END, rows, sources):
        texts[event.row].append(event.token)
    return list(texts.values())


@pytest.mark.parametrize("config", BOTH[:4], ids=name_of)
def test_rows_together_are_rows_alone_and_the_loop_for_one(config: Any) -> None:
    """Also where some start later than others, and where the end of a full context is cut off."""
    model = build(config.override({"initial": {"std": 0.3, "scale_residual": False}, "context": 8}), seed=1).eval()
    for sampling in ({"temperature": 0.9, "max_tokens": 4}, {"temperature": 0, "max_tokens": 11, "window": True}):
        together = drawn(model, [0, 1, 2, 3], **sampling)
        assert together == [drawn(model, [row], **sampling)[0] for row in range(4)]
        with unchecked():
            for row, ids in enumerate(together):
                alone = stream(model, PROMPTS[row], SamplingConfig(seed=row, **sampling), END, SOURCES[row])
                assert list(alone) == [id for id in ids if id != END]


IDS: dict[str, dict[str, Any]] = {
    "bart": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 4},
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "marian": {"eos_token_id": 0, "pad_token_id": 60, "decoder_start_token_id": 60},
}  # fmt: skip


def cut(ids: list[int], ends: set[int]) -> list[int]:
    """The ids up to the first that ends a text."""
    return ids[: next((place + 1 for place, id in enumerate(ids) if id in ends), len(ids))]


@pytest.mark.parametrize("kind", IDS)
def test_greedy_follows_every_rule_about_ids_as_transformers_does(kind: str, tmp_path: Path) -> None:
    published: Any = make_published(kind, **IDS[kind])
    sources = torch.randint(10, 59, (6, 9), generator=torch.Generator().manual_seed(2))

    def by_transformers() -> list[list[int]]:
        with torch.inference_mode():
            ids: list[list[int]] = published.generate(sources, do_sample=False, num_beams=1, max_new_tokens=8).tolist()
        ends = published.generation_config.eos_token_id
        return [cut(row[1:], {*ends} if isinstance(ends, list) else {ends}) for row in ids]

    usual = by_transformers()
    end = IDS[kind]["eos_token_id"]
    rules = {
        "eos_token_id": [end, usual[0][3]],
        "bad_words_ids": [[usual[1][1]], [usual[2][0], usual[2][1]]],
        "forced_bos_token_id": 33,
        "forced_eos_token_id": end,
    }
    for name, value in rules.items():
        setattr(published.generation_config, name, value)
    expected = by_transformers()
    assert expected != usual
    assert all(row[0] == 33 and row[-1] in rules["eos_token_id"] for row in expected)
    published.save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    model, _ = load(tmp_path / "run")
    texts: list[list[int]] = [[] for _ in expected]
    for event in generate(model, [[]] * 6, SamplingConfig(temperature=0, max_tokens=8), sources=sources.tolist()):
        texts[event.row].append(event.token)
    assert texts == expected


def test_a_decoder_needs_something_to_start_with() -> None:
    model = build(BOTH[1])
    with pytest.raises(HeddleError, match="prompt 0 is empty, and there is no end-of-text token"):
        next(stream(model, [], SamplingConfig(), source=[1, 2]))
    model.config = model.config.override({"ids": SpecialIds(decoder_start=3).to_dict()})
    assert len(list(stream(model, [], SamplingConfig(max_tokens=2), source=[1, 2]))) == 2
