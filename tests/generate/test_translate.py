"""Translation from text to text, and its scores."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heddle.config import BeamConfig, SpecialIds, sized
from heddle.config.tasks import SpanCorruptionConfig, TaskSettings, TranslationConfig
from heddle.errors import HeddleError
from heddle.generate import beam_search, score_translations, translate
from heddle.generate.translate import sentinels
from heddle.model import Transformer, build
from heddle.text import train_tokenizer
from tests.tasks.pairs import BOUNDARY, END, MODELS, TOKENIZER

WIDE = {"initial": {"std": 0.3, "scale_residual": False}}
SOURCES = ["abcd", "", "ba", "lkjihgfe"]


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return build(MODELS[request.param].override(WIDE), seed=4).eval()


def test_a_text_is_what_the_search_found_for_what_training_reads(model: Transformer) -> None:
    config = BeamConfig(beams=3, best=2, max_tokens=6)
    result = translate(model, TOKENIZER, SOURCES, config)
    assert [each.text for each in result[1]] == [""]
    for text, translations in zip(SOURCES, result, strict=True):
        ids = TOKENIZER.encode(text)
        paired = model.encoder is not None
        inputs: dict[str, Any] = {"prompts": [[*ids, BOUNDARY]]}
        inputs = {"prompts": [[]], "sources": [[*ids, END]]} if paired else inputs
        ((_, expected),) = beam_search(model, config=config, end_of_text=END, **inputs)
        for translation, hypothesis in zip(translations, expected, strict=True) if text else ():
            hidden = (END,) if paired else (END, BOUNDARY)
            assert translation.text == TOKENIZER.decode([id for id in hypothesis.ids if id not in hidden])
            assert translation.score == pytest.approx(hypothesis.score, abs=1e-5)
            assert (translation.tokens, translation.finish) == (len(hypothesis.ids), hypothesis.finish)


def test_sources_that_do_not_fit_are_refused_or_cropped(model: Transformer) -> None:
    config = BeamConfig(beams=2, max_tokens=3)
    long = "abcdef" * 6
    with pytest.raises(HeddleError, match=r"source 2 has 36 tokens, but the model has room for 31; .* \(--crop"):
        translate(model, TOKENIZER, ["a", "", long], config)
    room = 31 if model.encoder is not None else 15
    assert translate(model, TOKENIZER, [long], config, crop=True) == translate(model, TOKENIZER, [long[:room]], config)


def test_the_strategy_is_a_config_or_keywords(model: Transformer) -> None:
    settings = {"beams": 2, "best": 2, "max_tokens": 3}
    translations = translate(model, TOKENIZER, SOURCES, **settings)
    assert translations == translate(model, TOKENIZER, SOURCES, BeamConfig.of(settings))
    with pytest.raises(HeddleError, match="translate: config and best exclude each other; give a config or"):
        translate(model, TOKENIZER, SOURCES, BeamConfig(), best=2)


def test_a_source_of_blanks_is_empty(model: Transformer) -> None:
    assert [best.text for best, *_ in translate(model, TOKENIZER, ["  ", "\t"], beams=1)] == ["", ""]


@pytest.mark.parametrize(
    ("task", "named"), [(None, True), (SpanCorruptionConfig(), True), (TranslationConfig(), False)], ids=str
)
def test_sentinels_are_tokens_where_they_were_in_training(task: TaskSettings | None, named: bool) -> None:
    """The target of a run that fills in spans says what belongs in the place of each; elsewhere their names are text."""
    tokenizer = train_tokenizer("bytes", [], special=SpanCorruptionConfig.special_tokens)
    model = build(MODELS["both"].override({**WIDE, "vocab_size": tokenizer.vocab_size}), seed=4).eval()
    text, special = "a <extra_id_0> b", sentinels(task, tokenizer)
    assert bool(special) == named
    ids = tokenizer.encode(text, special)
    assert (tokenizer.special["<extra_id_0>"] in ids) == named
    ((_, (expected,)),) = beam_search(
        model, [[]], BeamConfig(beams=1, max_tokens=5), tokenizer.end_of_text, sources=[[*ids, tokenizer.end_of_text]]
    )
    ((translation,),) = translate(model, tokenizer, [text], beams=1, max_tokens=5, special=special)
    assert translation.text == tokenizer.decode([id for id in expected.ids if id != tokenizer.end_of_text])


def test_progress_counts_sources(model: Transformer) -> None:
    progress = list[tuple[int, int]]()
    translate(
        model, TOKENIZER, SOURCES, BeamConfig(beams=1, max_tokens=2), progress=lambda *counts: progress.append(counts)
    )
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_a_model_that_cannot_translate_says_so() -> None:
    encoder = build(sized(1, vocab_size=TOKENIZER.vocab_size, context=8, dim=16, stacks=("encoder",)))
    with pytest.raises(HeddleError, match="this model has no decoder, so it cannot translate"):
        translate(encoder, TOKENIZER, ["a"])
    plain = train_tokenizer("characters", ["abc"], special=("<|endoftext|>",))
    decoder = build(sized(1, vocab_size=plain.vocab_size, context=8, dim=16))
    with pytest.raises(HeddleError, match="no token between source and target"):
        translate(decoder, plain, ["a"])
    with pytest.raises(HeddleError, match="the tokenizer has 14 ids, but the model's vocab_size is 4"):
        translate(decoder, TOKENIZER, ["a"])


def test_an_imported_model_starts_and_ends_with_its_own_ids() -> None:
    ids = {"decoder_start": 3, "forced_begin": 5, "end": 2, "padding": 4}
    model = build(MODELS["both"].override({**WIDE, "ids": SpecialIds.of(ids).to_dict()}), seed=4).eval()
    ((translation,),) = translate(model, TOKENIZER, ["ab"], BeamConfig(beams=2, max_tokens=4))
    config = BeamConfig(beams=2, max_tokens=4)
    ((_, (expected,)),) = beam_search(model, [[]], config, sources=[[*TOKENIZER.encode("ab"), 2]])
    assert expected.ids[0] == 5
    assert translation.text == TOKENIZER.decode([id for id in expected.ids if id not in (5, 2, 4, 3)])


HYPOTHESES = ["the warp is held", "a weft thrown there", "the heddle"]
REFERENCES = ["the warp is held fast", "the weft is thrown there", "The heddle"]


@pytest.mark.parametrize(("tokenize", "lowercase"), [("13a", False), ("none", True)])
def test_scores_are_those_of_sacrebleu_s_command(tmp_path: Path, tokenize: str, lowercase: bool) -> None:
    scores = score_translations(HYPOTHESES, REFERENCES, tokenize, lowercase)
    for name, texts in (("hypotheses", HYPOTHESES), ("references", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    words = [
        sys.executable,
        "-m",
        "sacrebleu",
        str(tmp_path / "references"),
        "-i",
        str(tmp_path / "hypotheses"),
        "-w",
        "6",
    ]
    for metric, actual, signature in (
        ("bleu", scores.bleu, scores.bleu_signature),
        ("chrf", scores.chrf, scores.chrf_signature),
    ):
        more = [*(["--lowercase"] if metric == "bleu" and lowercase else ["--chrf-lowercase"] if lowercase else [])]
        more += ["-tok", tokenize, "--force"] if metric == "bleu" else []
        command = [*words, "-m", metric, "-f", "text", *more]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        name, _, score = output.partition(" = ")
        assert name == f"{metric.upper() if metric == 'bleu' else 'chrF2'}|{signature}"
        assert float(score.split()[0]) == pytest.approx(actual, abs=1e-6)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(HeddleError, match="2 translations and 1 references"):
        score_translations(["a", "b"], ["a"])
    with pytest.raises(HeddleError, match="0 translations and 0 references"):
        score_translations([], [])
    with pytest.raises(HeddleError, match="sacrebleu has no tokenization 'moses'"):
        score_translations(["a"], ["a"], "moses")


def test_a_tokenization_whose_library_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(HeddleError, match="sacrebleu cannot use the tokenization 'ja-mecab': "):
        score_translations(["a"], ["a"], "ja-mecab")
