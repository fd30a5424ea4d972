"""The benchmark: ceilings, then training, then decoding; contenders take turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch

from heddle.account.flops import flops
from heddle.account.machine import available_memory
from heddle.account.memory import cache_size, parameter_bytes, training_bytes
from heddle.account.parameters import parameter_count
from heddle.bench.decoding import DECODERS, Decoder, DecodingJob
from heddle.bench.hugging_face import installed
from heddle.bench.machine import ceilings, describe, pick_precision
from heddle.bench.models import MODELS, Sizes, model_of, sizes_for
from heddle.bench.report import Bench, Ceiling, Rounds, Speed
from heddle.bench.timing import (
    OUT_OF_MEMORY,
    Problem,
    Work,
    attempt,
    forget,
    growth,
    held,
    move,
    release,
    seconds_of,
    steps_within,
    take_turns,
)
from heddle.bench.training import TRAIN, TRAINERS, TrainingJob
from heddle.checks import SOME, at_least, checked, one_of
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.errors import HeddleError, did_you_mean, pluralize
from heddle.model.device import find_device
from heddle.model.precision import DTYPES
from heddle.train.rates import pick_threads
from heddle.train.runtime import keep_memory

PARTS = ("ceilings", "training", "decoding")
USABLE = 0.9  # share of the free memory that a training may fill by heddle's account
Item = TypeVar("Item")


@checked(models=SOME, parts=SOME, precision=one_of(("auto", *DTYPES)), rounds=at_least(1))
def bench(
    device: torch.device | str = "auto",
    parts: Sequence[str] = PARTS,
    models: Sequence[str] | None = None,
    precision: str = "auto",
    rounds: int | None = None,
    quick: bool = False,
    tell: Callable[[str], None] | None = None,
    save: Callable[[Bench], None] | None = None,
) -> Bench:
    """Measure a device's ceilings, and how fast heddle trains and decodes on it beside other programs.

    Each contender computes with a model of the same shape: heddle as its commands run it, heddle's model in a plain compiled loop,
    and Hugging Face transformers if it is installed. They take turns, round after round. Smaller models are measured first.

    Args:
        device: as in `heddle.model.build`.
        parts: of `ceilings`, `training` and `decoding`. Ceilings are always measured, since the others are shares of them.
        models: names of `heddle.bench.MODELS`, presets, runs or model configs; None: those that suit the device.
        precision: `fp32`, `bf16`, or `auto`: bf16 where the device has units for it.
        rounds: turns of each contender; None: as suits the device.
        quick: fewer and smaller measurements, and no contender that compiles.
        tell: called with a line before each piece of work.
        save: called after the ceilings and after each row with what is measured so far, at last with the whole result.

    Raises:
        HeddleError: the device, a part, a model or the precision does not exist here.
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise HeddleError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}.{did_you_mean(unknown[0], PARTS)}")
    place = find_device(device)
    sizes = sizes_for(place.type, quick, models=None if models is None else tuple(models), rounds=rounds)
    configs = [model_of(name) for name in sizes.models]
    tell = tell or (lambda line: None)
    if place.type == "cpu":
        torch.set_num_threads(pick_threads(None))
        keep_memory()
    precision = pick_precision(precision, place)
    tell("ceilings")
    run = Run(place, precision, sizes, ceilings(place, quick), tell)
    settings = {"device": str(place), "precision": run.precision, **vars(sizes)}
    remaining = tuple(left_out(sizes, parts, models is None))
    result = Bench(describe(place), settings, run.ceilings, left_out=remaining)
    save = save or (lambda result: None)
    save(result)
    for part, row in run.rows(configs, parts):
        more: dict[str, Any] = {part: (*getattr(result, part), row)}
        result = replace(result, **more)
        save(result)
    result = replace(result, complete=True)
    save(result)
    return result


@dataclass(frozen=True)
class Prepared:
    """A contender that has warmed up.

    Attributes:
        rows: that it computes at once.
        seconds: of a step, to choose how many steps a turn has.
        memory: bytes; see `Speed.measured`.
    """

    work: Work
    rows: int
    seconds: float
    memory: int | None


@dataclass(frozen=True)
class Run:
    """What is measured, and on which device."""

    device: torch.device
    precision: str
    sizes: Sizes
    ceilings: tuple[Ceiling, ...]
    tell: Callable[[str], None]

    def rows(
        self, configs: Sequence[tuple[str, TransformerConfig]], parts: Sequence[str]
    ) -> Iterator[tuple[str, Speed]]:
        """The part and the row of each contender, smaller models first."""
        measures = {"training": self.train, "decoding": self.decode}
        for name, config in sorted(configs, key=lambda each: parameter_count(each[1])):
            for part, measure in measures.items():
                if part in parts:
                    yield from ((part, row) for row in measure(name, config))

    @property
    def kind(self) -> str:
        """The kind of device that the memory account knows."""
        return "cuda" if self.device.type == "cuda" else "cpu"

    def train(self, name: str, config: TransformerConfig) -> Iterator[Speed]:
        """A row for each training contender of a model."""
        length = min(self.sizes.length, config.context)
        job, rows = TrainingJob(config, self.device, self.precision, length), self._rows(config, length)
        park = self.device.type != "cpu"
        prepared: dict[str, Prepared | Problem] = {}
        for contender, make in contenders(TRAINERS, self.sizes).items():
            self.tell(f"training {name}, {contender}: first steps")
            prepared[contender] = self._fitting(partial(make, job), rows, park)
        per_token = flops(config, 1, length).training / length
        for row in self._race(f"training {name}", prepared, Speed(name, "", rows, length), park):
            predicted = training_bytes(config, row.rows, self.precision, TRAIN, length, device=self.kind)
            yield self._completed(row, self.precision, per_token, predicted)
        prepared.clear()
        forget(self.device)

    def decode(self, name: str, config: TransformerConfig) -> Iterator[Speed]:
        """A row for each number of rows and decoding contender of a model."""
        sizes = self.sizes
        tokens = min(sizes.tokens, config.context // 2)
        job = DecodingJob(config, self.device, self.precision, tokens)
        weights = parameter_bytes(config, self.precision)
        head = config.head
        untied = isinstance(head, LanguageHeadConfig) and not head.tied
        read = weights - untied * config.table_rows() * config.dim * DTYPES[self.precision].itemsize
        models: dict[str, Decoder | Problem] = {}
        for contender, make in contenders(DECODERS, sizes).items():
            self.tell(f"decoding {name}, {contender}: weights")
            models[contender] = attempt(partial(make, job))
        for rows in sizes.batches:
            prepared: dict[str, Prepared | Problem] = {}
            what = f"decoding {name}, {pluralize(rows, 'row')}"
            for contender, decoder in models.items():
                self.tell(f"{what}, {contender}: first call")
                prepared[contender] = decoder if isinstance(decoder, Problem) else self._prepared(decoder, rows)
            predicted = weights + cache_size(config, rows, 2 * tokens, self.precision).held
            for row in self._race(what, prepared, Speed(name, "", rows, tokens)):
                yield self._completed(row, "copy", read / rows, predicted)
        models.clear()
        forget(self.device)

    def _rows(self, config: TransformerConfig, length: int) -> int:
        """Rows of a training step: as many as heddle's account says fit, halving from the most."""
        rows, free = self.sizes.rows, USABLE * available_memory(self.device)
        while rows > 1 and training_bytes(config, rows, self.precision, TRAIN, length, device=self.kind) > free:
            rows //= 2
        return rows

    def _fitting(self, make: Callable[[int], Work], rows: int, park: bool) -> Prepared | Problem:
        """A contender with this many rows, or with the half, the quarter and so on, if they fill the memory."""
        prepared = self._prepared(make, rows, park)
        while rows > 1 and prepared == Problem(OUT_OF_MEMORY):
            rows //= 2
            prepared = self._prepared(make, rows, park)
        return prepared

    def _prepared(self, make: Callable[[int], Work], rows: int, park: bool = False) -> Prepared | Problem:
        """A contender after its first steps, which compile; parked, its tensors are not on the device."""

        def prepare() -> Prepared:
            work = make(rows)
            work.step()
            one = seconds_of(work, self.device)
            release(self.device)
            grown = growth(work.step, self.device)
            memory = None if grown is None else held(work) + grown
            if park:
                self._park(work)
            return Prepared(work, rows, one, memory)

        prepared = attempt(prepare)
        release(self.device)
        return prepared

    def _park(self, work: Work) -> None:
        """Move a contender's tensors to the host's memory, if they fit there."""
        if held(work) > USABLE * available_memory():
            raise HeddleError("the host's memory is full of other contenders")
        move(work, torch.device("cpu"))

    def _race(
        self, what: str, prepared: Mapping[str, Prepared | Problem], case: Speed, park: bool = False
    ) -> list[Speed]:
        """A row for each contender."""
        self.tell(f"{what}: {pluralize(self.sizes.rounds, 'round')}")
        ready = {name: each for name, each in prepared.items() if isinstance(each, Prepared)}
        steps = {name: steps_within(self.sizes.seconds, each.seconds) for name, each in ready.items()}
        works = {name: each.work for name, each in ready.items()}
        taken = take_turns(works, steps, self.sizes.rounds, self.device, park)
        # Seconds of a token, since contenders may have different numbers of rows.
        seconds = {
            name: [each / (ready[name].rows * case.tokens) for each in times]
            for name, times in taken.items()
            if not isinstance(times, Problem)
        }
        own = [times for name, times in seconds.items() if name.startswith("heddle")]
        fastest = min(own, key=median, default=None)
        rows = []
        for name, each in prepared.items():
            times = taken[name] if isinstance(each, Prepared) else each
            row = replace(case, contender=name)
            if isinstance(each, Prepared) and not isinstance(times, Problem):
                row = replace(row, rows=each.rows, parameters=each.work.parameters, measured=each.memory)
                rate = Rounds.of([1 / each for each in seconds[name]])
                ratios = [a / b for a, b in zip(seconds[name], fastest or (), strict=fastest is not None)]
                row = replace(row, rate=rate, times_heddle=Rounds.of(ratios) if ratios else None)
            elif isinstance(times, Problem):
                row = replace(row, problem=times.text)
            self.tell(f"  {name}: {row.speed()}")
            rows.append(row)
        return rows

    def _completed(self, row: Speed, ceiling: str, per_token: float, predicted: int) -> Speed:
        """A row with its share of a ceiling, by FLOPs or bytes of a token, and heddle's own with the predicted memory."""
        if row.rate is None:
            return row
        rate = next(each.rate for each in self.ceilings if each.what == ceiling)
        own = row.contender.startswith("heddle")
        return replace(row, share=row.rate.median * per_token / rate, predicted=predicted if own else None)


def contenders(table: Mapping[str, Item], sizes: Sizes) -> dict[str, Item]:
    """Those that take part: without compilers in quick measurements, without other libraries where they are not installed."""
    return {
        name: make
        for name, make in table.items()
        if (sizes.compiled or not name.endswith("compiled")) and (installed() or not name.startswith("transformers"))
    }


def left_out(sizes: Sizes, parts: Sequence[str], usual: bool) -> Iterator[str]:
    """What was not measured, and how to have it."""
    others = [name for name in MODELS if name not in sizes.models]
    if usual and others:
        yield f"{', '.join(others)} (--model NAME)"
    if not sizes.compiled:
        yield "contenders that compile (without --quick)"
    if not installed():
        yield "transformers (pip install transformers)"
    if missing := [part for part in PARTS if part not in parts and part != "ceilings"]:
        yield f"{' and '.join(missing)} (--only)"
