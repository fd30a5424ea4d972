"""`heddle train`: what it accepts, what it writes, how it resumes."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.cli import keys
from heddle.cli.train import parse_config, parse_series
from heddle.config import SavedConfig
from heddle.config.tasks import MaskedConfig, SpanCorruptionConfig
from heddle.errors import HeddleError
from heddle.look import read_readings
from heddle.runs import Trainer
from heddle.tasks.table import TASKS
from heddle.weights import load
from heddle.weights.files import Hold, write_directory
from tests import programs
from tests.thorough import thorough

from .conftest import TINY, Heddle, Result


def planned(result: Result) -> Any:
    assert result.code == 0, result.err
    return result.json


def test_a_user_trains_a_model(tmp_path: Path, corpus: str) -> None:
    """The real program, with the machine measured: from a text to a run that loads."""
    done = programs.heddle("train", corpus, *TINY, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("reading corpus.txt", "measuring this machine", "sample: ", "finished: validation loss"):
        assert line in done.stdout
    assert "heddle generate runs/001" in done.stdout
    assert "--resume" not in done.stdout  # there is nothing to resume
    assert "\n1 document, " in done.stdout
    assert "\n4 steps of 4 x 16 = 64 tokens" in done.stdout
    assert ", 1 thread, " in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "runs"]
    model, tokenizer = load(tmp_path / "runs" / "001", "cpu")
    assert (model.config.dim, model.config.context) == (16, 16)
    assert tokenizer is not None
    assert tokenizer.kind == "bytes"


def test_json(heddle: Heddle, corpus: str) -> None:
    """One document on stdout; what people read goes to stderr."""
    result = heddle("train", corpus, *TINY, "--name", "b", "--json")
    assert result.code == 0
    assert result.json.keys() == {
        "run",
        "step",
        "steps",
        "finished",
        "stopped_early",
        "published",
        "vectors",
        "validation",
        "samples",
    }
    assert result.json["vectors"] is None
    assert result.json["run"] == "runs/b"
    assert (result.json["step"], result.json["finished"]) == (4, True)
    assert result.json["validation"]["bits_per_byte"] > 0
    assert len(result.json["samples"]) == 3
    assert "finished: validation loss" in result.err


def test_a_run_without_a_name_gets_the_next_number(heddle: Heddle, corpus: str, run_a: Path) -> None:
    for number in ("001", "002"):
        assert heddle("train", corpus, *TINY, "--json").json["run"] == f"runs/{number}"
    assert sorted(path.name for path in run_a.parent.iterdir()) == ["001", "002", "a"]
    assert heddle("train", corpus, *TINY, "--name", "here/b", "--json").json["run"] == "here/b"


def test_readings_are_saved_at_the_chosen_steps(heddle: Heddle, corpus: str) -> None:
    """By runs alone and in series; a resumed run goes on with them."""
    words = ("train", corpus, *TINY, "--readings", "2")
    assert heddle(*words, "--name", "b").code == 0
    assert list(read_readings("runs/b")) == [0, 2, 4]
    assert heddle("train", "--resume", "b", "steps=6").code == 0
    assert list(read_readings("runs/b")) == [0, 2, 4, 6]
    assert heddle("train", "--resume", "b", "steps=8", "--readings", "7,8").code == 0
    assert list(read_readings("runs/b")) == [0, 2, 4, 6, 7, 8]
    assert heddle("train", corpus, *TINY, "--readings", "1,3", "--seeds", "2", "--name", "s").code == 0
    assert [list(read_readings(f"runs/s-seed{seed}")) for seed in (0, 1)] == [[1, 3]] * 2


@pytest.mark.parametrize("message", ["often", "0", "1,,2", "-5", "1.5"])
def test_readings_at_what_is_no_step_are_refused(message: str, heddle: Heddle, corpus: str) -> None:
    result = heddle("train", corpus, *TINY, f"--readings={message}")
    assert result.code == 2
    assert f"--readings {message}: " in result.err
    assert not Path("runs").exists()


class TestDryRun:
    """What would happen, by `--dry-run`, which trains nothing."""

    def test_nothing_is_trained(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        result = heddle("train", corpus, *TINY, "--dry-run")
        assert result.code == 0
        assert "nothing was trained (--dry-run)" in result.out
        assert "run runs/001: " in result.out
        assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]

    def test_the_numbers(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        plan = planned(heddle("train", corpus, *TINY, "--dry-run", "--json"))
        size = (tmp_path / corpus).stat().st_size
        assert plan["train_tokens"] + plan["validation_tokens"] == size
        assert plan["sources"] == corpus
        assert plan["memory"] > 16 * plan["parameters"]
        assert plan["chosen"]["steps"] == 4
        assert plan["model"]["context"] == 16

    def test_several_sources(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        (tmp_path / "odd name=1.txt").write_text("another text " * 50)
        plan = planned(heddle("train", corpus, "odd name=1.txt", *TINY, "--dry-run", "--json"))
        assert plan["sources"] == "corpus.txt, odd name=1.txt"
        assert plan["train_tokens"] + plan["validation_tokens"] == 650 + (tmp_path / corpus).stat().st_size + 2

    def test_a_run_file_and_what_differs_from_it(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(
            f'[data]\nsources = ["{corpus}"]\ntokenizer = "characters"\n'
            '[model]\ndepth = 2\ndim = 32\ncontext = 8\nheads = 2\n[train]\nsteps = 7\nbatch = 2\ncompile = "off"\n'
        )
        plan = planned(heddle("train", "run.toml", "depth=1", "train.batch=6", "--dry-run", "--json"))
        assert plan["model"]["decoder"]["depth"] == 1
        assert plan["model"]["dim"] == 32
        assert plan["model"]["vocab_size"] < 30
        assert (plan["chosen"]["steps"], plan["chosen"]["batch"]) == (7, 6)
        (tmp_path / "other.txt").write_text("abc " * 100)
        plan = planned(heddle("train", "run.toml", "other.txt", "--dry-run", "--json"))
        assert plan["sources"] == "other.txt"
        assert plan["model"]["vocab_size"] == 4

    def test_one_source_is_a_list_of_one(self, heddle: Heddle, corpus: str, tmp_path: Path) -> None:
        (tmp_path / "run.toml").write_text(f'[data]\nsources = "{corpus}"\n')
        assert planned(heddle("train", "run.toml", *TINY, "--dry-run", "--json"))["sources"] == corpus
        assert planned(heddle("train", f"sources={corpus}", *TINY, "--dry-run", "--json"))["sources"] == corpus

    def test_the_device_is_a_flag_and_a_key(self, heddle: Heddle, refused: Any, corpus: str, run_a: Path) -> None:
        """A flag wherever something is computed; as a key it can be in a run file."""
        words = [word for word in TINY if word != "device=cpu"]
        for device in ("device=cpu", "--device=cpu"):
            plan = planned(heddle("train", corpus, *words, device, "--dry-run", "--json"))
            assert plan["chosen"]["device"] == "cpu"
        assert "device = 'gpu'" in refused("train", corpus, *words, "--device", "gpu")
        assert "given twice" in refused("train", corpus, *words, "device=cpu", "--device", "cpu")
        for command in (["generate", "a", "--prompt", "a", "--max-tokens", "1"], ["eval", "a"]):
            assert heddle(*command, "--device", "cpu").code == 0

    @pytest.mark.parametrize(
        ("setting", "place", "value"),
        [
            ("kv_heads=1", "model.decoder.block.mixer.kv_heads", 1),
            ("dropout=0.25", "model.decoder.block.dropout", 0.25),
            ("decoder.block.placement=post", "model.decoder.block.placement", "post"),
            ("model.head.tied=false", "model.head.tied", False),
            ("learning-rate=0.5", "chosen.learning_rate", 0.5),
            ("warmup=3", "chosen.warmup", 3),
            ("precision=bf16", "chosen.precision", "bf16"),
        ],
    )
    def test_settings(self, heddle: Heddle, corpus: str, setting: str, place: str, value: Any) -> None:
        result = planned(heddle("train", corpus, *TINY, setting, "--dry-run", "--json"))
        for name in place.split("."):
            result = result[name]
        assert result == value

    def test_a_preset(self, heddle: Heddle, corpus: str) -> None:
        words = ["preset=laptop-tiny", "depth=1", "dim=64", "context=32", "tokenizer=bytes", "steps=1", "batch=1"]
        plan = planned(heddle("train", corpus, *words, "heads=2", "kv_heads=2", "compile=off", "--dry-run", "--json"))
        assert (plan["model"]["dim"], plan["model"]["decoder"]["depth"], plan["model"]["vocab_size"]) == (64, 1, 257)

    def test_the_tokenizer_of_a_run(self, heddle: Heddle, corpus: str, run_a: Path) -> None:
        plan = planned(heddle("train", corpus, *TINY, f"tokenizer={run_a}", "--dry-run", "--json"))
        assert plan["model"]["vocab_size"] == 257


def test_fewer_ids_than_were_asked_for_are_said(heddle: Heddle, corpus: str) -> None:
    """Also where they are the default's; bytes have as many as they have."""
    for words, expected in (["tokenizer=words"], True), (["tokenizer=words", "tokenizer_size=10"], False), ([], False):
        result = heddle("train", corpus, *TINY, *words, "--dry-run")
        assert ("ids: the text is too short for tokenizer_size = 4,096" in result.out) is expected, words
        assert result.code == 0


class TestVectors:
    @pytest.fixture
    def vectors(self, tmp_path: Path) -> str:
        words = ["warp", "weft", "loom", "elsewhere"]
        (tmp_path / "v.txt").write_text("".join(f"{word} {' '.join(['0.5'] * 16)}\n" for word in words))
        return "v.txt"

    def test_a_dry_run_says_what_is_known(self, heddle: Heddle, corpus: str, vectors: str, tmp_path: Path) -> None:
        words = [corpus, *TINY, "tokenizer=words", f"vectors={vectors}", "--dry-run"]
        taken = planned(heddle("train", *words, "--json"))["chosen"]["vectors"]
        assert (taken["matched"], taken["unused"]) == (3, 1)
        share = f"3 of {taken['vocabulary']} tokens ({3 / taken['vocabulary']:.0%})"
        output = heddle("train", *words).out
        assert (
            f"v.txt knows {share}\nthe head is tied, so it scores with these vectors too; set head.tied=false" in output
        )
        assert "the head is tied" not in heddle("train", *words, "head.tied=false").out
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "v.txt"]

    def test_a_run_by_its_file(self, heddle: Heddle, corpus: str, vectors: str, tmp_path: Path) -> None:
        """Trained, resumed without the file, loaded."""
        (tmp_path / "run.toml").write_text(f'[data]\ntokenizer = "words"\n[train]\nvectors = "{vectors}"\n')
        words = [word for word in TINY if not word.startswith("tokenizer")]
        result = heddle("train", "run.toml", corpus, *words, "--name", "b", "--json").json
        assert (result["finished"], result["vectors"]["matched"]) == (True, 3)
        (tmp_path / vectors).unlink()
        before = (tmp_path / "runs/b/model.safetensors").read_bytes()
        again = heddle("train", "--resume", "b", "--json").json
        assert (again["finished"], again["vectors"]) == (True, result["vectors"])
        assert (tmp_path / "runs/b/model.safetensors").read_bytes() == before
        assert heddle("generate", "b", "--prompt", "warp", "--max-tokens", "2").code == 0


class TestResume:
    @pytest.mark.parametrize("damage", ["a bit", "cut", "gone"])
    def test_damaged_weights_are_restored_and_that_is_said(self, heddle: Heddle, run_a: Path, damage: str) -> None:
        file = run_a / "model.safetensors"
        sound = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(sound[:-1] if damage == "cut" else sound[:-1] + bytes([sound[-1] ^ 1]))
        output = heddle("train", "--resume", "a").out
        line = next(line for line in output.splitlines() if "restored" in line)
        assert line.startswith("runs/a/model.safetensors: ")
        assert line.endswith("; it is restored from runs/a/checkpoints/step-4")
        assert file.read_bytes() == sound
        assert "restored" not in heddle("train", "--resume", "a").out

    def test_a_finished_run_stays_as_it_is(self, heddle: Heddle, run_a: Path) -> None:
        before = {path: path.read_bytes() for path in run_a.rglob("*") if path.is_file()}
        assert heddle("train", "--resume", "runs/a", "--json").json["finished"] is True
        assert {path: path.read_bytes() for path in run_a.rglob("*") if path.is_file()} == before

    def test_damaged_checkpoints_are_named(self, heddle: Heddle, run_a: Path) -> None:
        """Then what is left is taken, which may be nothing."""
        newest, older = (run_a / "checkpoints" / name for name in ("step-4", "step-2"))
        (newest / "state.json").write_text("{}")
        result = heddle("train", "--resume", "a")
        assert "runs/a/checkpoints/step-4 is skipped: state.json" in result.out
        assert "resuming runs/a at step 2 of 4" in result.out
        for folder in (newest, older):
            (folder / "model.safetensors").write_bytes(b"")
        result = heddle("train", "--resume", "a")
        assert result.code == 0
        assert "runs/a has no intact checkpoint: starting from the beginning" in result.out

    def test_an_imported_model_has_nothing_to_resume(self, refused: Any, run_a: Path) -> None:
        data = json.loads((run_a / "config.json").read_text())
        (run_a / "config.json").write_text(json.dumps({"model": data["model"], "origin": "gpt2"}))
        assert "was imported, not trained here" in refused("train", "--resume", "a")


def test_settings_are_saved(run_a: Path) -> None:
    saved = SavedConfig.read(run_a / "config.json")
    assert saved.data is not None
    assert saved.train is not None
    assert saved.data.sources == ("corpus.txt",)
    assert saved.train.steps == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_preparation_leaves_nothing(
    heddle: Heddle, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(import_module("heddle.runs.prepare"), "plan", lambda *args: signal.raise_signal(number))
    result = heddle("train", corpus, *TINY, "--json")
    assert (result.code, result.json) == (128 + number, {"error": "stopped"})
    assert [path.name for path in tmp_path.iterdir()] == [corpus]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_before_the_first_step_says_how_to_continue(
    heddle: Heddle, corpus: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The run is there by then, with nothing trained."""
    with monkeypatch.context() as patch:
        patch.setattr("heddle.runs.session._start", lambda run, ranks: signal.raise_signal(number))
        result = heddle("train", corpus, *TINY, "--name", "b")
    assert result.code == 128 + number
    assert result.err == "heddle: stopped; continue with: heddle train --resume runs/b\n"
    assert heddle("train", "--resume", "b", "--json").json["finished"] is True


def test_what_a_killed_preparation_left_is_no_run(heddle: Heddle, corpus: str, run_a: Path) -> None:
    left = shutil.copytree(run_a, run_a.parent / ".b.0123abcd.partial")
    assert [row["run"] for row in heddle("runs", "--json").json] == ["runs/a"]
    assert "Did you mean" not in heddle("eval", left.name[1:]).err
    assert heddle("train", corpus, *TINY, "--name", "b").code == 0
    assert not left.exists()


def test_numbers_that_are_being_prepared_are_taken(heddle: Heddle, corpus: str, tmp_path: Path) -> None:
    with write_directory(tmp_path / "runs" / "007"):
        assert "run runs/008: " in heddle("train", corpus, *TINY, "--dry-run").out


def test_a_run_in_training_is_refused_by_name(
    heddle: Heddle, refused: Callable[..., str], run_a: Path, tmp_path: Path
) -> None:
    hold = Hold(run_a)
    line = "runs/a is being trained by another process or Trainer; wait for it to end, or stop it"
    assert refused("train", "--resume", "a") == line
    assert refused("train", "--resume", str(run_a)) == line.replace("runs/a", str(run_a))
    assert [row["state"] for row in heddle("runs", "--json").json] == ["training"]
    assert heddle("generate", "a", "--prompt", "we", "--max-tokens", "2").code == 0
    hold.release()
    assert [row["state"] for row in heddle("runs", "--json").json] == ["finished"]
    assert heddle("train", "--resume", "a").code == 0


def test_a_reader_that_goes_ends_no_training(
    heddle: Heddle, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`heddle train … | head -2`: it trains to its end; one line on stderr says that nobody reads."""
    ends, run = os.pipe(), Trainer.run

    def read_two_lines_first(trainer: Trainer) -> Any:
        with os.fdopen(ends[0]) as head:
            assert len([next(head), next(head)]) == 2
        return run(trainer)

    monkeypatch.setattr(Trainer, "run", read_two_lines_first)
    with os.fdopen(ends[1], "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        done = heddle("train", corpus, *TINY, "--name", "b")
    assert (done.code, done.err) == (0, "heddle: output pipe closed; training continues\n")
    assert (tmp_path / "runs" / "b" / "model.safetensors").is_file()


def test_an_interrupted_training_says_so(heddle: Heddle, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By exit code, in words, and as a document."""
    score = Trainer._score

    def stop(trainer: Trainer) -> Any:
        trainer.stop.set()
        return score(trainer)

    monkeypatch.setattr(Trainer, "_score", stop)
    result = heddle("train", corpus, *TINY, "steps=9", "--json")
    assert result.code == 130
    assert result.json == {"run": "runs/001", "step": 4, "steps": 9, "finished": False}
    assert "stopped at step 4 of 9, saved; continue with: heddle train --resume runs/001" in result.err


def test_the_task_is_a_setting(heddle: Heddle, refused: Callable[..., str], corpus: str, tmp_path: Path) -> None:
    """On the command line or in a run file; it is kept, and it is in the help."""
    (tmp_path / "run.toml").write_text('[task]\nkind = "next_token"\n')
    assert heddle("train", corpus, "run.toml", *TINY, "--dry-run").code == 0
    assert heddle("train", corpus, *TINY, "task.kind=next_token", "--name", "b").code == 0
    assert json.loads((tmp_path / "runs" / "b" / "config.json").read_text())["task"] == {"kind": "next_token"}
    assert "task.kind = 'copy'" in refused("train", corpus, "task.kind=copy")
    assert "[task] what it learns" in heddle("train", "--help").out


@pytest.mark.parametrize("file", ["", 'task = "next_token"\n', '[task]\nkind = "translation"\n'])
def test_what_a_task_is_given_is_kept_in_any_order(file: str, tmp_path: Path) -> None:
    """`task` names the kind; it comes first, since another kind clears what was set for the one before."""
    run = tmp_path / "run.toml"
    run.write_text(file)
    for words in (["task=masked", "share=0.3"], ["share=0.3", "task=masked"], ["task.share=0.3", "task.kind=masked"]):
        assert parse_config((str(run), *words)).task == MaskedConfig(share=0.3)
    with pytest.raises(HeddleError, match=r"task=masked and task\.kind=masked are the same setting"):
        parse_config((str(run), "task=masked", "task.kind=masked"))
    runs = parse_series((str(run), "task=[masked,span_corruption]", "share=0.3"))
    assert [run.config.task for run in runs] == [MaskedConfig(share=0.3), SpanCorruptionConfig(share=0.3)]


def test_help_lists_every_task_that_there_is() -> None:
    task = keys.keys().split("[task]")[1].split("[train]")[0]
    kinds = ", ".join(cls.model_fields["kind"].default for cls in TASKS)
    assert f"[{kinds}; default: next_token]" in " ".join(task.split())
    assert "with kind=classification or token_classification: How much each class counts" in " ".join(task.split())
    assert task.count("  kind ") == 1
    assert "with kind=masked: Share of the tokens to predict. [default: 0.15]" in " ".join(task.split())


def test_what_is_frozen_and_what_will_be_published_is_said(heddle: Heddle, corpus: str) -> None:
    settings = ["ema=0.9", "checkpoint_activations=true", 'groups=[{parameters="embedding.*", frozen=true}]']
    result = heddle("train", corpus, *TINY, *settings, "--dry-run", "--json")
    frozen, parameters = result.json["frozen"], result.json["parameters"]
    assert frozen == 320 * 16  # 257 ids, padded
    assert f"{frozen:,} of the {parameters:,} parameters are frozen\nactivations are checkpointed\n" in result.err
    assert "publishes a moving average of the weights (ema = 0.9)" in result.err


def test_an_early_stop_is_said(heddle: Heddle, corpus: str) -> None:
    """With rates so small that nothing changes, the second evaluation finds no lower loss."""
    still = ["learning_rate=1e-30", "matrix_learning_rate=1e-30", "weight_decay=0", "evaluate_every=1", "patience=1"]
    result = heddle("train", corpus, *TINY, *still, "--name", "still", "--json")
    assert "stopped early at step 2 of 4: no lower validation loss in 1 evaluation\n" in result.err
    assert "published: the weights of step 1, which had the lowest validation loss, " in result.err
    assert (result.json["step"], result.json["stopped_early"]) == (2, True)
    assert result.json["published"]["kind"] == "best"
    again = heddle("train", "--resume", "runs/still")
    assert "still stopped early at step 2 of 4; to train longer: heddle train --resume " in again.out
    assert "steps=8, or patience=2" in again.out


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
@pytest.mark.parametrize("step", [4, *thorough(1, 11)])
def test_a_step_that_does_not_fit_into_memory_is_one_line(
    step: int, error: Exception, heddle: Heddle, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has trained is saved, and ends as one that had enough memory."""
    words = ["train", corpus, *TINY, "steps=12", "save_every=4"]
    training = import_module("heddle.train.training")
    train_step, calls = training.train_step, list[int]()

    def full(*words: Any) -> Any:
        calls.append(1)
        if len(calls) == step:
            raise error
        return train_step(*words)

    with monkeypatch.context() as patch:
        patch.setattr(training, "train_step", full)
        result = heddle(*words)
    assert result.code == 2
    line = result.err.splitlines()[-1]
    assert line.startswith(
        f"heddle: step {step}: out of memory with 4 rows of 16 tokens at a time: use accumulate=2 (now 1)"
    )
    there = f"the last good checkpoint is runs/001/checkpoints/step-{step - 1}"
    assert (there if step > 1 else "no checkpoint exists yet") in line
    assert "Traceback" not in result.err
    assert heddle("train", "--resume", "runs/001").code == 0
    assert heddle(*words, "--name", "whole").code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert Path("runs/001", name).read_bytes() == Path("runs/whole", name).read_bytes()
