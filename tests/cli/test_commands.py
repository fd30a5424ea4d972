"""Every other command on a tiny run: what people read, and the one document that programs read."""

import io
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path
from typing import get_args

import pytest

from heddle.account.resolve import resolve
from heddle.cli.streams import read_input
from heddle.config import preset, preset_names, sized
from heddle.model import build
from heddle.text import load_tokenizer, train_tokenizer
from heddle.text.base import Kind
from heddle.weights import load, save
from heddle.weights.files import write_manifest

from .conftest import TINY, Heddle

GPT2 = ["preset=gpt2-small", "dim=16", "depth=1", "heads=2", "context=16", "tokenizer=bytes", "steps=1", "batch=2"]


class TestGenerate:
    def test_it_writes(self, heddle: Heddle, run_a: Path) -> None:
        result = heddle("generate", "a", "--prompt", "the loom", "--max-tokens", "5")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("the loom")
        assert len(result.out) > len("the loom\n")
        assert heddle("generate", str(run_a), "--prompt", "the loom", "--max-tokens", "5") == result

    def test_as_a_document(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "warp", "--prompt", "we", "--max-tokens", "4", "--temperature", "0", "--json"]
        data = heddle("generate", "a", *words).json
        assert data["run"] == "runs/a"
        assert data["sampling"]["max_tokens"] == 4
        assert [text["prompt"] for text in data["texts"]] == ["warp", "we"]
        assert all((text["tokens"], text["finish"]) == (4, "length") for text in data["texts"])
        alone = heddle("generate", "a", "--prompt", "we", "--max-tokens", "4", "--temperature", "0", "--json").json
        assert alone["texts"][0] == data["texts"][1]

    def test_an_imported_model_ends_at_its_own_ids(self, heddle: Heddle) -> None:
        """And draws none of those that its tokenizer has no text for, with which the command would break off."""
        tokenizer = train_tokenizer("bytes", [])
        model = build(sized(1, vocab_size=400, context=64, dim=16), seed=1)
        words = ["--prompt", "warp", "--max-tokens", "30", "--temperature", "5", "--json"]
        for name, changes in (("free", {}), ("told", {"ids": {"end": [301, *range(0, 256, 2)]}})):
            model.config = model.config.override(changes)
            save(model, f"runs/{name}", tokenizer)
        free, ended = (heddle("generate", name, *words).json["texts"][0] for name in ("free", "told"))
        assert ended["finish"] == "end"
        assert ended["tokens"] < free["tokens"]

    def test_a_constrained_text(self, heddle: Heddle, run_a: Path) -> None:
        for options in (["--choice", "weft", "--choice", "warp"], ["--regex", "we(ft|b)|warp"]):
            result = heddle("generate", "a", "--prompt", "a ", *options)
            assert result.out.strip() in ("a weft", "a warp", "a web")
        Path("schema.json").write_text('{"enum": [1, 2]}')
        assert heddle("generate", "a", "--prompt", "a ", "--json-schema", "schema.json").out.strip() in ("a 1", "a 2")

    @pytest.mark.parametrize("weights", ["int8", "int4"])
    def test_rounded_weights(self, heddle: Heddle, run_a: Path, weights: str) -> None:
        result = heddle("generate", "a", "--prompt", "a", "--max-tokens", "5", "--weights", weights)
        assert result.code == 0
        assert re.search(rf"^{weights}: [0-9.]+ MB of weights instead of [0-9.]+ MB$", result.err, re.MULTILINE)
        losses = [heddle("eval", "a", "--weights", each, "--json").json["loss"] for each in ("trained", weights)]
        assert losses[0] != losses[1]
        assert abs(losses[0] - losses[1]) < 0.1

    def test_weights_of_an_unknown_kind(self, heddle: Heddle, run_a: Path) -> None:
        result = heddle("generate", "a", "--weights", "int3")
        assert result.code == 2
        assert "int3" in result.err
        assert "int8" in result.err

    def test_each_token_with_its_log_probability(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "warp", "--max-tokens", "4", "--temperature", "0", "--logprobs", "2"]
        (text,) = heddle("generate", "a", *words, "--json").json["texts"]
        assert "".join(each["token"] for each in text["logprobs"]) == text["text"]
        for each in text["logprobs"]:
            (best, second), own = each["top"], {key: each[key] for key in ("id", "token", "logprob")}
            assert best == own, "greedy"
            assert second["logprob"] <= best["logprob"] <= 0
        result = heddle("generate", "a", *words)
        assert result.out.startswith(f"warp{text['text']}\n")
        assert "\ntoken " in result.out
        for each in text["logprobs"]:
            assert f"{each['logprob']:.4f}" in result.out
        assert "logprobs" not in heddle("generate", "a", "--max-tokens", "1", "--json").json["texts"][0]

    def test_banned_texts(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "a", "--max-tokens", "9", "--temperature", "0.5", "--json"]
        text = heddle("generate", "a", *words).json["texts"][0]["text"]
        ban = text[1:3].strip() or text.strip()[:1]
        assert ban in text
        written_text = heddle("generate", "a", *words, f"--ban={ban}").json["texts"][0]
        assert ban not in written_text["text"]
        assert written_text["tokens"] == 9
        sampling = heddle("generate", "a", "--max-tokens", "1", "--ban", "warp", "--ban", "--x", "--json").json[
            "sampling"
        ]
        assert sampling["banned"] == [list(each.encode()) for each in ("warp", " warp", "--x", " --x")]

    def test_guessed_tokens_change_no_text(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "warp", "--max-tokens", "9", "--min-p", "0.01", "--frequency-penalty", "0.3"]
        plain = heddle("generate", "a", *words)
        assert plain.code == 0
        assert heddle("generate", "a", *words, "--lookup") == plain
        assert heddle("generate", "a", *words, "--draft", "a") == plain

    def test_several_prompts(self, heddle: Heddle, run_a: Path) -> None:
        result = heddle("generate", "a", "--prompt", "warp", "--prompt", "weft", "--max-tokens", "3")
        first, second = result.out.split("\n" + "-" * 40 + "\n")
        assert first.startswith("warp")
        assert second.startswith("weft")

    def test_from_nothing(self, heddle: Heddle, run_a: Path) -> None:
        assert heddle("generate", "a", "--max-tokens", "3", "--json").json["texts"][0]["tokens"] == 3

    @pytest.mark.parametrize("prompt", ["-- a", "-a", "--json", "- "])
    def test_a_prompt_that_begins_with_dashes(self, heddle: Heddle, run_a: Path, prompt: str) -> None:
        """As the next word and after an equals sign; so may a stop, and a text to encode."""
        first = heddle("generate", "a", "--prompt", prompt, "--max-tokens", "2", "--stop", "-- b", "--json")
        assert (first.code, first.json["texts"][0]["prompt"]) == (0, prompt)
        assert first.json["sampling"]["stop"] == ["-- b"]
        again = heddle("generate", "a", f"--prompt={prompt}", "--max-tokens", "2", "--stop=-- b", "--json")
        assert again.json == first.json
        if prompt != "--json":  # an option, where no other one asks for a value
            assert heddle("tokenizer", "encode", "a", prompt, "--json").json["ids"] == list(prompt.encode())

    @pytest.mark.parametrize(
        ("piped", "prompt"), [("warp\n", "warp"), ("warp\r\n", "warp"), ("a\n\n", "a\n"), ("", "")]
    )
    @pytest.mark.parametrize("words", [[], ["--prompt", "-"]])
    def test_a_prompt_on_standard_input(
        self, heddle: Heddle, run_a: Path, monkeypatch: pytest.MonkeyPatch, piped: str, prompt: str, words: list[str]
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        result = heddle("generate", "a", *words, "--max-tokens", "2", "--json")
        assert [text["prompt"] for text in result.json["texts"]] == [prompt]

    def test_standard_input_is_read_where_it_was_asked_for(
        self, heddle: Heddle, run_a: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("warp"))
        result = heddle("generate", "a", "--prompt", "we", "--max-tokens", "2", "--json")
        assert [text["prompt"] for text in result.json["texts"]] == ["we"]
        result = heddle("generate", "a", "--prompt", "we", "--prompt", "-", "--max-tokens", "2", "--json")
        assert [text["prompt"] for text in result.json["texts"]] == ["we", "warp"]
        result = heddle("generate", "a", "--prompt", "-", "--prompt", "-")
        assert (result.code, result.err.count("\n")) == (2, 1)
        assert "can be read only once" in result.err
        result = heddle("generate", "a", "--prompt", "\udcff")
        assert (result.code, result.err) == (2, "heddle: prompt 0 is not UTF-8\n")

    def test_standard_input_of_other_kinds(
        self, heddle: Heddle, run_a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file, a null device as where there is nobody to type, a stream that is closed, and what is no text."""
        (tmp_path / "prompt.txt").write_text("weft\n")
        (tmp_path / "odd.txt").write_bytes(b"we\xff")
        for name, prompt in (("prompt.txt", "weft"), (os.devnull, "")):
            with open(name, encoding="utf-8") as stream:
                monkeypatch.setattr("sys.stdin", stream)
                result = heddle("generate", "a", "--max-tokens", "2", "--json")
                assert result.json["texts"][0]["prompt"] == prompt
        monkeypatch.setattr("sys.stdin", None)
        assert heddle("generate", "a", "--max-tokens", "2", "--json").json["texts"][0]["prompt"] == ""
        sys.stdin.close()
        with (tmp_path / "odd.txt").open(encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            result = heddle("generate", "a")
        assert (result.code, result.err) == (
            2,
            "heddle: standard input is not UTF-8 at byte 2; convert it with iconv\n",
        )

    @pytest.mark.parametrize("words", [[], ["--prompt", "-"]])
    def test_a_pipe_that_stays_open_is_said(
        self, heddle: Heddle, run_a: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        """Where nobody asked for it to be read."""
        monkeypatch.setattr("heddle.cli.generate.PATIENCE", 0.0)
        reader, writer = os.pipe()

        def late() -> str:
            os.write(writer, b"warp")
            os.close(writer)
            return read_input()

        monkeypatch.setattr("heddle.cli.generate.read_input", late)
        with os.fdopen(reader) as stream:
            monkeypatch.setattr("sys.stdin", stream)
            result = heddle("generate", "a", *words, "--max-tokens", "2", "--json")
        assert result.json["texts"][0]["prompt"] == "warp"
        assert result.err == (
            "" if words else "reading the prompt from standard input; use --prompt to give it directly\n"
        )

    @pytest.mark.parametrize(("line_end", "first"), [("\n", "\n"), (" ", "t")])
    def test_from_nothing_without_an_end_of_text(
        self, heddle: Heddle, tmp_path: Path, woven: str, line_end: str, first: str
    ) -> None:
        """The characters of one document: after a line break, else with the training text's first token."""
        (tmp_path / "corpus.txt").write_text("t" + woven.replace("\n", line_end))
        made = [word for word in TINY if not word.startswith("tokenizer")]
        assert heddle("train", "corpus.txt", *made, "tokenizer=characters", "--name", "b").code == 0
        result = heddle("generate", "b", "--max-tokens", "3", "--json").json["texts"][0]
        assert (result["prompt"], result["tokens"]) == (first, 3)
        shutil.rmtree(tmp_path / "runs/b/data")
        result = heddle("generate", "b", "--max-tokens", "3")
        if first == "t":
            assert (result.code, result.err) == (
                2,
                "heddle: runs/b has no token to start a text with; give a --prompt\n",
            )
        else:
            assert result.code == 0

    def test_seeds(self, heddle: Heddle, run_a: Path) -> None:
        texts = [heddle("generate", "a", "--prompt", "a", "--max-tokens", "9", "--seed", seed).out for seed in "112"]
        assert texts[0] == texts[1] != texts[2]

    def test_the_end_of_the_context_is_said(self, heddle: Heddle, run_a: Path) -> None:
        """Beside the text, not in it; and only where the context is what ended it."""
        prompt = ["--prompt", "abcdefgh"]
        result = heddle("generate", "a", *prompt, "--max-tokens", "30")
        why = "the model's context of 16 tokens is full; --window continues from its last tokens"
        assert result.code == 0
        assert result.err == f"the text stopped after 9 tokens: {why}\n"
        assert "context" not in result.out
        assert heddle("generate", "a", *prompt, "--max-tokens", "9").err == ""
        assert heddle("generate", "a", *prompt, "--max-tokens", "30", "--window").err == ""
        several = heddle("generate", "a", *prompt, "--prompt", "a", "--max-tokens", "12")
        assert several.err == f"1 of 2 texts stopped before --max-tokens: {why}\n"

    def test_a_stop(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "we", "--max-tokens", "9", "--json"]
        text = heddle("generate", "a", *words, "--seed", "1").json["texts"][0]["text"]
        stopped = heddle("generate", "a", *words, "--seed", "1", "--stop", text[3:5]).json["texts"][0]
        assert (stopped["text"], stopped["finish"]) == (text[: text.index(text[3:5])], "stop")

    def test_a_checkpoint(self, heddle: Heddle, run_a: Path) -> None:
        words = ["--prompt", "we", "--max-tokens", "2"]
        assert heddle("generate", "runs/a/checkpoints/step-4", *words).out == heddle("generate", "a", *words).out


class TestEval:
    def test_what_was_held_out(self, heddle: Heddle, run_a: Path) -> None:
        data = heddle("eval", "a", "--json").json
        scores = {
            "loss",
            "standard_error",
            "perplexity",
            "bits_per_byte",
            "bits_per_character",
            "tokens",
            "bytes",
            "share",
            *("targets", "cut", "unscored", "examples", "shortened", "left_out", "blank"),
            *("malformed", "unseen_labels", "other_files"),
        }
        assert data.keys() == {"run", "text", "context", "precision", *scores}
        assert (data["standard_error"], data["share"]) == (0, 1)
        trained = heddle("train", "--resume", "a", "--json").json["validation"]
        assert {name: data[name] for name in trained} == trained
        assert data["tokens"] == data["bytes"] > 0
        result = heddle("eval", "a")
        assert (result.code, result.err) == (0, "")
        assert f"{data['loss']:.4f}" in result.out

    def test_files(self, heddle: Heddle, run_a: Path, corpus: str, tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("warp and weft")
        data = heddle("eval", "a", "short.txt", "--context", "4", "--json").json
        assert (data["tokens"], data["context"], data["text"]) == (
            13 + 1,
            4,
            "short.txt",
        )  # its first token and its end, too
        both = heddle("eval", "a", "short.txt", corpus, "--json").json
        assert both["tokens"] == 13 + 1 + len((tmp_path / corpus).read_bytes()) + 1  # each has an end of text

    def test_bits_per_character(self, heddle: Heddle, run_a: Path, tmp_path: Path) -> None:
        """Of a text whose characters have two or three bytes each; of the run's own text they are bytes."""
        (tmp_path / "wide.txt").write_text("äöü€" * 5, encoding="utf-8")
        data = heddle("eval", "a", "wide.txt", "--json").json
        assert data["bits_per_character"] == pytest.approx(data["bits_per_byte"] * 9 / 4)
        data = heddle("eval", "a", "--json").json
        assert data["bits_per_character"] == data["bits_per_byte"] == pytest.approx(data["loss"] / math.log(2))


class TestCount:
    def test_a_preset_a_run_and_a_file(self, heddle: Heddle, run_a: Path, tmp_path: Path) -> None:
        assert heddle("count", "gpt2-small", "--json").json["parameters"]["total"] == 124_439_808
        of_run = heddle("count", "a", "--json").json
        weights = sum(value.numel() for value in load(run_a, "cpu").model.parameters())
        assert of_run["parameters"]["total"] == weights
        (tmp_path / "run.toml").write_text("[model]\ndepth = 1\n")
        assert heddle("count", "run.toml", "--json").json["config"]["decoder"]["depth"] == 1
        (tmp_path / "model.json").write_text(json.dumps(of_run["config"]))
        assert heddle("count", "model.json", "--json").json["parameters"] == of_run["parameters"]

    def test_it_says_whether_a_model_can_be_exported_and_as_what(self, heddle: Heddle) -> None:
        assert heddle("count", "bycroft-nano", "--json").json["export"] == {
            "architecture": "GPT2LMHeadModel",
            "reasons": [],
        }
        refused = heddle("count", "laptop-rnn", "--json").json["export"]
        assert refused["architecture"] is None
        assert any("recurrent" in reason for reason in refused["reasons"])
        assert any("BertModel: the model has a decoder" in reason for reason in refused["reasons"])
        nearest = heddle("count", "laptop-rnn").out.split("No Hugging Face architecture fits this model. The nearest:")[
            1
        ]
        assert len(nearest.splitlines()) == 5
        assert "decoder.block.mixer.kind is recurrent, GPTNeoXForCausalLM has attention" in nearest
        assert "Bert" not in nearest

    @pytest.mark.thorough
    def test_equal_layers_are_one_line(self, heddle: Heddle) -> None:
        """A page by itself; every layer and every table on demand, and in the document."""
        short, whole = heddle("count", "gpt2-small"), heddle("count", "gpt2-small", "--all")
        assert len(short.out.splitlines()) < 70 < 100 < len(whole.out.splitlines())
        line = next(line for line in short.out.splitlines() if "decoder.blocks" in line)
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells == ["decoder.blocks.0 … 11", "7,087,872", "× 12", "85,054,464", "68.35%"]
        assert "--all" in short.out
        assert "--all" not in whole.out
        assert [f"decoder.blocks.{number} " in whole.out for number in range(13)] == [True] * 12 + [False]
        assert "The lecture's sum" in whole.out
        data = heddle("count", "gpt2-small", "--json").json
        assert sum(group["total"] for group in data["layout"]) == data["parameters"]["total"] == 124_439_808
        blocks = next(group for group in data["layout"] if group["layers"])
        assert (blocks["name"], blocks["layers"], blocks["each"]) == ("decoder.blocks", list(range(12)), 7_087_872)

    def test_people_read_tables(self, heddle: Heddle, run_a: Path) -> None:
        result = heddle("count", "a", "--batch", "2", "--length", "8")
        assert (result.code, result.err) == (0, "")
        assert "│" in result.out


class TestProve:
    def test_a_run_keeps_its_proof(self, heddle: Heddle, run_a: Path) -> None:
        result = heddle("prove", "a", "--json")
        assert result.code == 0
        assert result.json["holds"]
        assert json.loads((run_a / "proof.json").read_text()) == result.json
        words = {check["check"]: check["word"] for check in result.json["checks"]}
        assert words["causality"] == "EXACT"
        assert words["export"] in ("EXACT", "ROUNDING")

    def test_a_preset_and_a_name_that_is_none(self, heddle: Heddle) -> None:
        assert "checks passed" in heddle("prove", "bycroft-nano").out
        refused = heddle("prove", "gpt2-smal")
        assert refused.code == 2
        assert "Did you mean 'gpt2-small'?" in refused.err


class TestPresets:
    def test_the_list(self, heddle: Heddle) -> None:
        rows = heddle("presets", "--json").json
        assert [row["name"] for row in rows] == preset_names()
        assert all(row.keys() == {"name", "family", "parameters"} for row in rows)
        families = {row["name"]: row["family"] for row in rows}
        named = [families[name] for name in ("gpt2-small", "laptop-encoder", "t5-small")]
        assert named == ["decoder", "encoder", "encoder-decoder"]
        assert {row["name"]: row["parameters"] for row in rows}["gpt2-xl"] == 1_557_611_200
        assert "1,557,611,200" in heddle("presets").out

    @pytest.mark.parametrize("name", preset_names())
    def test_one(self, heddle: Heddle, tmp_path: Path, name: str) -> None:
        """What is shown can be used: a file of it is the same model."""
        as_toml, as_json = heddle("presets", name), heddle("presets", name, "--json")
        (tmp_path / "shown.toml").write_text(as_toml.out)
        (tmp_path / "shown.json").write_text(as_json.out)
        assert resolve("shown.toml")[1] == resolve("shown.json")[1] == preset(name)
        assert resolve("shown.toml")[1].to_dict() == {k: v for k, v in as_json.json.items() if k != "training"}

    @pytest.mark.lecture("L1-72", "L1-73", "D-18")
    def test_what_it_says_of_training(self, heddle: Heddle) -> None:
        """Batches are printed as they can be had, in whole sequences."""
        assert heddle("presets", "gpt3-small", "--json").json["training"] == {
            "batch_tokens": 524_288,
            "sequences": 256,
            "context": 2048,
            "learning_rate": 0.0006,
            "optimizer": "adamw",
        }
        assert heddle("presets", "gpt3-175b").out.endswith(
            "# trained with batches of 1,600 x 2,048 = 3,276,800 tokens\n# highest learning rate 6e-05, by adamw\n"
        )
        assert "training" not in heddle("presets", "gpt2-small", "--json").json
        assert "# " not in heddle("presets", "gpt2-small").out


class TestTokenizer:
    @pytest.mark.parametrize("kind", get_args(Kind))
    def test_there_and_back(self, heddle: Heddle, corpus: str, tmp_path: Path, kind: str) -> None:
        made = heddle("tokenizer", "train", "made", corpus, "--kind", kind, "--size", "320", "--json").json
        assert made["path"] == "made/tokenizer.json"
        assert made["vocab_size"] == load_tokenizer(tmp_path / "made").vocab_size
        assert {"bytes": 257, "characters": 16}.get(kind, made["vocab_size"]) == made["vocab_size"]
        cut = heddle("tokenizer", "encode", "made", "loom weft", "--json").json
        assert "".join(cut["pieces"]) == ("loomweft" if kind == "words" else "loom weft") or kind == "wordpiece"
        assert (cut["tokens"], cut["bytes"]) == (len(cut["ids"]), 9)
        back = heddle("tokenizer", "decode", "made", *map(str, cut["ids"]), "--json").json
        assert back == {"text": "loom weft"}
        assert heddle("tokenizer", "decode", "made", *map(str, cut["ids"])).out == "loom weft\n"
        assert f"{cut['tokens']} tokens for 9 bytes" in heddle("tokenizer", "encode", "made", "loom weft").out

    @pytest.mark.lecture("L1-94", "L1-81")
    def test_special_tokens_of_ones_own(self, heddle: Heddle, corpus: str) -> None:
        options = ["--special", "<start_translation>", "--special", "<end>"]
        made = heddle("tokenizer", "train", "made", corpus, "--kind", "words", *options, "--json").json
        assert list(made["special"]) == ["<|endoftext|>", "<start_translation>", "<end>"]
        text = "loom<start_translation>weft<end>"
        ids = heddle("tokenizer", "encode", "made", text, "--special", "--json").json["ids"]
        assert ids[1::2] == [made["special"]["<start_translation>"], made["special"]["<end>"]]
        assert heddle("tokenizer", "decode", "made", *map(str, ids)).out == text + "\n"
        plain = heddle("tokenizer", "encode", "made", text, "--json").json["ids"]
        assert not set(plain) & set(made["special"].values())

    def test_standard_input(self, heddle: Heddle, run_a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("weft"))
        assert heddle("tokenizer", "encode", "a", "--json").json["ids"] == list(b"weft")
        monkeypatch.setattr("sys.stdin", io.StringIO("119, 101 102\n116"))
        assert heddle("tokenizer", "decode", "runs/a").out == "weft\n"

    def test_a_text_is_cut_step_by_step(self, heddle: Heddle, run_a: Path) -> None:
        output = heddle("tokenizer", "explain", "a", "a b").out
        assert output.startswith("bytes: each byte is a piece")
        assert "a · ␣ · b" in output
        data = heddle("tokenizer", "explain", "a", "a b", "--json").json
        assert data["ids"] == [97, 32, 98]
        assert data["words"][0]["steps"][0]["pieces"] == ["a", " ", "b"]

    @pytest.mark.lecture("L2-46", "L2-45")
    def test_all_kinds_side_by_side(self, heddle: Heddle, corpus: str) -> None:
        report = heddle("tokenizer", "compare", "loom weft.", corpus, "--size", "400", "--json").json
        assert (report["text"], report["characters"], report["bytes"]) == ("loom weft.", 10, 10)
        rows = {row["kind"]: row for row in report["kinds"]}
        assert list(rows) == ["bytes", "characters", "words", "bpe", "wordpiece", "unigram"]
        assert rows["words"]["pieces"] == ["loom", "weft", "<unk>"]
        assert (rows["words"]["unknown"], rows["words"]["exact"]) == (1, False)
        assert "'.' at position 9" in rows["characters"]["error"]
        assert (rows["bpe"]["unknown"], rows["bpe"]["exact"]) == (0, True)
        assert all(row["tokens"] == len(row["ids"]) == len(row["pieces"]) for row in report["kinds"])
        output = heddle("tokenizer", "compare", "loom", corpus, "--kind", "words", "--kind", "bytes").out
        assert "'loom':" in output
        assert "unigram" not in output

    @pytest.mark.parametrize("kind", ["words", "wordpiece", "unigram"])
    def test_a_run_with_it(self, heddle: Heddle, corpus: str, kind: str) -> None:
        words = ["special_tokens=['<start>']", f"tokenizer={kind}", "tokenizer_size=330"]
        settings = [word for word in TINY if not word.startswith("tokenizer=")]
        assert heddle("train", corpus, *settings, *words, "--name", "b").code == 0
        assert len(heddle("tokenizer", "encode", "b", "<start>", "--special", "--json").json["ids"]) == 1
        assert heddle("generate", "b", "--prompt", "warp weft", "--max-tokens", "3").code == 0

    def test_a_file_of_a_name(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        result = heddle("tokenizer", "train", "mine.json", corpus, "--kind", "bytes")
        assert result.out == "training on 1 document, 0.0 MB\nmine.json: 257 ids\n"
        assert (tmp_path / "mine.json").is_file()
        (tmp_path / "more.txt").write_text("warp")
        result = heddle("tokenizer", "train", "words.json", corpus, "more.txt", "--kind", "words", "--size", "50")
        ids = load_tokenizer(tmp_path / "words.json").vocab_size
        assert result.out.endswith(f"words.json: {ids} ids, since the text is too small for 50\n")
        assert result.out.startswith("training on 2 documents, ")
        assert heddle("tokenizer", "encode", "mine.json", "a").out.endswith("1 token for 1 byte\n")


class TestRuns:
    def test_the_list(self, heddle: Heddle, run_a: Path, tmp_path: Path) -> None:
        (tmp_path / "runs" / "broken").mkdir()
        (tmp_path / "runs" / "broken" / "config.json").write_text("{")
        (tmp_path / "runs" / "no-run").mkdir()
        finished, broken = heddle("runs", "--json").json
        assert (finished["run"], finished["state"], finished["step"], finished["steps"]) == ("runs/a", "finished", 4, 4)
        assert finished["validation_loss"] > 0
        assert (finished["depth"], finished["dim"], finished["context"]) == (1, 16, 16)
        assert (broken["run"], broken["state"]) == ("runs/broken", "damaged")
        assert "not valid JSON" in broken["error"]
        result = heddle("runs")
        assert (result.code, result.err) == (0, "")
        assert "runs/a" in result.out
        assert "damaged" in result.out

    def test_states(self, heddle: Heddle, run_a: Path) -> None:
        (run_a / "model.safetensors").unlink()
        (run_a / "manifest.json").unlink()
        assert heddle("runs", "--json").json[0]["state"] == "stopped"
        for folder in (run_a / "checkpoints").iterdir():
            (folder / "manifest.json").unlink()
        assert heddle("runs", "--json").json[0]["state"] == "begun"

    def test_models_without_a_training(self, heddle: Heddle, run_a: Path, tmp_path: Path) -> None:
        """Saved by the library, or taken over from elsewhere: the config says which."""
        model, tokenizer = load(run_a, "cpu")
        save(model, tmp_path / "runs" / "b", tokenizer)
        data = json.loads((tmp_path / "runs" / "b" / "config.json").read_text())
        shutil.copytree(tmp_path / "runs" / "b", tmp_path / "runs" / "c")
        (tmp_path / "runs" / "c" / "config.json").write_text(json.dumps(data | {"origin": "theirs"}))
        (tmp_path / "runs" / "c" / "manifest.json").unlink()
        write_manifest(tmp_path / "runs" / "c", {"step": 0})
        assert [row["state"] for row in heddle("runs", "--json").json] == ["finished", "saved", "imported"]

    def test_scores_are_those_of_the_end(self, heddle: Heddle, run_a: Path) -> None:
        """What `eval` says, not the estimate of the last step; and what was scored is said."""
        scored = heddle("eval", "a", "--json").json
        row = heddle("runs", "--json").json[0]
        assert (row["validation_loss"], row["bits_per_byte"]) == (scored["loss"], scored["bits_per_byte"])
        assert row["scored"] == "all"
        data = json.loads((run_a / "manifest.json").read_text())
        data["evaluation"]["share"] = 0.5
        (run_a / "manifest.json").write_text(json.dumps(data))
        assert heddle("runs", "--json").json[0]["scored"] == "50%, of it"
        for name in ("manifest.json", "model.safetensors"):
            (run_a / name).unlink()
        row = heddle("runs", "--json").json[0]
        last = json.loads((run_a / "metrics.jsonl").read_text().splitlines()[-1])
        assert (row["state"], row["scored"], row["validation_loss"]) == (
            "stopped",
            "an estimate",
            last["validation_loss"],
        )

    @pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "manifest.json", "data/validation.tokens"])
    @pytest.mark.parametrize("damage", ["cut", "gone"])
    def test_damage(self, heddle: Heddle, run_a: Path, name: str, damage: str) -> None:
        """Seen by sizes alone, and said."""
        file = run_a / name
        file.write_bytes(file.read_bytes()[:-1]) if damage == "cut" else file.unlink()
        row = heddle("runs", "--json").json[0]
        if (name, damage) == ("manifest.json", "cut"):  # its last byte is a line break
            assert row["state"] == "finished"
            return
        assert row["state"] == "damaged"
        assert row["error"].startswith(f"runs/a/{name}: ")
        assert (row["steps"], row["depth"]) == (4, 1)
        output = heddle("runs").out
        assert "finished" not in output
        assert row["error"] in output

    def test_none(self, heddle: Heddle) -> None:
        assert heddle("runs", "--json").json == []
        assert heddle("runs").out == "no runs in runs; `heddle train` creates one\n"


def test_export_and_import(heddle: Heddle, corpus: str, tmp_path: Path) -> None:
    """A GPT-2 trained here goes out and comes back, and writes the same."""
    settings = ["precision=fp32", "products=torch", "compile=off", "threads=1", "device=cpu", "--name", "gpt", "--json"]
    assert heddle("train", corpus, *GPT2, *settings).json["finished"]
    out = heddle("export", "gpt", "out", "--json").json
    assert out["directory"] == "out"
    assert out["checked"]
    assert out["difference"] < 1e-4
    back = heddle("import", "out", "back", "--json").json
    assert back["run"] == "runs/back"
    words = ["--prompt", "weft", "--max-tokens", "8", "--seed", "3", "--json"]
    first, second = (heddle("generate", name, *words).json["texts"] for name in ("gpt", "back"))
    assert first == second
    assert heddle("runs", "--json").json[0]["state"] == "imported"
    result = heddle("import", "out", "again")
    assert (result.code, result.err) == (0, "")
    assert "runs/again: gpt2, " in result.out
    assert "heddle generate runs/again --prompt …, heddle count runs/again" in result.out
    result = heddle("export", "again", "out2")
    assert result.code == 0
    assert "logits match Hugging Face transformers" in result.out
    (tmp_path / "out" / "tokenizer.json").unlink()
    result = heddle("import", "out", "mute")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("\nheddle count runs/mute, heddle prove runs/mute\n")


def test_only_what_can_write_is_said_to(heddle: Heddle, tmp_path: Path) -> None:
    """An encoder has nothing to write, whether it has a tokenizer or not."""
    sizes = {"dim": 8, "vocab_size": 257, "context": 8, "encoder.depth": 1, "encoder.block.mixer.heads": 2}
    encoder = build(preset("bert-base-like").override({**sizes, "encoder.block.ffn.hidden": 8}))
    save(encoder, tmp_path / "bert", train_tokenizer("bytes", []))
    assert heddle("export", "bert", "out").code == 0
    result = heddle("import", "out", "back")
    assert "runs/back: bert, " in result.out
    assert "heddle generate" not in result.out
    assert "heddle count runs/back, heddle prove runs/back" in result.out
    assert heddle("import", "out", "again", "--json").json["writes"] is False


@pytest.mark.thorough
def test_a_model_can_be_counted_and_proved_with_changes(heddle: Heddle) -> None:
    report = heddle("count", "gpt3-6.7b", "dim=8192", "--length", "64", "--json").json
    assert (report["config"]["dim"], report["printed"]) == (8192, None)
    proof = heddle(
        "prove", "laptop-tiny", "decoder.depth=1", "context=64", "decoder.block.mixer.window=7", "--json"
    ).json
    assert {check["check"]: check["word"] for check in proof["checks"]}["rolling window"] != "NOT CHECKED"


def test_a_text_is_not_where_a_tokenizer_goes(heddle: Heddle, corpus: Path) -> None:
    result = heddle("tokenizer", "train", str(corpus))
    assert (result.code, "give the output directory first" in result.err) == (2, True)
