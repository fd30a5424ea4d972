"""Text in, text out: whole characters, stop texts, several prompts."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.config import SamplingConfig, SpecialIds, sized
from heddle.errors import HeddleError
from heddle.generate import Piece, PromptLookup, complete, generate, generate_text
from heddle.generate.text import banned_runs, text_engine, token_text
from heddle.model import Transformer, build
from heddle.text import TextStream, Tokenizer, load_tokenizer, train_tokenizer

Make = Callable[..., Transformer]
PROMPTS = ["Once upon a time", "", "🧵🪡", "naïve café"]


@pytest.fixture(scope="module")
def bytes_() -> Tokenizer:
    return train_tokenizer("bytes", [])


@pytest.fixture(scope="module")
def merged() -> Tokenizer:
    """A tokenizer whose tokens span characters, and parts of them."""
    return train_tokenizer("bpe", ["ab abc bcab cba 🧵🪡🧵 é " * 20], vocab_size=275)


def joined(pieces: Sequence[Piece], rows: int) -> list[str]:
    return ["".join(piece.text for piece in pieces if piece.row == row) for row in range(rows)]


@pytest.mark.parametrize("kind", ["bytes_", "merged"])
def test_pieces_put_together_are_the_decoded_ids(make: Make, request: pytest.FixtureRequest, kind: str) -> None:
    """A random model says mostly what is no UTF-8 at all."""
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    model = make(vocab_size=tokenizer.vocab_size)
    sampling = SamplingConfig(max_tokens=40, temperature=2.0)
    pieces = list(complete(model, tokenizer, PROMPTS, sampling))
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    events = list(generate(model, ids, sampling, tokenizer.end_of_text))
    for row, text in enumerate(joined(pieces, 4)):
        drawn = [event.token for event in events if event.row == row and event.finish != "end"]
        assert text == tokenizer.decode(drawn)
        *before, last = [piece for piece in pieces if piece.row == row]
        assert last.finish == next(event.finish for event in events if event.row == row and event.finish)
        assert last.tokens == sum(event.row == row for event in events)
        assert all(piece.text and piece.finish is None for piece in before)


def test_prompts_together_are_prompts_alone(make: Make, bytes_: Tokenizer) -> None:
    model = make(vocab_size=257)
    sampling = SamplingConfig(max_tokens=30, temperature=0, stop=("\n",))
    together = joined(list(complete(model, bytes_, PROMPTS, sampling)), 4)
    assert together == [generate_text(model, bytes_, prompt, **sampling.to_dict()) for prompt in PROMPTS]


def test_a_stop_text_ends_the_row_and_the_work(make: Make, bytes_: Tokenizer) -> None:
    model = make(vocab_size=257)
    whole = generate_text(model, bytes_, "ab", max_tokens=30, temperature=0.9)
    stop = whole[8:11]
    pieces = list(complete(model, bytes_, ["ab"], SamplingConfig(max_tokens=30, temperature=0.9, stop=(stop,))))
    assert joined(pieces, 1) == [whole[: whole.find(stop)]]
    assert pieces[-1].finish == "stop"
    assert pieces[-1].tokens < 30


@pytest.mark.parametrize(("stop", "end"), [("xxx", ("xx", "length")), ("xx", ("", "stop")), ("x", ("", "stop"))])
def test_a_stop_text_that_the_last_token_completes_counts(make: Make, bytes_: Tokenizer, stop: str, end: Any) -> None:
    """Without it, what might have become a stop text comes with the last token."""
    sampling = SamplingConfig(max_tokens=2, temperature=0, logit_bias={ord("x"): 100.0}, stop=(stop,))
    pieces = list(complete(make(vocab_size=257), bytes_, ["a"], sampling))
    assert [(piece.text, piece.finish) for piece in pieces] == [end]


def test_an_empty_prompt_without_an_end_of_text_is_refused(make: Make) -> None:
    plain = train_tokenizer("bytes", [], special=())
    assert plain.end_of_text is None
    with pytest.raises(HeddleError, match="prompt 0 is empty"):
        generate_text(make(vocab_size=256), plain, "")


def test_long_prompts_are_refused_or_windowed(make: Make, bytes_: Tokenizer) -> None:
    model = make(vocab_size=257, context=16)
    with pytest.raises(HeddleError, match="36 tokens, but the model's context is 16"):
        generate_text(model, bytes_, "🧵" * 9)
    four, nine = (generate_text(model, bytes_, "🧵" * n, window=True, temperature=0, max_tokens=20) for n in (4, 9))
    assert four == nine  # 16 bytes are four of them


def test_unknown_keywords_are_refused(make: Make, bytes_: Tokenizer) -> None:
    with pytest.raises(HeddleError, match=r"unknown key 'max_token' in sampling\. Did you mean 'max_tokens'"):
        generate_text(make(vocab_size=257), bytes_, "a", max_token=3)  # type: ignore[call-arg]


def test_a_tokenizer_of_another_model_is_refused(make: Make, bytes_: Tokenizer) -> None:
    with pytest.raises(HeddleError, match="ids must be from 0 to 60"):
        generate_text(make(), bytes_, "text")


def imported(model: Transformer, **ids: Any) -> Transformer:
    model.config = model.config.override({"ids": SpecialIds(**ids).to_dict()})
    return model


@pytest.fixture
def beginning(bytes_: Tokenizer, tmp_path: Path) -> Tokenizer:
    """A tokenizer of bytes whose file puts the end of the text before in front."""
    bytes_.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    name = "<|endoftext|>"
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [256], "tokens": [name]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(tmp_path)


def test_an_imported_model_begins_as_its_tokenizer_begins(make: Make, beginning: Tokenizer) -> None:
    sampling = SamplingConfig(max_tokens=8, temperature=0)

    def fed(model: Transformer, tokenizer: Tokenizer, prompt: str) -> list[int]:
        return text_engine(model, tokenizer, [prompt], sampling).waiting[0].ids

    own, other = make(vocab_size=257), imported(make(vocab_size=257), begin=256, end=256)
    assert fed(other, beginning, "ab") == [256, 97, 98]
    assert fed(own, beginning, "ab") == [97, 98]  # it was trained without
    assert fed(other, beginning, "") == [256]
    bare = train_tokenizer("bytes", [])
    assert fed(other, bare, "ab") == [97, 98]
    assert fed(imported(make(vocab_size=257), begin=7), bare, "") == [7]
    assert fed(imported(make(vocab_size=257)), bare, "") == fed(own, bare, "") == [256]


def test_an_imported_model_ends_at_its_own_ids_alone(make: Make, bytes_: Tokenizer) -> None:
    free = [
        event.token for event in generate(make(vocab_size=257), [[97]], SamplingConfig(max_tokens=9, temperature=0))
    ]
    pieces = list(
        complete(imported(make(vocab_size=257), end=(free[3], 5)), bytes_, ["a"], SamplingConfig(temperature=0))
    )
    assert (pieces[-1].finish, pieces[-1].tokens) == ("end", free.index(free[3]) + 1)
    # The tokenizer's end of text is nothing to it where its files do not say so.
    seeds = range(6)
    wild = SamplingConfig(max_tokens=200, temperature=1e6, window=True)
    ends = {piece.finish for piece in complete(imported(make(vocab_size=257)), bytes_, ["a"] * 6, wild, seeds)} - {None}
    assert ends == {"length"}
    assert "end" in {piece.finish for piece in complete(make(vocab_size=257), bytes_, ["a"] * 6, wild, seeds)}


@pytest.mark.parametrize("own", [True, False])
def test_ids_that_the_tokenizer_has_no_text_for_are_not_drawn(make: Make, bytes_: Tokenizer, own: bool) -> None:
    model = make(vocab_size=297) if own else imported(make(vocab_size=297), end=290)
    wild = SamplingConfig(max_tokens=60, temperature=1e6)
    pieces = list(complete(model, bytes_, ["a"] * 4, wild, seeds=range(4)))
    assert {piece.finish for piece in pieces} <= {None, "end", "length", "context"}


def test_a_text_continues_its_prompt() -> None:
    """Words have a space between them, also between a prompt's last and the first that follows."""
    words = train_tokenizer("words", ["the loom lifts the warp and the weft"], None)
    (lifts,) = words.encode("lifts")
    (loom,) = words.encode("loom")
    assert TextStream(words, previous=loom).push(lifts) == " lifts"
    assert TextStream(words).push(lifts) == "lifts"
    model = build(sized(1, vocab_size=words.vocab_size, context=16, dim=16), seed=1)
    whole = generate_text(model, words, "the loom", max_tokens=4, temperature=0)
    drawn = [
        event.token
        for event in generate(model, [words.encode("the loom")], SamplingConfig(max_tokens=4, temperature=0))
    ]
    assert "the loom" + whole == words.decode([*words.encode("the loom"), *drawn])


def test_a_stop_text_ends_a_text_whose_next_tokens_were_guessed(make: Make) -> None:
    """A guess that runs past the stop text adds nothing, and no piece follows the last one."""
    tokenizer = train_tokenizer("bytes", [])
    model = make(vocab_size=tokenizer.vocab_size).eval()
    x = tokenizer.encode("x")[0]
    sampling = SamplingConfig(max_tokens=40, temperature=0, logit_bias={x: 100.0}, stop=("xxxxx",))
    for prompt in ("xxxx", "axxbxx"):
        plain, guessed = (
            [
                (piece.text, piece.finish)
                for piece in complete(model, tokenizer, [prompt], sampling, draft_source=draft_source)
            ]
            for draft_source in (None, PromptLookup(count=9, shortest=1))
        )
        assert guessed == plain == [("", "stop")]


def test_texts_to_ban_are_runs_of_ids(bytes_: Tokenizer) -> None:
    words = train_tokenizer("words", ["the warp is held"] * 5, 50)
    letters = train_tokenizer("characters", ["warp"])
    assert banned_runs(bytes_, ["ab", "c"]) == ((97, 98), (32, 97, 98), (99,), (32, 99))
    assert banned_runs(words, ["warp"]) == (tuple(words.encode("warp")),)
    assert banned_runs(letters, ["wa"]) == (tuple(letters.encode("wa")),)
    with pytest.raises(HeddleError, match="cannot encode 'loom', so the model cannot write it"):
        banned_runs(words, ["loom"])
    with pytest.raises(HeddleError, match="must not be empty"):
        banned_runs(bytes_, [" "])


def test_pieces_bring_what_was_drawn(make: Make, bytes_: Tokenizer) -> None:
    """Every token once, also those whose characters came later."""
    model = make(vocab_size=bytes_.vocab_size + 8).eval()
    sampling = SamplingConfig(max_tokens=20, logprobs=3, temperature=1.5)
    pieces = list(complete(model, bytes_, ["a", "bc"], sampling))
    for row in (0, 1):
        drawn = [each for piece in pieces if piece.row == row for each in piece.samples]
        assert [len(drawn)] == [piece.tokens for piece in pieces if piece.row == row][-1:]
        assert all(len(each.top) == 3 for each in drawn)
        assert all(token_text(bytes_, id) for each in drawn for id, _ in each.top)
    assert token_text(bytes_, bytes_.vocab_size + 3) == f"<{bytes_.vocab_size + 3}>"
