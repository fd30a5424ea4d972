"""generation_config.json: what it says is a default, or named as left out; transformers' own generate is the witness."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from heddle.config import BeamConfig, SamplingConfig
from heddle.config.decoding import DecodingDefaults, completed
from heddle.convert import export_model, import_model
from heddle.convert.generation_config import FIELDS, SAME, decoding_to_fields, read_decoding
from heddle.errors import HeddleError
from heddle.generate import beam_search, generate
from heddle.model import Transformer
from heddle.weights import load
from tests.convert.conftest import make as make_published
from tests.thorough import first

IDS: dict[str, dict[str, Any]] = {
    "gpt2": {"eos_token_id": [5, 11], "bos_token_id": 5, "pad_token_id": 3},
    "bart": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 4, "forced_eos_token_id": 2,
             "forced_bos_token_id": 33},
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
}  # fmt: skip
DEFAULTS: dict[str, list[dict[str, Any]]] = {
    "gpt2": [
        {"do_sample": False, "max_new_tokens": 9, "min_new_tokens": 7, "repetition_penalty": 1.5, "suppress_tokens": [20, 41]},
        {"do_sample": False, "max_new_tokens": 12, "no_repeat_ngram_size": 1},
    ],
    "bart": [
        {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 2, "min_length": 8,
         "max_length": 13},
        {"num_beams": 4, "length_penalty": -1.0, "early_stopping": "never", "max_new_tokens": 9, "suppress_tokens": [7, 20]},
        {"num_beams": 2, "max_length": 20, "max_new_tokens": 6, "min_length": 3, "min_new_tokens": 5, "repetition_penalty": 2.0},
    ],
    "t5": [{"num_beams": 3, "min_length": 9, "max_length": 12, "no_repeat_ngram_size": 3, "bad_words_ids": [[7], [8, 9]]}],
}  # fmt: skip
CASES = [(kind, number) for kind, several in DEFAULTS.items() for number in range(len(several))]


def texts_of(model: Transformer, rows: list[list[int]]) -> list[list[int]]:
    """What generation writes by default, as `generate` and `translate` do."""
    if model.encoder is None:
        sampling = completed(SamplingConfig, {}, model.config.decoding, "test")
        texts: list[list[int]] = [[] for _ in rows]
        for event in generate(model, rows, sampling):
            texts[event.row].append(event.token)
        return texts
    beam = completed(BeamConfig, {}, model.config.decoding, "test")
    searched = dict(beam_search(model, [[]] * len(rows), beam, sources=rows))
    return [list(searched[number][0].ids) for number in range(len(rows))]


@torch.inference_mode()
def their_texts(folder: Path, kind: str, rows: list[list[int]], lengths: list[int]) -> list[list[int]]:
    auto: Any = transformers.AutoModelForCausalLM if kind == "gpt2" else transformers.AutoModelForSeq2SeqLM
    reference = auto.from_pretrained(folder)
    texts = []
    for row, length in zip(rows, lengths, strict=True):
        ids = torch.tensor([row])
        (text,) = reference.generate(ids, attention_mask=torch.ones_like(ids)).tolist()
        start = len(row) if kind == "gpt2" else 1
        texts.append(text[start : start + length])
    return texts


@pytest.mark.parametrize(("kind", "number"), first(2, CASES))
def test_texts_by_default_are_those_of_transformers(kind: str, number: int, tmp_path: Path) -> None:
    """After import, and again after export."""
    published: Any = make_published(kind, **IDS[kind])
    with torch.no_grad():
        for parameter in published.parameters():  # so that texts differ from row to row
            parameter.mul_(3 if parameter.dim() > 1 else 1)
    published.save_pretrained(tmp_path / "published")
    defaults = {**IDS[kind], **DEFAULTS[kind][number]}
    (tmp_path / "published" / "generation_config.json").write_text(json.dumps(defaults))
    notes = import_model(tmp_path / "published", tmp_path / "run")["notes"]
    assert any(note.startswith("generation defaults from ") for note in notes)
    assert not any("that are left out" in note for note in notes)
    model = load(tmp_path / "run", "cpu").model
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(10, 59, (length,), generator=draw).tolist() for length in (3, 9)]
    texts = texts_of(model, rows)
    assert their_texts(tmp_path / "published", kind, rows, [len(each) for each in texts]) == texts
    plain = model.config.model_copy(update={"decoding": None})
    model.config, own = plain, model.config
    assert texts_of(model, rows) != texts, "the defaults change texts"
    model.config = own
    export_model(tmp_path / "run", tmp_path / "out")
    assert their_texts(tmp_path / "out", kind, rows, [len(each) for each in texts]) == texts
    import_model(tmp_path / "out", tmp_path / "again")
    assert load(tmp_path / "again", "cpu").model.config.decoding == own.decoding


def test_every_field_of_transformers_is_known() -> None:
    """So that a field of a later version is decided about: taken, named, or without effect on texts."""
    known = vars(transformers.GenerationConfig()).keys()
    assert known - FIELDS - SAME == set()
    assert set() == FIELDS & SAME


TAKEN: list[tuple[dict[str, Any], bool, dict[str, Any]]] = [
    ({"max_new_tokens": 7, "min_new_tokens": 2}, False, {"max_tokens": 7, "min_tokens": 2}),
    ({"max_length": 7, "min_length": 3}, True, {"max_tokens": 6, "min_tokens": 2}),
    ({"max_new_tokens": 7, "max_length": 30}, True, {"max_tokens": 7}),
    ({"repetition_penalty": 1.2, "no_repeat_ngram_size": 3}, True, {"repetition_penalty": 1.2, "no_repeat_ngram": 3}),
    ({"num_beams": 4, "length_penalty": 0.6, "early_stopping": True}, True,
     {"beams": 4, "length_penalty": 0.6, "early_stopping": True}),
    ({"do_sample": True}, False, {"top_k": 50}),
    ({"do_sample": True, "top_k": 0, "temperature": 0.6, "top_p": 0.9}, False, {"temperature": 0.6, "top_p": 0.9}),
    ({"do_sample": True, "top_k": 7, "min_p": 0.1, "typical_p": 0.5}, False, {"top_k": 7, "min_p": 0.1, "typical_p": 0.5}),
    ({"do_sample": False}, False, {"temperature": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "paired", "decoded"), TAKEN)
def test_what_is_taken(fields: dict[str, Any], paired: bool, decoded: dict[str, Any]) -> None:
    """From the file, or from a config.json without one; written again as it is read."""
    for generation, config in (({}, fields), ({"num_beams": 9, "hidden_size": 3}, fields), (fields, None)):
        decoding, notes = read_decoding(generation, config, paired)
        assert decoding is not None
        assert decoding.set_values() == decoded
        (note,) = notes
        file = "config.json" if config is None else "generation_config.json"
        assert note.startswith(f"generation defaults from {file}: ")
        assert all(f"{name} = {value!r}" in note for name, value in decoded.items())
        assert read_decoding({}, decoding_to_fields(decoding), paired)[0] == decoding


LEFT: list[tuple[dict[str, Any], bool, str]] = [
    ({"max_length": 50}, False, "max_length = 50"),
    ({"min_length": 5}, False, "min_length = 5"),
    ({"num_beams": 4}, False, "num_beams = 4"),
    ({"num_beams": 4, "length_penalty": 2.0}, False, "length_penalty = 2.0, num_beams = 4"),
    ({"temperature": 0.5}, False, "temperature = 0.5"),
    ({"do_sample": True, "temperature": 0.5}, True, "do_sample = True, temperature = 0.5"),
    ({"num_beams": "four"}, True, "num_beams = 'four'"),
    ({"min_length": 2.5}, True, "min_length = 2.5"),
    ({"early_stopping": "soon"}, True, "early_stopping = 'soon'"),
    ({"encoder_no_repeat_ngram_size": 3}, True, "encoder_no_repeat_ngram_size = 3"),
    ({"diversity_penalty": 0.5, "num_beam_groups": 2}, True, "diversity_penalty = 0.5, num_beam_groups = 2"),
    ({"begin_suppress_tokens": [220]}, False, "begin_suppress_tokens = [220]"),
    ({"guidance_scale": 1.5}, False, "guidance_scale = 1.5"),
    ({"sequence_bias": [[[1], 2.0]]}, False, "sequence_bias = [[[1], 2.0]]"),
    ({"num_return_sequences": 2}, True, "num_return_sequences = 2"),
    ({"exponential_decay_length_penalty": [5, 1.2]}, True, "exponential_decay_length_penalty = [5, 1.2]"),
    ({"a_new_field": 1}, False, "a_new_field = 1"),
]


@pytest.mark.parametrize(("fields", "paired", "named"), LEFT)
def test_what_is_left_out_is_named(fields: dict[str, Any], paired: bool, named: str) -> None:
    decoding, notes = read_decoding({}, fields, paired)
    assert decoding is None
    assert notes == [f"generation settings of generation_config.json that are left out: {named}"]


def test_what_says_nothing_is_silent() -> None:
    """The values that change nothing, and fields about how texts are computed."""
    usual = transformers.GenerationConfig()._get_default_generation_params()
    fields = {name: value for name, value in usual.items() if name not in ("max_length", "top_k", "do_sample")}
    for paired in (False, True):
        assert read_decoding(
            {}, {**fields, "use_cache": False, "output_scores": True, "temperature": None}, paired
        ) == (
            None,
            [],
        )
    config = {"task_specific_params": {"summarization": {"num_beams": 4}}, "prefix": "translate: ", "num_beams": 4}
    for generation, file in (({}, "generation_config.json"), (None, "config.json")):
        (note,) = [
            note for note in read_decoding(config, generation, False)[1] if note.startswith("generation settings of ")
        ]
        assert "prefix = 'translate: '" in note
        assert "task_specific_params = {'summarization': {'num_beams': 4}}" in note
        assert ("num_beams = 4," in note.split("prefix")[0]) == (file == "config.json")


def test_a_user_comes_first() -> None:
    defaults = DecodingDefaults(max_tokens=30, min_tokens=10, temperature=0.5, beams=4, repetition_penalty=2.0)
    sampling = completed(SamplingConfig, {"temperature": 0.9}, defaults, "here", {"max_tokens": 500, "top_p": 0.3})
    assert (sampling.temperature, sampling.max_tokens, sampling.min_tokens, sampling.top_p) == (0.9, 30, 10, 0.3)
    assert completed(BeamConfig, {"max_tokens": 5}, defaults, "here") == BeamConfig(
        max_tokens=5, beams=4, repetition_penalty=2.0
    )
    assert completed(BeamConfig, {}, None, "here") == BeamConfig()
    with pytest.raises(HeddleError, match="min_tokens = 7 must be below max_tokens = 7"):
        completed(SamplingConfig, {"min_tokens": 7, "max_tokens": 7}, None, "here")
