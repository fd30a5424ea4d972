"""Run directories on the imitated GPU: prepared, trained, stopped and resumed, published, served, used."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.config import EngineConfig, SamplingConfig
from heddle.config.run import RunConfig
from heddle.generate import Event
from heddle.predict import classify, embed
from heddle.runs import Trainer, prepare
from heddle.serve.worker import GenerationRequest, Worker
from heddle.train.training import Training
from heddle.weights import load, save
from tests.device.compare import assert_same
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.device.trainings import outcome, store_of, training
from tests.running import TRAIN, make_quick, run_config, write_corpus
from tests.runs.test_resume import train, written
from tests.serve.conftest import TOKENIZER, models
from tests.thorough import thorough

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "muon": {"optimizer": "muon"},
    "sgd": {"optimizer": "sgd"},
    "bf16": {"optimizer": "adamw", "precision": "bf16"},
    "ema": {"optimizer": "muon", "ema": 0.8},
    "lora": {"optimizer": "adamw", "lora": {"rank": 2}},
}


def in_a_folder(test: Callable[[Path], Any]) -> Any:
    """What a test gives that makes runs which are not measured."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        patch.setattr("heddle.runs.need.training_bytes", lambda *arguments: 0)
        return test(Path(place))


@imitated
@pytest.mark.parametrize("name", ["adamw", *thorough("muon", "sgd")])
def test_an_optimizers_state_is_restored_on_the_device(name: str) -> None:
    """Two steps, its state by way of the host, one more step: the same as three."""
    store = store_of("next token, rotary")

    def begun() -> Training:
        return training("next token, rotary", store, "cuda", optimizer=name)

    with Imitation():
        whole, first, second = begun(), begun(), begun()
        for _ in range(2):
            first.advance()
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state({key: each.cpu() for key, each in first.optimizer.state().items()})
        second.step = 2
        expected, result = outcome(whole), outcome(second)
        assert_same({**expected, "reports": expected["reports"][2:]}, result)


def base(place: Path) -> Path:
    """An untrained model, for adapters."""
    config = {
        "vocab_size": TOKENIZER.vocab_size,
        "dim": 16,
        "context": 16,
        "decoder": {"depth": 2, "block": {"mixer": {"heads": 2}}},
    }
    save(heddle.build(heddle.config.TransformerConfig.of(config), seed=1), place / "base", TOKENIZER)
    return place / "base"


def configured(place: Path, name: str, device: str, **more: Any) -> RunConfig:
    settings = {**TRAIN, "device": device, "steps": 4, "evaluate_every": 2, "save_every": 2, **OPTIMIZERS[name], **more}
    if name != "lora":
        return run_config(write_corpus(place), **settings)
    sources = {"sources": [str(write_corpus(place))]}
    return RunConfig.of({"data": sources, "model": {"from": str(base(place))}, "train": settings})


@imitated
@pytest.mark.parametrize("name", ["bf16", *thorough("sgd", "ema", "lora")])  # of AdamW and Muon, too
def test_a_run_that_is_stopped_and_resumed_ends_alike(name: str) -> None:
    def runs(place: Path) -> None:
        whole, stopped = place / "whole", place / "stopped"
        prepare(configured(place, name, "cuda"), whole)
        shutil.copytree(whole, stopped)
        train(whole)
        train(stopped, 1, 3)
        assert written(whole) == written(stopped)
        assert load(whole, "cuda").model.device.type == "cuda"

    with Imitation():
        in_a_folder(runs)


@imitated
@pytest.mark.parametrize("double", [True, *thorough(False)])
def test_a_run_is_the_cpus(double: bool) -> None:
    """`auto` takes the device; also one without float64, as a Mac's."""

    def trained(place: Path, device: str) -> Any:
        run = place / "run"
        prepare(configured(place, "muon", device, model={"decoder": {"block": {"mixer": {"kernel": "sdpa"}}}}), run)
        trainer = Trainer(run)
        assert trainer.session.model.device.type == ("cpu" if device == "cpu" else "cuda")
        score = trainer.run()
        model = load(run, device).model
        text = heddle.generate_text(model, trainer.session.run.tokenizer, "the", max_tokens=5, temperature=0.0)
        return score, dict(model.state_dict()), text

    expected = in_a_folder(lambda place: trained(place, "cpu"))
    with Imitation(double):
        assert_same(expected, in_a_folder(lambda place: trained(place, "auto")), 1e-5)


@imitated
def test_fit() -> None:
    def fitted(device: str) -> Any:
        model = heddle.build(
            models()["plain"].config.override({"decoder.block.mixer.kernel": "sdpa"}), seed=1, device=device
        )
        texts = ["the warp is held, the weft is thrown " * 9] * 9
        history = heddle.fit(model, TOKENIZER, texts, validation=0.2, steps=3, batch=2, precision="fp32", seed=3)
        return history.evaluation.loss, dict(model.state_dict())

    expected = fitted("cpu")
    for double in (True, False):
        with Imitation(double):
            assert_same(expected, fitted("cuda"), 1e-6)


@imitated
def test_classes_and_vectors() -> None:
    texts = ["the warp", "is held over the weft", "a"]

    def predicted(device: str) -> Any:
        classifier, encoder = (models()[name].to(device) for name in ("classifier", "encoder"))
        return list(classify(classifier, TOKENIZER, texts)), embed(encoder, TOKENIZER, texts).vectors

    expected = predicted("cpu")
    with Imitation():
        assert_same(expected, predicted("cuda"), 1e-5)


@imitated
def test_a_servers_worker() -> None:
    """Its thread steps the engine on the device."""

    def served(device: str) -> list[int]:
        model, events = models()["plain"].to(device), list[Event]()
        worker = Worker(model, TOKENIZER, EngineConfig())
        sampling = SamplingConfig(temperature=0.8, max_tokens=6, seed=3)
        _, admitted = worker.submit([GenerationRequest([5, 7], sampling, events.append)])
        admitted.result(30)
        worker.drain()
        assert worker.join(30)
        return [event.token for event in events]

    expected = served("cpu")
    assert len(expected) == 6
    with Imitation():
        assert served("cuda") == expected
