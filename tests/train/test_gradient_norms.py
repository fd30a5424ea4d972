"""Norms of the gradient by layer, and how the experts were used: in every line of the metrics."""

import json
import re
from collections import Counter
from math import sqrt

import numpy as np
import pytest
import torch

from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.roles import layer_of
from heddle.runs import Trainer
from heddle.runs.journal import read_lines, read_speed
from heddle.train import Report
from heddle.train.expert_load import entropy, load_statistics
from heddle.train.gradient_norms import GradientNorms
from tests.running import Begin

SMALL = {"vocab_size": 41, "dim": 16, "context": 8}
BOTH = {f"{stack}.{key}": value for stack in ("encoder", "decoder") for key, value in
        {"depth": 2, "block.mixer.heads": 2, "block.mixer.head_dim": 8, "block.ffn.hidden": 24}.items()}  # fmt: skip
EXPERTS = {"kind": "moe", "experts": 4, "active": 1, "expert": {"kind": "mlp", "hidden": 4}}


def test_layers_have_the_norms_of_their_parameters() -> None:
    """Every parameter is in one layer; numpy computes the norms of all of a layer's numbers in float64."""
    config: TransformerConfig = preset("t5-small").override({**SMALL, **BOTH})
    parameters = dict(build(config).named_parameters())
    for number, each in enumerate(parameters.values()):
        each.grad = torch.randn(each.shape, generator=torch.Generator().manual_seed(number)) * 10.0 ** (number % 5 - 2)
    norms = GradientNorms.of(parameters)
    by_layer = norms.by_layer()
    numbers: dict[str, list[float]] = {}
    for name, each in parameters.items():
        block = re.match(r"(encoder|decoder)\.blocks\.(\d+)\.", name)
        layer = f"{block[1]}.{block[2]}" if block else name.removesuffix(".weight").removesuffix(".0")
        numbers.setdefault(layer, []).extend(each.grad.double().flatten().tolist())
    assert {"encoder.0", "encoder.1", "decoder.0", "decoder.1", "embedding"} < by_layer.keys()
    assert by_layer == {layer: pytest.approx(np.linalg.norm(values), rel=1e-6) for layer, values in numbers.items()}
    total = torch.nn.utils.get_total_norm([each.grad for each in parameters.values()])
    assert torch.equal(norms.total(), total)


def test_a_parameter_without_a_gradient_counts_nowhere() -> None:
    one, none = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2))
    one.grad = torch.tensor([3.0, 0.0, 4.0])
    assert GradientNorms.of({"head.weight": one, "embedding.weight": none}).by_layer() == {"head": 5.0}
    empty = GradientNorms.of({"embedding.weight": none})
    assert (empty.total().item(), empty.by_layer()) == (0.0, {})


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("decoder.blocks.11.mixer.q.weight", "decoder.11"),
        ("encoder.blocks.0.ffn", "encoder.0"),
        ("decoder.entry.positions.weight", "decoder.entry"),
        ("encoder.relative.0.weight", "encoder.relative"),
        ("source_embedding.weight", "source_embedding"),
        ("head.dense.bias", "head"),
        ("decoder", "decoder"),
    ],
)
def test_names_of_layers(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_every_step_has_its_norms(begin: Begin) -> None:
    """The squares of the layers' norms add up to the square of the whole gradient's, as it was before clipping."""
    run = begin(steps=4, evaluate_every=4, model={"depth": 2}, clip=1e-3)
    Trainer(run).run()
    steps = [line for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    assert len(steps) == 4
    for line in steps:
        layers = {key.partition("/")[2]: value for key, value in line.items() if key.startswith("gradient_norm/")}
        assert layers.keys() == {"embedding", "decoder.0", "decoder.1", "decoder.final_norm"}
        assert sqrt(sum(value**2 for value in layers.values())) == pytest.approx(line["gradient_norm"], rel=1e-6)
        assert line["gradient_norm"] > 1e-2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_step_has_its_loads(begin: Begin, accumulate: int) -> None:
    """Choices are counted by a hook on the routers; entropies are computed again with numpy."""
    run = begin(steps=3, accumulate=accumulate, model={"depth": 2, "decoder": {"block": {"ffn": EXPERTS}}})
    trainer = Trainer(run)
    choices: list[Counter[int]] = [Counter(), Counter()]
    reports: list[tuple[Report, list[list[int]]]] = []

    def step_over(report: Report) -> None:
        if "loss" in report.values:
            reports.append((report, [[count[expert] for expert in range(4)] for count in choices]))
        for count in choices:
            count.clear()

    for block, count in zip(trainer.session.model.decoder.blocks, choices, strict=True):
        block.ffn.router.register_forward_hook(
            lambda module, inputs, out, count=count: count.update(out[1].flatten().tolist())
        )
    trainer.readers.append(step_over)
    trainer.run()
    lines = [line for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    for line, (report, counts) in zip(lines, reports, strict=True):
        assert sum(counts[0]) == 4 * 16
        assert dict(report.loads) == {"decoder.0": counts[0], "decoder.1": counts[1]}
        entropies = []
        for layer, tokens in enumerate(counts):
            shares = np.array([each for each in tokens if each]) / sum(tokens)
            entropies.append(-(shares * np.log(shares)).sum() / np.log(4))
            assert line[f"expert_load/decoder.{layer}"] == tokens
            assert line[f"expert_entropy/decoder.{layer}"] == pytest.approx(entropies[-1], abs=1e-12)
            assert line[f"dead_experts/decoder.{layer}"] == tokens.count(0)
        assert line["expert_entropy"] == pytest.approx(np.mean(entropies))
        assert line["dead_experts"] == sum(tokens.count(0) for tokens in counts)


@pytest.mark.parametrize(
    ("load", "expected"),
    [([5, 5, 5], 1.0), ([0, 7, 0], 0.0), ([1, 1, 0, 0], 0.5), ([0, 0], 0.0), ([3], 1.0), ([], 0.0)],
)
def test_entropy(load: list[int], expected: float) -> None:
    assert entropy(load) == pytest.approx(expected)


def test_statistics_of_no_experts_are_none() -> None:
    assert load_statistics({}) == {}
    assert load_statistics({"decoder.0": [0, 4], "decoder.1": [1, 3]})["dead_experts"] == 1
    with pytest.raises(HeddleError, match="loads"):
        load_statistics([1, 2])  # type: ignore[arg-type]


def test_the_time_of_steps_is_beside_the_metrics(begin: Begin) -> None:
    """It adds up over the parts of a run, and does not count again what a killed run repeats."""
    run = begin(steps=4, evaluate_every=2)
    trainer = Trainer(run)
    reports: list[Report] = []
    trainer.readers += [reports.append, lambda report: trainer.stop.set() if report.step == 2 else None]
    with pytest.raises(Exception, match="stopped at step 2"):
        trainer.run()
    totals = lambda name: pytest.approx(sum(each.speed.get(name, 0.0) for each in reports))  # noqa: E731
    assert read_speed(run) == (2 * 4 * 16, totals("seconds"), totals("data_seconds"))
    Trainer(run, [reports.append]).run()
    assert read_speed(run) == (4 * 4 * 16, totals("seconds"), totals("data_seconds"))
    speed = json.loads((run / "speed.json").read_bytes())
    assert 0 < speed["data_seconds"] < speed["seconds"]
    (run / "speed.json").write_text(json.dumps({"tokens": 1, "seconds": 2}))
    assert read_speed(run) == (1, 2, 0), "of an earlier version"
    (run / "speed.json").write_text(json.dumps({"tokens": "many"}))
    assert read_speed(run) == (0.0, 0.0, 0.0)
