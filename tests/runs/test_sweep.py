"""A series of runs: each is the run that its settings alone would give, and an interrupted series is continued."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.config import RunConfig, variants
from heddle.errors import HeddleError
from heddle.runs import Interrupted, Member, SeedStatistics, Session, Trainer, prepare, statistics_by_variant, sweep
from heddle.runs.seed_statistics import quantile, seed_statistics
from heddle.train import Report
from heddle.weights import load
from tests.running import SIZES, TRAIN

pytestmark = pytest.mark.usefixtures("roomy")


@pytest.fixture
def table(corpus: Path, quick: None) -> dict[str, Any]:
    """Three steps of a tiny model, with two learning rates."""
    train = {**TRAIN, "steps": 3, "evaluate_every": 3, "learning_rate": [1e-3, 1e-2]}
    return {"data": {"sources": [str(corpus)], "tokenizer": "bytes"}, "model": SIZES, "train": train}


def test_a_series_is_its_runs(table: dict[str, Any], tmp_path: Path) -> None:
    """Bit for bit what each config gives alone; the text is tokenised once; a second call trains what was added alone."""
    lines: list[str] = []
    results = sweep(variants(table), tmp_path / "s", tell=lines.append)
    assert [each.run.name for each in results] == ["s-learning_rate=0.001", "s-learning_rate=0.01"]
    assert [each.how for each in results] == ["trained", "trained"]
    table["train"]["learning_rate"] = 1e-2
    prepare(RunConfig.of(table), tmp_path / "alone")
    alone = Trainer(tmp_path / "alone").run()
    assert results[1].loss == alone.loss
    assert (results[1].run / "metrics.jsonl").read_bytes() == (tmp_path / "alone" / "metrics.jsonl").read_bytes()
    ours, reference = (load(run, "cpu").model.state_dict() for run in (results[1].run, tmp_path / "alone"))
    assert all(torch.equal(ours[name], reference[name]) for name in reference)
    assert sum(line == "cutting the text into tokens" for line in lines) == 1
    tokens = [each.run / "data" / "train.tokens" for each in results]
    assert tokens[0].samefile(tokens[1])
    assert (results[1].run / "tokenizer.json").read_bytes() == (tmp_path / "alone" / "tokenizer.json").read_bytes()
    table["train"]["learning_rate"] = [3e-3, 1e-2, 1e-3]
    again = sweep(variants(table), tmp_path / "s")
    assert [each.how for each in again] == ["trained", "kept", "kept"]
    assert [again[2].loss, again[1].loss] == [each.loss for each in results]
    table["train"]["steps"] = 4
    with pytest.raises(
        HeddleError, match=r"s-learning_rate=0\.003 exists and has other settings: train\.steps; choose"
    ):
        sweep(variants(table), tmp_path / "s")


def test_a_stopped_series_is_continued(table: dict[str, Any], tmp_path: Path) -> None:
    """The run that was stopped continues from its last step, and ends as if it had never stopped."""
    progress: list[tuple[str, int]] = []

    def watching(stop: bool) -> Any:
        @contextmanager
        def watch(session: Session) -> Iterator[Any]:
            def reader(report: Report) -> None:
                progress.append((session.run.directory.name, report.step))
                if stop and "0.01" in session.run.directory.name and report.step == 2:
                    raise KeyboardInterrupt

            yield reader

        return watch

    table["train"]["save_every"] = 1
    whole = sweep(variants(table), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        sweep(variants(table), tmp_path / "s", watch=watching(stop=True))
    assert not (tmp_path / "s-learning_rate=0.01" / "model.safetensors").exists()
    progress.clear()
    results = sweep(variants(table), tmp_path / "s", watch=watching(stop=False))
    assert [each.how for each in results] == ["kept", "continued"]
    assert [step for _, step in progress] == [2, 3, 3]
    assert [each.loss for each in results] == [each.loss for each in whole]


@pytest.mark.parametrize(
    ("task", "records", "model"),
    [
        ({"kind": "classification"}, [{"text": f"the fox {i}", "label": "ab"[i % 2]} for i in range(40)], {}),
        ({"kind": "chat"}, [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "fox"}]}
                            for i in range(40)], {"context": 96}),
        ({"kind": "translation"}, [{"source": f"fox {i}", "target": f"dog {i}"} for i in range(40)], {}),
    ],
)  # fmt: skip
def test_a_finished_series_of_any_task_is_kept(
    task: Any, records: Any, model: Any, table: dict[str, Any], tmp_path: Path
) -> None:
    """What only the text decides, such as names of classes, and what the first run completed, are no other settings."""
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    table |= {
        "task": task,
        "data": {"sources": [str(file)], "tokenizer": "bytes"},
        "model": {**table["model"], **model},
    }
    table["train"]["steps"] = 1
    sweep(variants(table), tmp_path / "s")
    assert [each.how for each in sweep(variants(table), tmp_path / "s")] == ["kept", "kept"]


def test_a_signal_ends_the_series(table: dict[str, Any], tmp_path: Path) -> None:
    @contextmanager
    def watch(session: Session) -> Iterator[Any]:
        yield lambda report: signal.raise_signal(signal.SIGTERM) if "loss" in report.values else None

    with pytest.raises(Interrupted, match="stopped at step 1 of 3"):
        sweep(variants(table), tmp_path / "s", watch=watch)
    assert not (tmp_path / "s-learning_rate=0.01").exists()


def test_a_run_that_diverges_does_not_stop_the_others(table: dict[str, Any], tmp_path: Path) -> None:
    table["train"] |= {"learning_rate": [1e30, 1e-3], "optimizer": "adamw", "warmup": 0}
    bad, good = sweep(variants(table), tmp_path / "s")
    assert (bad.how, bad.loss, good.how) == ("diverged", None, "trained")
    assert bad.problem is not None
    assert "Training stopped" in bad.problem
    assert good.loss is not None
    assert statistics_by_variant([bad, good]) == [({"train.learning_rate": 1e-3}, SeedStatistics(1, good.loss))]


def test_decisions_of_the_first_run_hold_for_all(table: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    """However fast the machine is measured to be for the others: their steps are equal, also after a kill."""
    rates = iter([1e4, 5e4, 9e4, 2e4, 3e4, 7e4])
    module = import_module("heddle.runs.plan")
    monkeypatch.setattr(module, "measure", lambda *args, **settings: next(rates))
    monkeypatch.setattr(import_module("heddle.runs.sweep"), "Trainer", Still)
    table["train"] |= {"steps": None, "minutes": 0.01, "batch": [4, 8]}
    names = [each.run for each in sweep(variants(table), tmp_path / "s")]
    chosen = {run.name[2:]: json.loads((run / "config.json").read_text())["chosen"]["steps"] for run in names}
    assert chosen["batch=4,learning_rate=0.001"] == chosen["batch=4,learning_rate=0.01"]
    assert chosen["batch=8,learning_rate=0.001"] != chosen["batch=4,learning_rate=0.001"]
    shutil.rmtree(names[-1])
    table["train"]["batch"].reverse()  # another run comes first now
    sweep(variants(table), tmp_path / "s")


class Still:
    """A trainer that leaves a run as it is."""

    def __init__(self, run: Path) -> None:
        self.session, self.readers = None, []

    def run(self) -> Any:
        return Member(Path(), {}, "trained", 1.0)


def test_impossible_runs_are_refused_before_any_is_trained(table: dict[str, Any], tmp_path: Path) -> None:
    table["model"] = {**SIZES, "heads": [2, 3]}
    with pytest.raises(HeddleError, match="heads"):
        sweep(variants(table), tmp_path / "s")
    (tmp_path / "t-seed1").mkdir()
    table["model"] = SIZES
    table["train"]["learning_rate"] = 1e-3
    with pytest.raises(HeddleError, match="t-seed1 exists and is not a run"):
        sweep(variants(table, seeds=2), tmp_path / "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "t-seed1"]


def test_a_text_of_other_settings_is_not_shared(table: dict[str, Any], tmp_path: Path) -> None:
    table["train"]["learning_rate"] = 1e-3
    prepare(RunConfig.of(table), tmp_path / "a")
    table["data"]["validation"] = 0.3
    lines: list[str] = []
    prepare(RunConfig.of(table), tmp_path / "b", lines.append, texts_of=[tmp_path / "a"])
    assert "cutting the text into tokens" in lines
    assert any("held out for validation: 30" in line for line in lines)


# Abramowitz and Stegun 1964, table 26.10, for 1 - A = 0.05.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize("freedom", QUANTILES)
def test_quantiles_are_those_of_the_tables(freedom: int) -> None:
    assert quantile(freedom) == pytest.approx(QUANTILES[freedom], abs=5e-4)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_the_interval_contains_the_mean_in_95_percent_of_series(runs: int) -> None:
    draws = np.random.default_rng(runs).normal(3.0, 0.25, size=(40000, runs))
    half = quantile(runs - 1) * draws.std(1, ddof=1) / runs**0.5
    assert np.mean(np.abs(draws.mean(1) - 3.0) < half) == pytest.approx(0.95, abs=0.004)
    statistics = seed_statistics(draws[0].tolist())
    assert (statistics.runs, statistics.mean, statistics.deviation) == pytest.approx(
        (runs, draws[0].mean(), draws[0].std(ddof=1))
    )
    assert (statistics.low, statistics.high) == pytest.approx((statistics.mean - half[0], statistics.mean + half[0]))


def test_seeds_are_put_together() -> None:
    losses = {(1e-3, 0): 3.0, (1e-3, 1): 4.0, (2e-3, 0): 2.0, (2e-3, 1): None}
    outcomes = [
        Member(Path(), {"train.learning_rate": rate, "train.seed": seed}, "trained", loss)
        for (rate, seed), loss in losses.items()
    ]
    (one, first), (two, second) = statistics_by_variant(outcomes)
    assert (one, two) == ({"train.learning_rate": 1e-3}, {"train.learning_rate": 2e-3})
    assert (first.runs, first.mean, first.deviation) == (2, 3.5, pytest.approx(0.5**0.5))
    assert second == SeedStatistics(1, 2.0)
