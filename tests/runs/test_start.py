"""Training that starts from another run's weights, tokenizer and special ids."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heddle.config.ids import SpecialIds
from heddle.config.run import RunConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import Trainer, prepare
from heddle.runs.session import open_session
from heddle.text import load_tokenizer
from heddle.train import evaluate
from heddle.weights import load, read_config, save
from tests.running import TRAIN, Begin
from tests.runs.test_resume import train, written

pytestmark = pytest.mark.usefixtures("roomy")


@pytest.fixture
def learned(begin: Begin, tmp_path: Path) -> Path:
    """A finished run."""
    run = begin("learned", steps=30, data={"tokenizer": "bpe", "tokenizer_size": 300})
    Trainer(run).run()
    return run


def start(run: Path, into: Path, corpus: Path, **settings: object) -> Path:
    """A run that starts from `run`."""
    table = {"data": {"sources": [str(corpus)]}, "model": {"from": str(run)}, "train": TRAIN}
    table |= settings  # type: ignore[arg-type]
    prepare(RunConfig.of(table), into)
    return into


def test_it_has_the_runs_weights_tokenizer_and_ids(learned: Path, tmp_path: Path, corpus: Path) -> None:
    model, tokenizer = load(learned)
    base = tmp_path / "given"
    config = model.config.model_copy(update={"ids": SpecialIds(begin=3, end=3)})
    other = build(config)
    other.load_state_dict(model.state_dict())
    save(other, base, tokenizer)
    run = start(base, tmp_path / "run", corpus)
    shutil.rmtree(base)  # a run needs nothing outside of its directory
    session = open_session(run)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in session.model.state_dict().items())
    assert session.model.config.ids == SpecialIds(begin=3, end=3)
    assert (
        load_tokenizer(run / "tokenizer.json").fingerprint() == load_tokenizer(learned / "tokenizer.json").fingerprint()
    )
    assert session.run.train.optimizer == "adamw"
    assert session.run.chosen.learning_rate == pytest.approx(3e-4 * 2**1.5 * (128 / 16) ** 0.5)
    assert session.run.chosen.warmup == 1  # a tenth of 8 steps


def test_stopping_changes_nothing(learned: Path, tmp_path: Path, corpus: Path) -> None:
    whole, cut = (start(learned, tmp_path / name, corpus) for name in ("whole", "cut"))
    Trainer(whole).run()
    train(cut, 5)
    assert written(whole) == written(cut)


def test_it_goes_on_learning_from_there(learned: Path, tmp_path: Path, corpus: Path) -> None:
    """With the default rate, the loss is never above the start's by more than its noise, and below it at the end."""
    run = start(learned, tmp_path / "run", corpus, train={**TRAIN, "steps": 50})
    session = open_session(run)
    before = evaluate(session.model, session.task).loss
    del session
    after = Trainer(run).run().loss
    assert after < before < 4


def test_a_head_of_another_kind_is_new(learned: Path, tmp_path: Path, corpus: Path) -> None:
    model, tokenizer = load(learned)
    bare = build(model.config.override({"head": {"kind": "embedding", "dense": [{}]}}), seed=5)
    bare.load_state_dict({**bare.state_dict(), **{k: v for k, v in model.state_dict().items() if "head" not in k}})
    save(bare, tmp_path / "bare", tokenizer)
    messages: list[str] = []
    table = {"data": {"sources": [str(corpus)]}, "model": {"from": str(tmp_path / "bare")}, "train": TRAIN}
    prepare(RunConfig.of(table), tmp_path / "run", messages.append)
    assert "the head is new: language" in messages
    session = open_session(tmp_path / "run")
    assert session.model.config.head.kind == "language"
    state = session.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in bare.state_dict().items() if "head" not in name)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model": {"preset": "gpt2-small"}}, "preset = 'gpt2-small' and from = .* both name a model"),
        (
            {"model": {"dim": 32}},
            "has other weights than .*, first embedding.weight: leave out dim",
        ),
        ({"data": {"tokenizer": "bytes"}}, "brings its own tokenizer: leave out tokenizer = 'bytes'"),
        (
            {"task": "masked"},
            "but the task 'masked' trains only an encoder; for a decoder, set task to next_token or",
        ),
        ({"train": {"vectors": "glove.txt"}}, "brings its own token table: leave out vectors"),
    ],
)
def test_what_the_run_decides_is_refused(
    learned: Path, tmp_path: Path, corpus: Path, settings: dict[str, object], error: str
) -> None:
    table: dict[str, object] = {"data": {"sources": [str(corpus)]}, "model": {"from": str(learned)}, "train": TRAIN}
    mixed = {
        **table,
        **{
            key: {**table.get(key, {}), **value} if isinstance(value, dict) else value
            for key, value in settings.items()
        },
    }  # type: ignore[dict-item]
    with pytest.raises(HeddleError, match=error):
        prepare(RunConfig.of(mixed), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_there(tmp_path: Path, config: Callable[..., RunConfig]) -> None:
    with pytest.raises(HeddleError, match="nowhere"):
        prepare(config(model={"start": str(tmp_path / "nowhere"), "depth": None}), tmp_path / "run")


def test_damaged_weights_are_refused(learned: Path, tmp_path: Path, corpus: Path) -> None:
    run = start(learned, tmp_path / "run", corpus)
    file = run / "start.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(HeddleError, match="damaged, it is not the file that this run started from"):
        open_session(run)
    assert read_config(run).chosen is not None
