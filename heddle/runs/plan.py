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
from heddle.runs.need import Need, check_memory, check_rows, held_by_process
from heddle.runs.resolve import DEPTHS, Resolved
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec, Task
from heddle.text.tokenizer import Tokenizer
from heddle.train.length import SAVING, SHARE, Evaluations, requested_steps, steps_within, warmup_of
from heddle.train.model_selection import check_outcome
from heddle.train.rates import faster_precision, measurable, measure, pick_products, pick_threads
from heddle.train.runtime import keep_memory
from heddle.train.schedule import usual
from heddle.train.sizes import batch_size, check_tokens, padded_tokens

TOKENS_PER_PARAMETER = 2.5  # without a depth, choose the largest model that sees at least this many in the given time
WORTH_COMPILING = 20.0  # minutes of training below which compilation does not pay off


@displayed(".model, .chosen")
@dataclass(frozen=True)
class Plan:
    """What a run will do, in numbers.

    Attributes:
        model: the model.
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
        cut: what is left of the model to start from, in words; empty if it is whole.
        remarks: what the task says about its data.
    """

    model: TransformerConfig
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
            "cut": list(self.cut),
            "model": self.model.to_dict(),
            "chosen": self.chosen.to_dict(),
        }


@checked()
def plan(resolved: Resolved, store: Store, tokenizer: Tokenizer, vectors: TakenVectors | None = None) -> Plan:
    """Decide everything that settings leave open, by measurement where speed decides.

    Args:
        resolved: the settings, as `heddle.runs.resolve` returns them.
        store: the tokens.
        tokenizer: the tokenizer that made them.
        vectors: what was taken from a file of word vectors; stored with the decisions.

    Raises:
        HeddleError: the request cannot work; one line says what to change.
    """
    config, device = resolved.config, resolved.device.type
    train, start = config.train, resolved.start
    threads = pick_threads(train.threads)
    torch.set_num_threads(threads)
    keep_memory()
    smallest = resolved.model(store.vocab_size, classes=store.corpus.classes)
    spec = DataSpec.of(config.data, train, store.corpus, smallest, tokenizer)
    batch = batch_size(config, smallest.context, device)
    rows, padded = max(1, batch // train.accumulate), padded_tokens(config, batch * smallest.context)
    # Refuses texts that are too short for it.
    small = make_task(config.task, replace(spec, rows=batch, batch_tokens=padded))
    check_tokens(train, small)
    smallest_config = measurable(config, smallest)
    check_rows(small, smallest_config.train, device)
    need = Need.of(small, train)
    precision = _precision(smallest_config, replace(spec, rows=rows), device, need)
    best = _sized(resolved, spec, small, need, batch, precision)
    model, rate = best.model, best.rate
    changed = trained(model, train)  # refuses groups and adapters that do not fit
    task = make_task(config.task, replace(small.spec, model=model))
    steps = requested_steps(train, task) or steps_within(
        60 * (train.minutes or MINUTES), rate, task, train.evaluate_every
    )
    evaluations = Evaluations(task, steps, train.evaluate_every)
    per_step = evaluations.size.tokens
    compile_ = _compile(config, replace(spec, model=model, rows=rows), best, device, precision, steps * per_step)
    chosen = Chosen.of(
        {
            "device": device,
            "precision": precision,
            "compile": compile_,
            "threads": threads,
            "steps": steps,
            "batch": batch,
            "batch_tokens": task.spec.batch_tokens,
            **_pace(train, steps, evaluations.every, model.dim, start is not None),
            "peak": peak_rate(DTYPES[precision], device),
            "tokens_per_second": rate,
            "onednn": () if compile_ else best.by_onednn,  # a compiler makes its own choice
            "vectors": vectors,
        }
    )
    check_outcome(train, chosen)
    return Plan(
        model=model,
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


def _precision(config: RunConfig, spec: DataSpec, device: str, need: Need) -> str:
    """The requested precision, or the one that trains faster."""
    train, model = config.train, spec.model
    if train.precision != "auto":
        return train.precision
    # Measuring needs this memory too.
    needs = (need.bytes(model, name, train) for name in DTYPES)
    check_memory(needs, device)
    return faster_precision(spec, device, config)


@dataclass(frozen=True)
class SizeCandidate:
    """A model that may be trained, with its measurements."""

    model: TransformerConfig
    memory: int  # bytes
    by_onednn: tuple[ProductKind, ...]  # products that oneDNN computes
    rate: float  # tokens per second


def _sized(resolved: Resolved, spec: DataSpec, small: Task, need: Need, batch: int, precision: str) -> SizeCandidate:
    """The model, its measured rate and its memory. Without a preset or a depth: the deepest that sees enough tokens in time.

    The rate of a deeper model is predicted from its number of parameters (6 FLOPs per parameter and token), and measured
    before the model is chosen. Larger models use a machine better, so the search repeats until the depth no longer changes.
    """
    config, device = resolved.config, resolved.device.type
    train, rows = config.train, batch // config.train.accumulate

    @cache  # the search comes back to a depth, and estimating a memory takes long
    def sized(depth: int) -> tuple[TransformerConfig, int]:
        model = resolved.model(spec.model.vocab_size, depth, spec.corpus.classes)
        return model, need.bytes(model, precision, measurable(config, model).train)

    def candidate(model: TransformerConfig, memory: int) -> SizeCandidate:
        few = _measured_rows(rows, model)
        by_onednn = pick_products(train.products, model, few * model.context, device, precision)
        rate = measure(replace(spec, model=model, rows=few), device, precision, measurable(config, model), by_onednn)
        return SizeCandidate(model, memory, by_onednn, rate)

    def enough(model: TransformerConfig, rate: float) -> bool:
        time = 60 * (train.minutes or MINUTES)
        return (time * SHARE * rate if tokens is None else tokens) >= TOKENS_PER_PARAMETER * parameters(model).total

    depth = min(DEPTHS)
    model, memory = sized(depth)
    check_memory([memory], device)
    best = candidate(model, memory)
    if resolved.has_depth:
        return best
    steps = requested_steps(train, small)
    tokens = None if steps is None else steps * batch * spec.model.context
    too_deep = max(DEPTHS) + 1
    while depth + 1 < too_deep:
        speed = best.rate * parameters(best.model).total
        goal = depth
        for deeper in range(depth + 1, too_deep):
            model, memory = sized(deeper)
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
        or tokens / candidate.rate / 60 < WORTH_COMPILING
    ):
        return False
    few = replace(spec, rows=_measured_rows(spec.rows, spec.model))
    eager = measure(few, device, precision, config, candidate.by_onednn)
    return measure(few, device, precision, config, compiled=True) > 1.03 * eager


def _measured_rows(rows: int, model: TransformerConfig) -> int:
    """Rows to measure with: for a long step fewer, which saves time and errs on the slow side."""
    return max(1, min(rows, 4096 // model.context))
