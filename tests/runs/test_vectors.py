"""A run whose token table begins with vectors from a file: the same rows, refused in time, and never needed again."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import SavedConfig
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import Interrupted, Trainer, prepare
from heddle.text import load_tokenizer
from heddle.train import fit
from heddle.weights import load
from tests import refusing
from tests.running import SIZES, WORDS, Begin
from tests.runs.test_resume import SETTINGS, stop_after, train, written
from tests.thorough import thorough

KNOWN = ["the", "quick", "fox", "loom"]  # three that the text has and one that it has not
DATA = {"tokenizer": "words", "tokenizer_size": 50}


def draw(width: int) -> dict[str, list[float]]:
    numbers = np.random.default_rng(5).normal(size=(len(KNOWN), width)).astype("f4")
    return {word: [float(number) for number in row] for word, row in zip(KNOWN, numbers, strict=True)}


def write(path: Path, width: int = 16, binary: bool = False) -> Path:
    lines = draw(width).items()
    if binary:
        body = b"".join(word.encode() + b" " + np.array(row, "<f4").tobytes() for word, row in lines)
        path.write_bytes(f"{len(KNOWN)} {width}\n".encode() + body)
    else:
        path.write_text("".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in lines))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "v.txt")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_the_run_begins_with_the_files_rows(begin: Begin, tmp_path: Path, tied: bool, binary: bool) -> None:
    """Known words have the file's numbers; everything else is what the seed draws."""
    file = write(tmp_path / "v", binary=binary)
    trainer = Trainer(begin(vectors=str(file), data=DATA, model={"head": {"tied": tied}}))
    expected = build(trainer.session.run.config.model, seed=trainer.session.run.train.seed).state_dict()
    for word, row in draw(16).items():
        if word in WORDS:
            expected["embedding.weight"][trainer.session.run.tokenizer.encode(word)[0]] = torch.tensor(row)
    assert ("head.weight" in expected) is not tied
    state = trainer.session.model.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


@pytest.mark.parametrize("precision", ["fp32", *thorough("bf16")])
def test_stopping_changes_nothing_and_the_file_is_not_needed(begin: Begin, file: Path, precision: str) -> None:
    """Also where it was stopped before there was a checkpoint, and where the other has none of them."""
    run = begin(vectors=str(file), data=DATA, precision=precision, **SETTINGS)
    without = begin("without", data=DATA, precision=precision, **SETTINGS)
    stopped, killed = (shutil.copytree(run, run.with_name(name)) for name in ("stopped", "killed"))
    file.unlink()
    train(run)
    train(stopped, 1, 5, 6, 11)
    Trainer(killed)._one_step()
    train(killed)
    expected = written(run)
    assert written(stopped) == written(killed) == expected
    train(without)
    assert written(without)["model.safetensors"] != expected["model.safetensors"]


def test_what_was_known_stands_in_the_config(begin: Begin, file: Path) -> None:
    run = begin(vectors=str(file), data=DATA, steps=2)
    saved = SavedConfig.read(run / "config.json")
    assert saved.train is not None
    assert saved.chosen is not None
    assert saved.train.vectors == str(file)
    taken = saved.chosen.vectors
    assert taken is not None
    assert (taken.matched, taken.vocabulary, taken.unused) == (3, load_tokenizer(run).vocab_size, 1)
    Trainer(run).run()
    assert load(run, "cpu").tokenizer is not None


def test_a_run_from_before_there_were_vectors(begin: Begin) -> None:
    run = begin(steps=2)
    data = json.loads((run / "config.json").read_text())
    del data["train"]["vectors"], data["chosen"]["vectors"]
    (run / "config.json").write_text(json.dumps(data))
    train(run)
    train(run)


def test_damaged_rows_are_refused_until_there_is_a_checkpoint(begin: Begin, file: Path) -> None:
    run = begin(vectors=str(file), data=DATA, steps=4, evaluate_every=2)
    rows_file = run / "vectors.safetensors"
    sound = rows_file.read_bytes()
    rows_file.write_bytes(sound[:-1] + b"!")
    with pytest.raises(HeddleError, match=r"vectors.safetensors: damaged"):
        Trainer(run)
    rows_file.write_bytes(sound)
    trainer = Trainer(run)
    stop_after(2, trainer)
    with pytest.raises(Interrupted):
        trainer.run()
    rows_file.unlink()
    assert Trainer(run).session.step == 2


@pytest.mark.usefixtures("quick")
class TestRefusals:
    """One line, before a tokenizer is trained, and nothing is left."""

    @pytest.fixture(autouse=True)
    def nothing_is_trained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def never(*args: Any, **settings: Any) -> Any:
            pytest.fail("a tokenizer was trained")

        monkeypatch.setattr(import_module("heddle.runs.prepare"), "make_tokenizer", never)

    def refusal(self, config: RunConfig, run: Path) -> str:
        line = refusing.refusal(lambda: prepare(config, run))
        assert not run.exists()
        return line

    @pytest.mark.parametrize(
        ("model", "advice"),
        [
            ({}, "the model's 16: use vectors as wide as the model's, or set dim=12"),
            ({"dim": None}, "the model's 64: use vectors as wide as the model's, or set dim=12"),
            ({"dim": None, "depth": None, "heads": None}, "the model's width is chosen by time: set dim=12"),
            (
                {"heads": 8},
                "the model's 16: use vectors as wide as the model's, or set dim=12 and fix what then does not fit: "
                "model: dim = 12 is not divisible",
            ),
        ],
    )
    def test_another_width(
        self, config: Callable[..., RunConfig], tmp_path: Path, model: dict[str, Any], advice: str
    ) -> None:
        file = write(tmp_path / "v", width=12)
        message = self.refusal(config(model=model, vectors=str(file)), tmp_path / "run")
        assert message.startswith(f"{file}: its vectors have 12 numbers and {advice}")
        assert message.endswith("set dim=12") or "fix" in advice

    def test_a_width_of_tokens_beside_positions(self, config: Callable[..., RunConfig], tmp_path: Path) -> None:
        file = write(tmp_path / "v", width=12)
        entry = {"positions": "learned", "combine": "concat"}
        model = {"decoder": {"entry": entry, "block": {"mixer": {"relative": None}}}, "head": {"tied": False}}
        assert "and the model's 8: use vectors as wide as the model's, or set dim=24" in self.refusal(
            config(model=model, vectors=str(file)), tmp_path / "run"
        )

    def test_a_damaged_file(self, config: Callable[..., RunConfig], file: Path) -> None:
        """What else is refused: tests/convert/test_word_vectors.py."""
        file.write_bytes(file.read_bytes()[:-40])
        assert "line 4: must be a word and 16" in self.refusal(config(vectors=str(file)), file.with_name("run"))


def test_a_file_that_knows_nothing_is_refused(config: Callable[..., RunConfig], file: Path, quick: None) -> None:
    with pytest.raises(HeddleError, match="none of its words is one of the 257 tokens; try tokenizer=words"):
        prepare(config(vectors=str(file)), file.with_name("run"))
    assert not file.with_name("run").exists()


def test_the_width_of_the_advice_works(config: Callable[..., RunConfig], tmp_path: Path, quick: None) -> None:
    """Without any other size: the depth is still chosen."""
    file = write(tmp_path / "v", width=12)
    settings = config(model={**dict.fromkeys(SIZES), "context": 16, "dim": 12}, data=DATA, vectors=str(file))
    assert prepare(settings, tmp_path / "run").model.dim == 12


def test_fit_takes_the_model_as_it_is() -> None:
    import heddle

    model = heddle.build(heddle.sized(1, vocab_size=257, context=16, dim=16))
    with pytest.raises(HeddleError, match=r"call heddle.convert.load_vectors before fit"):
        fit(model, heddle.train_tokenizer("bytes", []), "text", steps=1, config=TrainConfig(vectors="v.txt"))
