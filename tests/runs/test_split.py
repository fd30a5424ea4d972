"""How a step is split so that it fits a card: every laptop preset and GPT-2 on cards of four sizes, none of which is here."""

import json
from collections.abc import Callable
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from heddle.account import saved_activations, states
from heddle.account.forward import kernels_by_device
from heddle.account.memory import SavedActivations
from heddle.config import TransformerConfig, preset
from heddle.config.model import LanguageHeadConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.presets import preset_names
from heddle.config.run import RunConfig
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError
from heddle.model.device import GPU_LOGITS_BYTES
from heddle.model.precision import DTYPES
from heddle.runs import prepare
from heddle.runs.need import Need
from heddle.runs.split import ROOM, first_fitting, splits
from heddle.train.sizes import TOKENS_PER_STEP
from tests.cards import CARDS, GIB, SMALL, Card, put_in

memory = import_module("heddle.account.memory")  # the package has a function of that name
need = import_module("heddle.runs.need")
Make = Callable[..., RunConfig]
PRESETS = [name for name in preset_names() if name.startswith(("laptop-", "gpt2-"))]
# The state of the optimizer and the weights alone are larger than these cards, or leave less than a tenth of them.
TOO_LARGE = {("gpt2-large", 8), ("gpt2-xl", 8), ("gpt2-xl", 16), ("gpt2-xl", 24)}


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass saves is measured once for each of its settings."""
    measured: dict[str, SavedActivations] = {}

    def saved(*settings: Any, **more: Any) -> SavedActivations:
        key = repr((settings, more))
        if key not in measured:
            measured[key] = saved_activations(*settings, **more)
        return measured[key]

    monkeypatch.setattr(memory, "saved_activations", saved)


def accounted(model: TransformerConfig, rows: int, precision: str, train: TrainConfig) -> int:
    """What the accounts count: persistent state, then the larger of the two ends of a backward pass."""
    state = states(model, train.optimizer, precision)
    kernel = kernels_by_device(model, model.context).get("cuda", "none")
    checkpointed = train.checkpoint_activations
    saved = memory.saved_activations(model, rows, model.context, precision, kernel, checkpointed=checkpointed).bytes
    table, tokens = 4 * model.table_rows() * model.dim, rows * model.context
    loss = tokens * model.dim * {"fp32": 4, "bf16": 2}[precision] + table
    if isinstance(model.head, LanguageHeadConfig):
        loss += table + 4 * min(4 * tokens * model.table_rows(), GPU_LOGITS_BYTES)
    earlier = state.weights if train.accumulate > 1 else 0  # a gradient in fp32 for each weight
    return state.weights + state.copy + state.moments + max(earlier + saved + loss, state.gradients)


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_the_cards_that_hold_its_state(name: str) -> None:
    model = preset(name)
    rows = round(TOKENS_PER_STEP["cuda"] / model.context)
    ways = splits(RunConfig(), rows, "cuda")
    needs: dict[tuple[int, bool, str], int] = {}

    def needed(train: TrainConfig, precision: str) -> int:
        key = (train.accumulate, train.checkpoint_activations, precision)
        if key not in needs:
            shape = (ceil(rows / train.accumulate), model.context)
            needs[key] = Need((shape,), 1.0).bytes(model, precision, train, "cuda")
        return needs[key]

    before = (0, False)
    for card in reversed(CARDS):
        precision = "bf16" if card.capability >= (8, 0) else "fp32"
        train = first_fitting(ways, lambda train, precision=precision: needed(train, precision), card.gib * GIB)
        chosen = (train.accumulate, train.checkpoint_activations)
        fits = needed(train, precision) <= ROOM * card.gib * GIB
        assert fits == ((name, card.gib) not in TOO_LARGE), (card.name, chosen, needed(train, precision) / GIB)
        if not fits:
            assert train == ways[-1]
        if precision == "bf16":
            assert chosen[::-1] >= before[::-1], "a smaller card has larger micro-batches"
            before = chosen
        assert needed(train, precision) == accounted(model, ceil(rows / train.accumulate), precision, train)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "gib", "optimizer", "state"),
    [
        ("gpt2-large", 8, "muon", "8.9"),
        ("gpt2-xl", 8, "muon", "17.7"),
        ("gpt2-xl", 16, "muon", "17.7"),
        ("gpt2-xl", 16, "adamw", "23.2"),
        ("gpt2-xl", 24, "adamw", ""),  # fp32 alone leaves a tenth of a GiB
    ],
)
def test_no_split_helps_where_the_state_is_too_large(
    monkeypatch: pytest.MonkeyPatch, name: str, gib: int, optimizer: str, state: str
) -> None:
    """Whatever the precision: the smaller of both is named."""
    model, train = (
        preset(name),
        TrainConfig.of({"optimizer": optimizer, "accumulate": 8, "checkpoint_activations": True}),
    )
    for which in ("available_memory", "total_memory"):
        monkeypatch.setattr(need, which, lambda device: gib * GIB)
    needs = (Need(((1, model.context),), 1.0).bytes(model, precision, train, "cuda") for precision in DTYPES)
    with pytest.raises(HeddleError) as refused:
        need.check_memory(needs, need.states(model, DTYPES, train), "cuda", split=True)
    assert str(refused.value).startswith(
        f"the weights, gradients and optimizer state alone need {state} GiB, but only {gib}.0 GiB are free: use a smaller model, "
        "adapters, or another optimizer"
        if state
        else "training needs about "
    )


def test_the_ways_are_divisors_then_checkpointed() -> None:
    """What the settings say is kept, and elsewhere than on CUDA it is the only way."""

    def ways(rows: int, device: str = "cuda", **train: object) -> list[tuple[int, bool]]:
        config = RunConfig.of({"train": train, "data": {"layout": "concatenate"}})
        return [(way.accumulate, way.checkpoint_activations) for way in splits(config, rows, device)]

    assert ways(6) == [(1, False), (2, False), (3, False), (6, False), (1, True), (2, True), (3, True), (6, True)]
    assert ways(7, accumulate=7, batch=7) == [(7, False), (7, True)]
    assert ways(3, checkpoint_activations=True) == [(1, True), (3, True)]
    assert ways(6, "cpu") == [(1, False)]
    documents = RunConfig.of({"data": {"layout": "documents"}})
    assert [way.accumulate for way in splits(documents, 32, "cuda")] == [1, 2, 4, 1, 2, 4]  # of eight rows or more


@pytest.mark.parametrize(
    ("there", "expected"), [(120, (1, False)), (60, (2, False)), (15, (8, False)), (9, (4, True)), (1, (8, True))]
)
def test_the_first_way_that_leaves_room_is_taken(there: int, expected: tuple[int, bool]) -> None:
    ways = splits(RunConfig(), 8, "cuda")
    chosen = first_fitting(ways, lambda way: 100 // way.accumulate // (3 if way.checkpoint_activations else 1), there)
    assert (chosen.accumulate, chosen.checkpoint_activations) == expected


@pytest.fixture
def small_card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """With a hundredth of its memory free."""
    put_in(SMALL, monkeypatch)
    for module in ("need", "split", "plan"):
        monkeypatch.setattr(import_module(f"heddle.runs.{module}"), "available_memory", lambda device: 8 * GIB // 100)
    return SMALL


@pytest.mark.usefixtures("quick")
class TestPlans:
    def test_a_batch_that_does_not_fit_is_split_and_the_plan_says_it(
        self, small_card: Card, config: Make, tmp_path: Path
    ) -> None:
        planned = prepare(config(batch=4096, device="cuda"), tmp_path / "run")
        assert planned.chosen.batch == 4096
        assert 1 < planned.train.accumulate < 4096
        assert planned.memory <= ROOM * 8 * GIB / 100
        describe_plan = import_module("heddle.runs.plan_text").describe_plan
        line = f"accumulate={planned.train.accumulate}, since a step would need "
        assert [line in each for each in describe_plan(planned, tmp_path).splitlines()].count(True) == 1
        assert (
            json.loads((tmp_path / "run" / "config.json").read_text())["train"]["accumulate"]
            == planned.train.accumulate
        )

    def test_what_fits_is_not_split(self, small_card: Card, config: Make, tmp_path: Path) -> None:
        planned = prepare(config(batch=4, device="cuda"), tmp_path / "run")
        assert (planned.train.accumulate, planned.split) == (1, "")

    def test_a_split_that_is_asked_for_is_kept(self, small_card: Card, config: Make, tmp_path: Path) -> None:
        planned = prepare(config(batch=4096, accumulate=512, device="cuda"), tmp_path / "run")
        assert (planned.train.accumulate, planned.split) == (512, "")

    def test_cards_share_a_step(self, small_card: Card, config: Make, tmp_path: Path) -> None:
        """With as many cards as micro-batches were needed, none is."""
        alone = prepare(config(batch=4096, device="cuda"), tmp_path / "alone").train.accumulate
        assert prepare(config(batch=4096, device="cuda"), tmp_path / "all", ranks=alone).train.accumulate == 1

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ({"dim": 704, "context": 256}, "micro-batches are as small as they can be, so use a smaller context or"),
            ({"dim": 2048, "heads": 2}, "optimizer state alone need .*, or use a smaller model, adapters, or another"),
        ],
    )
    def test_a_model_that_fits_in_no_way_is_refused(
        self, small_card: Card, config: Make, tmp_path: Path, model: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(HeddleError, match=message):
            prepare(config(model=model, device="cuda"), tmp_path / "run")

    def test_a_cpu_splits_nothing(self, config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("heddle.runs.need.available_memory", lambda device: 2**26)
        with pytest.raises(HeddleError, match="use a larger accumulate, checkpoint_activations=true"):
            prepare(config(batch=4096), tmp_path / "run")


@pytest.mark.usefixtures("quick")
def test_cards_hold_together_what_none_holds_alone(
    small_card: Card, config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps cannot be measured on one of them, so their rate is that of products. Copies of the whole are refused."""
    big: dict[str, Any] = {"model": {"dim": 1024, "heads": 2}, "batch": 16, "device": "cuda"}
    with pytest.raises(HeddleError, match="optimizer state alone need"):
        prepare(config(**big), tmp_path / "alone")
    copies = config(**big).model_copy(update={"parallel": ParallelConfig(replicate=16)})
    with pytest.raises(HeddleError, match="optimizer state alone need"):
        prepare(copies, tmp_path / "copies", ranks=16)
    monkeypatch.setattr(import_module("heddle.runs.plan"), "measure", None)
    planned = prepare(config(**big), tmp_path / "parts", ranks=16)
    assert planned.memory <= ROOM * 8 * GIB / 100
    assert planned.chosen.tokens_per_second == pytest.approx(16 * 0.4 * 1e10 / (6 * planned.parameters))
