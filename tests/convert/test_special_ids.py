"""Special ids survive the way in and the way out: transformers itself begins, ends and fills up with them as before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from heddle.config import SpecialIds, preset, sized
from heddle.convert import export_model, import_model
from heddle.convert.families import ALL, Family
from heddle.convert.special_ids import ALWAYS, NAMES, ids_to_fields, own_ids, read_ids
from heddle.errors import HeddleError
from heddle.generate.text import bos_prefix
from heddle.model import build
from heddle.text import END_OF_TEXT, train_tokenizer
from heddle.weights import load, read_config, save
from tests.convert.conftest import NO_IDS

Make = Callable[..., PreTrainedModel]
SOURCE = torch.randint(5, 61, (3, 9), generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([[7, 9, 30, 2], [8, 2, -100, -100], [11, 40, 12, -100]])
SEQUENCES = {
    "bart": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 4, "forced_eos_token_id": 2},
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "marian": {"eos_token_id": 0, "pad_token_id": 60, "decoder_start_token_id": 60, "forced_eos_token_id": 0},
}  # fmt: skip


def again(published: PreTrainedModel, tmp_path: Path) -> PreTrainedModel:
    """A model after it went through heddle and back."""
    published.save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out")
    auto: Any = AutoModelForSeq2SeqLM if published.config.is_encoder_decoder else AutoModelForCausalLM
    model: PreTrainedModel = auto.from_pretrained(tmp_path / "out", attn_implementation="eager")
    return model


def written(model: Any, **settings: Any) -> list[list[int]]:
    with torch.inference_mode():
        ids = model.generate(SOURCE, do_sample=False, num_beams=1, max_new_tokens=8, **settings)
    lines: list[list[int]] = ids.tolist()
    return lines


@pytest.mark.parametrize("kind", SEQUENCES)
def test_greedy_texts_and_losses_are_those_of_the_original(make_published: Make, tmp_path: Path, kind: str) -> None:
    published: Any = make_published(kind, **SEQUENCES[kind])
    # The second token of one text ends texts, too, and another must not be written at all.
    usual = written(published)
    published.generation_config.eos_token_id = [SEQUENCES[kind]["eos_token_id"], usual[0][2]]
    published.generation_config.bad_words_ids = [[usual[1][1]]]
    published.generation_config.forced_bos_token_id = 33 if kind == "bart" else None
    expected = written(published)
    assert expected != usual
    exported: Any = again(published, tmp_path)
    assert written(exported) == expected
    assert all(line[0] == SEQUENCES[kind]["decoder_start_token_id"] for line in expected)
    with torch.inference_mode():
        losses = [model(SOURCE, labels=LABELS).loss.item() for model in (published, exported)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "falcon", "gpt_neox", "qwen3"])
def test_a_decoder_ends_where_the_original_does(make_published: Make, tmp_path: Path, kind: str) -> None:
    usual = written(make_published(kind))
    ids = {"bos_token_id": 5, "eos_token_id": [usual[0][10], 7], "pad_token_id": 3}
    published = make_published(kind, **ids)
    expected = written(published)
    assert expected != usual
    exported = again(published, tmp_path)
    assert written(exported) == expected
    for config in (exported.config, exported.generation_config):
        assert {name: getattr(config, name) for name in ids} == ids
    assert read_config(tmp_path / "run").model.ids == SpecialIds(begin=5, end=(usual[0][10], 7), padding=3)


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_what_has_no_special_ids_gets_none(make_published: Make, tmp_path: Path, kind: str) -> None:
    """Where config.json were silent, the class of transformers would take ids of its own."""
    again(make_published(kind, **NO_IDS), tmp_path)
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert [getattr(config, name) for name in ALWAYS] == [None, None, None]
    assert getattr(config, "forced_eos_token_id", None) is None


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.architecture)
def test_ids_that_are_not_said_are_those_of_transformers(family: Family) -> None:
    reference = getattr(transformers, family.architecture).config_class()
    ids, notes = read_ids({}, {}, family.ids, 10**6)
    assert (
        ids.to_dict()
        == SpecialIds.of(
            {
                ours: getattr(reference, name)
                for name, ours in NAMES.items()
                if getattr(reference, name, None) is not None
            }
        ).to_dict()
    )
    assert notes == []


def test_generation_config_counts_where_both_speak() -> None:
    config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    generation = {"bos_token_id": None, "eos_token_id": [2, 9], "bad_words_ids": [[3], [4, 5]]}
    ids, _ = read_ids(config, generation, {"pad_token_id": 0}, 10)
    assert ids == SpecialIds(begin=1, end=(2, 9), banned=((3,), (4, 5)))
    assert read_ids(*ids_to_fields(ids, {}), {}, 10)[0] == ids


@pytest.mark.parametrize(
    ("name", "value"),
    [("pad_token_id", -1), ("eos_token_id", 61), ("eos_token_id", [2, 61]), ("eos_token_id", []), ("bos_token_id", "x"),
     ("bos_token_id", True), ("bos_token_id", [1]), ("bad_words_ids", [3]), ("bad_words_ids", [[]])],
)  # fmt: skip
def test_what_is_no_id_is_left_out_aloud(make_published: Make, tmp_path: Path, name: str, value: Any) -> None:
    make_published("gpt2").save_pretrained(tmp_path / "published")
    (tmp_path / "published" / "generation_config.json").write_text(json.dumps({name: value}))
    notes = import_model(tmp_path / "published", tmp_path / "run")["notes"]
    assert f"{name} = {value!r} in generation_config.json is not valid (the model has 61 ids): left out" in notes
    assert read_config(tmp_path / "run").model.ids == SpecialIds()


def test_a_damaged_generation_config_is_refused(make_published: Make, tmp_path: Path) -> None:
    make_published("gpt2").save_pretrained(tmp_path / "published")
    (tmp_path / "published" / "generation_config.json").write_text("{")
    with pytest.raises(HeddleError, match=r"generation_config\.json: cannot be read as JSON"):
        import_model(tmp_path / "published", tmp_path / "run")


def test_an_imported_tokenizer_is_told_its_roles(make_published: Make, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bytes", [], special=("<s>", END_OF_TEXT, "<pad>"))
    begin, end, padding = (tokenizer.special[name] for name in ("<s>", END_OF_TEXT, "<pad>"))
    ids = {"bos_token_id": begin, "eos_token_id": [end, 7], "pad_token_id": padding}
    make_published("llama", vocab_size=tokenizer.vocab_size, **ids).save_pretrained(tmp_path / "published")
    tokenizer.save(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (reference.bos_token, reference.eos_token, reference.pad_token) == ("<s>", END_OF_TEXT, "<pad>")
    assert (reference.unk_token, len(reference)) == (None, tokenizer.vocab_size)


def test_a_model_of_ones_own_has_the_end_of_its_texts() -> None:
    tokenizer = train_tokenizer("bytes", [])
    decoder, both, encoder = preset("gpt2-small"), preset("t5-small"), preset("bert-base-like")
    assert own_ids(tokenizer, decoder) == SpecialIds(begin=256, end=256)
    assert own_ids(tokenizer, both) == SpecialIds(begin=256, end=256, padding=256, decoder_start=256)
    assert own_ids(tokenizer, encoder) == SpecialIds(begin=256, end=256, padding=256)
    padded = train_tokenizer("bytes", [], special=(END_OF_TEXT, "[PAD]"))
    assert (own_ids(padded, encoder).padding, own_ids(padded, both).padding) == (257, 256)
    assert own_ids(None, both) == own_ids(train_tokenizer("characters", ["abc"], special=()), decoder) == SpecialIds()


def test_an_export_begins_texts_as_training_did(tmp_path: Path) -> None:
    """Where every prompt is the beginning of a text, transformers' tokenizer and the model that is read back start it so, too."""
    tokenizer = train_tokenizer("bpe", ["warp and weft " * 9], 262)
    model = build(sized(1, vocab_size=tokenizer.vocab_size, context=16, dim=16).override({"prompts": "beginning"}))
    save(model, tmp_path / "run", tokenizer)
    export_model(tmp_path / "run", tmp_path / "out")
    begin, own = tokenizer.end_of_text, tokenizer.encode("warp")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("warp").input_ids == [begin, *own]
    import_model(tmp_path / "out", tmp_path / "again")
    read = load(tmp_path / "again", "cpu")
    assert read.tokenizer is not None
    assert bos_prefix(read.model, read.tokenizer, "warp") == bos_prefix(model, tokenizer, "warp") == (begin,)
    assert read.tokenizer.encode("warp") == own
