"""Planning a run: choose sizes by this machine's measured rate, state what will happen, and refuse what cannot work."""

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from heddle.account.machine import available_memory, peak_rate
from heddle.account.parameters import parameters
from heddle.account.trained import Trained, trained
from heddle.checks import checked
from heddle.config.cut import describe_cut
from heddle.config.model import TransformerConfig
from heddle.config.run import RunConfig
from heddle.config.saved import Chosen, TakenVectors
from heddle.config.train import MINUTES, ProductKind, TrainConfig
from heddle.convert.heads import Exported, exported
from heddle.data.record_store import Store
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.checkpointing import can_compile
from heddle.model.device import has_compiler
from heddle.model.precision import DTYPES
from heddle.runs.need import held_by_process
from heddle.runs.resolve import DEPTHS, Resolved
from heddle.runs.split import Step, describe_split
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec
from heddle.text.tokenizer import Tokenizer
from heddle.train.length import SAVING, SHARE, Evaluations, requested_steps, steps_within, warmup_of
from heddle.train.model_selection import check_outcome
from heddle.train.rates import cards, measure, pick_products, pick_threads
from heddle.train.runtime import keep_memory
from heddle.train.schedule import usual

TOKENS_PER_PARAMETER = 2.5  # without a depth, choose the largest model that sees at least this many in the given time
USUAL = 0.4  # share of the products' peak that training reaches, for a model that one device cannot hold to be measured
WORTH_COMPILING = 20.0  # minutes of training below which compilation does not pay off


@displayed(".model, .chosen")
@dataclass(frozen=True)
class Plan:
    """What a run will do, in numbers.

    Attributes:
        model: the model.
        train: the settings of training, split so that a step fits the device.
        chosen: what was decided by measurement.
        train_tokens: tokens of the text, or of all texts of the records, to train on.
        validation_tokens: the same of what is held out.
        tokens_per_step: tokens that a step reads on average, padding and sources included.
        epochs: how many times everything to train on is read.
        parameters: of the model.
        trained: which of them are trained, and what adapters add.
        memory: bytes, the estimated peak.
        minutes: how long it will take, estimated.
        exported: what the export of the trained model will be.
        split: how a step was split, and why, in words; empty if as the settings say.
        cut: what is left of the model to start from, in words; empty if it is whole.
        remarks: what the task says about its data.
    """

    model: TransformerConfig
    train: TrainConfig
    chosen: Chosen
    train_tokens: int
    validation_tokens: int
    tokens_per_step: int
    epochs: float
    parameters: int
    trained: Trained
    memory: int  # bytes, estimated peak
    minutes: float  # estimated
    exported: Exported
    split: str = ""
    cut: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "parameters": self.parameters,
            "frozen": self.trained.frozen,
            "adapters": self.trained.adapters,
            "train_tokens": self.train_tokens,
            "validation_tokens": self.validation_tokens,
            "memory": self.memory,
            "minutes": self.minutes,
            "epochs": self.epochs,
            "export": asdict(self.exported),
            "accumulate": self.train.accumulate,
            "checkpoint_activations": self.train.checkpoint_activations,
            "split": self.split,
            "cut": list(self.cut),
            "model": self.model.to_dict(),
            "chosen": self.chosen.to_dict(),
        }


@checked()
def plan(
    resolved: Resolved, store: Store, tokenizer: Tokenizer, vectors: TakenVectors | None = None, ranks: int = 1
) -> Plan:
    """Decide everything that settings leave open, by measurement where speed decides.

    Args:
        resolved: the settings, as `heddle.runs.resolve` returns them.
        store: the tokens.
        tokenizer: the tokenizer that made them.
        vectors: what was taken from a file of word vectors; stored with the decisions.
        ranks: how many processes will train.

    Raises:
        HeddleError: the request cannot work; one line says what to change.
    """
    config, device = resolved.config, resolved.device.type
    start, ranks = resolved.start, cards(device, ranks)
    threads = pick_threads(config.train.threads)
    torch.set_num_threads(threads)
    keep_memory()
    step = Step.of(resolved, store, tokenizer, ranks)
    precision = step.precision()
    best = _sized(step, precision)
    model, rate, train = best.model, best.rate, best.train
    changed = trained(model, train)  # refuses groups and adapters that do not fit
    task = make_task(config.task, replace(step.task(train.accumulate).spec, model=model))
    steps = requested_steps(train, task) or steps_within(
        60 * (train.minutes or MINUTES), rate, task, train.evaluate_every, ranks
    )
    evaluations = Evaluations(task, steps, train.evaluate_every, ranks)
    per_step = evaluations.size.tokens
    compile_ = _compile(
        config.model_copy(update={"train": train}), step.own(model, train), best, device, precision, steps * per_step
    )
    chosen = Chosen.of(
        {
            "device": device,
            "precision": precision,
            "compile": compile_,
            "threads": threads,
            "steps": steps,
            "batch": step.batch,
            "batch_tokens": task.spec.batch_tokens,
            **_pace(train, steps, evaluations.every, model.dim, start is not None),
            "peak": peak_rate(DTYPES[precision], device, train.tf32),
            "tokens_per_second": rate,
            "onednn": () if compile_ else best.by_onednn,  # a compiler makes its own choice
            "vectors": vectors,
        }
    )
    check_outcome(train, chosen)
    return Plan(
        model=model,
        train=train,
        chosen=chosen,
        train_tokens=store.tokens("train"),
        validation_tokens=store.tokens("validation"),
        tokens_per_step=per_step,
        epochs=steps / task.steps_per_epoch(),
        parameters=changed.parameters,
        trained=changed,
        memory=best.memory + held_by_process(device, store, steps * per_step),
        minutes=(steps * per_step + evaluations.tokens()) / rate / 60 / SAVING,
        exported=exported(model, train),
        split=describe_split(config.train, train, step.bytes(model, precision, config.train), available_memory(device)),
        cut=() if start is None else tuple(describe_cut(model, start.base)),
        remarks=tuple(task.remarks()),
    )


def _pace(train: TrainConfig, steps: int, every: int, dim: int, started: bool) -> dict[str, Any]:
    """The rate, the warmup, and how often the run evaluates and saves, where the user leaves them open."""
    defaults = usual(train, started)
    return {
        "learning_rate": train.learning_rate or defaults.rate(train, dim),
        "warmup": warmup_of(train, steps, defaults.warmup),
        "evaluate_every": every,
        "save_every": train.save_every or every,
    }


@dataclass(frozen=True)
class SizeCandidate:
    """A model that may be trained, with its measurements."""

    model: TransformerConfig
    memory: int  # bytes
    by_onednn: tuple[ProductKind, ...]  # products that oneDNN computes
    rate: float  # tokens per second, of all cards
    train: TrainConfig  # the settings, with the way in which a step of it fits
    measured: bool = True  # whether its rate was: one device holds it


def _sized(step: Step, precision: str) -> SizeCandidate:
    """The model, its measured rate and its memory. Without a preset or a depth: the deepest that sees enough tokens in time.

    The rate of a deeper model is predicted from its number of parameters (6 FLOPs per parameter and token), and measured
    before the model is chosen. Larger models use a machine better, so the search repeats until the depth no longer changes.
    """
    resolved, spec = step.resolved, step.spec
    device, train = resolved.device.type, resolved.config.train

    @cache  # the search comes back to a depth, and estimating a memory takes long
    def sized(depth: int) -> tuple[TransformerConfig, TrainConfig, int]:
        model = resolved.model(spec.model.vocab_size, depth, spec.corpus.classes)
        way = step.fitted(model, precision)
        return model, way, step.bytes(model, precision, way)

    def candidate(model: TransformerConfig, way: TrainConfig, memory: int) -> SizeCandidate:
        part, accumulate = _measured_step(step.own(model, way), way, device)
        by_onednn = pick_products(train.products, model, part.rows * model.context, device, precision)
        settings, measured = step.measurable(model, way), step.fits_alone(model, precision, way)
        if measured:
            rate = measure(part, device, precision, settings, by_onednn, accumulate=accumulate)
        else:
            rate = USUAL * peak_rate(DTYPES[precision], device, train.tf32) / (6 * parameters(model).total)
        return SizeCandidate(model, memory, by_onednn, step.share.devices * rate, way, measured)

    def enough(model: TransformerConfig, rate: float) -> bool:
        time = 60 * (train.minutes or MINUTES)
        return (time * SHARE * rate if tokens is None else tokens) >= TOKENS_PER_PARAMETER * parameters(model).total

    depth = min(DEPTHS)
    model, way, memory = sized(depth)
    step.check(model, [precision], [memory])
    best = candidate(model, way, memory)
    if resolved.has_depth:
        return best
    steps = requested_steps(train, step.task(train.accumulate))
    tokens = None if steps is None else steps * step.batch * spec.model.context
    too_deep = max(DEPTHS) + 1
    while depth + 1 < too_deep:
        speed = best.rate * parameters(best.model).total
        goal = depth
        for deeper in range(depth + 1, too_deep):
            model, _, memory = sized(deeper)
            if memory > available_memory(device) or not enough(model, speed / parameters(model).total):
                break
            goal = deeper
        if goal == depth:
            break
        deeper_one = candidate(*sized(goal))
        if enough(deeper_one.model, deeper_one.rate):
            depth, best = goal, deeper_one
        else:
            too_deep = goal
    return best


def _compile(
    config: RunConfig, spec: DataSpec, candidate: SizeCandidate, device: str, precision: str, tokens: int
) -> bool:
    """Whether to compile: if asked to, or if there is a compiler, enough time, and it was measured to be faster.

    Raises:
        HeddleError: asked to, and the model cannot be compiled with checkpointed activations.
    """
    train = config.train
    if config.parallel.pipeline > 1:
        return False
    if train.checkpoint_activations and not can_compile(build(spec.model, "meta")):
        if train.compile == "on":
            raise HeddleError(
                "compile = on cannot be combined with checkpoint_activations here: a custom module has buffers"
            )
        return False
    if train.compile != "auto":
        return train.compile == "on"
    if (
        not has_compiler()
        or train.products == "onednn"
        or train.deterministic
        or not candidate.measured
        or tokens / candidate.rate / 60 < WORTH_COMPILING
    ):
        return False
    step, accumulate = _measured_step(spec, train, device)
    eager = measure(step, device, precision, config, candidate.by_onednn, accumulate=accumulate)
    return measure(step, device, precision, config, compiled=True, accumulate=accumulate) > 1.03 * eager


def _measured_step(spec: DataSpec, train: TrainConfig, device: str) -> tuple[DataSpec, int]:
    """The step to measure, and its micro-batches: on an accelerator the whole one, since a small one leaves it idle.

    On a CPU, of a long step fewer rows, which saves time and errs on the slow side.
    """
    if device != "cpu":
        return spec, train.accumulate
    return replace(spec, rows=max(1, min(spec.rows // train.accumulate, 4096 // spec.model.context))), 1
