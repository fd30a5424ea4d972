"""Training in a few lines of Python: a model, a tokenizer, and data in memory."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from math import ceil
from numbers import Real
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from heddle.account.machine import check_units
from heddle.checks import at_least, checked, wrong
from heddle.config.data import TextLayout
from heddle.config.keywords import TrainSettings
from heddle.config.model import ClassifierHeadConfig
from heddle.config.run import RunConfig
from heddle.config.tasks import ChatConfig, NextTokenConfig, TaskSettings
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch
from heddle.data.corpus import Corpus
from heddle.data.in_memory import InMemoryData, corpus_of
from heddle.data.sources.tables import FIELDS
from heddle.errors import HeddleError
from heddle.model.checkpointing import checkpointed
from heddle.model.device import move, pick_device
from heddle.model.linear import use_products
from heddle.model.lora import adapt, merge
from heddle.model.precision import tf32_products
from heddle.model.transformer import Transformer
from heddle.tasks.own_batches import BatchesTask
from heddle.tasks.own_loss import OwnLoss
from heddle.tasks.table import make_task
from heddle.tasks.task import DataSpec, Task
from heddle.text.tokenizer import Tokenizer
from heddle.train.compiling import compile_objective
from heddle.train.history import History
from heddle.train.length import MOST, Evaluations, requested_steps, warmup_of
from heddle.train.live import ProgressLine
from heddle.train.model_selection import SelectedWeights, check_patience
from heddle.train.optimizer import Optimizer
from heddle.train.rates import faster_precision, pick_products, pick_threads
from heddle.train.runtime import prepare_deterministic
from heddle.train.schedule import usual
from heddle.train.sizes import batch_size, check_tokens, padded_tokens
from heddle.train.training import Reader, Training, moving_average, tell

BATCH = 8  # rows of a step by default
MEASURING_NOTHING = {"precision": "fp32", "products": "torch", "compile": "off"}
# Settings of a run that mean nothing without its directory, and what to do instead.
OF_A_RUN = {
    "vectors": "call heddle.convert.load_vectors before fit",
    "minutes": "give steps or epochs",
    "start_timeout": "it trains in one process",
    "step_timeout": "it trains in one process",
    "save_every": "heddle.runs.prepare and Trainer write checkpoints",
    "keep": "heddle.runs.prepare and Trainer write checkpoints",
    "average": "heddle.runs.prepare and Trainer write the checkpoints that it is the mean of",
}


@checked(steps=at_least(1))
def fit(
    model: Transformer,
    tokenizer: Tokenizer | None,
    data: Any,
    steps: int | None = None,
    task: str | TaskSettings | None = None,
    validation: Any = None,
    config: TrainConfig | None = None,
    columns: Mapping[str, str] | None = None,
    layout: TextLayout = "concatenate",
    readers: Sequence[Reader] = (),
    progress: bool = True,
    loss: str | OwnLoss | None = None,
    skip_invalid: bool = False,
    **settings: Unpack[TrainSettings],
) -> History:
    """Train `model` in place, from its present weights, on data in memory.

    A step and an evaluation are those of a run; for checkpoints, resuming and several processes use `heddle.runs.prepare` and
    `Trainer`. Afterwards the model is in evaluation mode and fp32, on the device where it was trained.

    Args:
        model: the model.
        tokenizer: its tokenizer; None if the data are batches.
        data: what the task reads. A text: a string, strings, an array of ids [N] or arrays. Records: tuples in the order of the
            task's fields, such as (source, target), (text, label) or (words, tags), or conversations as lists of messages. Either:
            dicts by column, or a `datasets` Dataset. Or, for any objective, an iterable of `Batch`.
        steps: how many updates; or give `epochs`, how many times to read the data.
        task: its config, or its kind, such as "classification"; by default the next token or, of batches, cross-entropy.
        validation: data of the same kind to evaluate on, every `evaluate_every` steps and at the end; or the share of `data`
            to hold out.
        config: settings of training.
        columns: the columns of dicts by field, such as {"label": "stars"}, where they have other names than the fields.
        layout: how texts are put into rows: "concatenate", "documents" or "pack"; with "pack", also several pairs into each row of
            a decoder that translates.
        readers: functions to call with every `Report`; one may raise `StopTraining` to end the training after this step.
        progress: show a line on standard error while training takes over two seconds.
        loss: a function of your own to minimise instead of the task's (see `heddle.tasks.own_loss.OwnLoss`), or its name
            as "module:function"; evaluations report the task's own.
        skip_invalid: leave out malformed items, with a warning that counts them, instead of refusing the first.
        settings: further settings of `TrainConfig`, which override those of `config`, such as `batch=16` (8 by default, in rows),
            `learning_rate`, `device` (by default where the model is), `precision` (fp32), `ema` or `patience`. With
            "auto", `precision` and `products` are measured, and `compile` is off.

    Raises:
        HeddleError: the data do not fit the task or the model, a setting has no effect here, or the loss becomes NaN or infinite.
    """
    data, batches = _looked_into(data)
    named: dict[str, Any] = {**settings, **({"loss": loss} if isinstance(loss, str) else {})}
    run = _settings(config, steps, named, task, {**(columns or {}), "layout": layout}, skip_invalid)
    for name in ("label_smoothing", "z_loss"):
        if loss is not None and getattr(run.train, name):
            raise HeddleError(
                f"fit: {name} = {getattr(run.train, name)} has no effect with a loss of your own: leave one out"
            )
    train = run.train
    device = pick_device(train.device) if "device" in train.model_fields_set else model.device
    check_units(train.precision, train.tf32, device)
    move(model, device)
    prepare_deterministic(train.deterministic, model.device.type)
    if batches:
        of_batches = {
            **({} if config is None else config.model_dump(exclude_unset=True)),
            **settings,
            "columns": columns,
        }
        of_batches |= {"layout": None if layout == "concatenate" else layout, "skip_invalid": skip_invalid or None}
        learned = _from_batches(model, tokenizer, data, validation, run, of_batches, task is not None)
    else:
        learned = _from_data(model, tokenizer, data, validation, run)
    history = History()
    line = ProgressLine()
    with (
        _threads(train),
        tf32_products(train.tf32),
        _made(model, run, learned, None if isinstance(loss, str) else loss) as training,
        line,
    ):
        _loop(training, learned, [history, *([line] if progress else []), *readers], history)
    return history


@dataclass(frozen=True)
class Learned:
    """What is learned, and how it is evaluated.

    Attributes:
        task: the task.
        steps: how many updates.
        every: steps between evaluations; None: there are no validation data.
        probe: targets to score while training; None: all.
        ending: targets to score at the end; None: all.
    """

    task: Task
    steps: int
    every: int | None
    probe: int | None = None
    ending: int | None = None


def _looked_into(data: Any) -> tuple[Any, bool]:
    """The data, and whether they are batches. The first item of an iterator is put back."""
    if isinstance(data, str | Mapping) or not isinstance(data, Iterable) or isinstance(data, np.ndarray | Tensor):
        return data, isinstance(data, Batch)
    items = iter(data)
    first = next(items, None)
    return (chain([first], items) if items is data and first is not None else data), isinstance(first, Batch)


def _settings(
    config: TrainConfig | None,
    steps: int | None,
    settings: Mapping[str, Any],
    task: str | TaskSettings | None,
    of_data: dict[str, Any],
    skip_invalid: bool,
) -> RunConfig:
    """All settings as those of a run, which refuses what does not go together."""
    table = {} if config is None else config.model_dump(mode="json", exclude_unset=True)
    table |= {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    if steps is not None:
        table["steps"] = int(steps)
    if table.get("steps") is None and table.get("epochs") is None:
        raise HeddleError("fit: steps = None: must be at least 1, or give epochs")
    if table.get("batch") is None and table.get("batch_tokens") is None:
        table["batch"] = -(-BATCH // (accumulate := table.get("accumulate", 1))) * accumulate
    unknown = [field for field in of_data if field not in (*FIELDS, "layout")]
    if unknown:
        raise HeddleError(f"fit: columns: {unknown[0]!r} is not a field; fields are {', '.join(FIELDS)}")
    kind = NextTokenConfig() if task is None else task
    of_data |= {"skip_invalid": skip_invalid}
    run = RunConfig.of({"data": of_data, "task": kind, "train": {**MEASURING_NOTHING, **table}}, where="fit")
    for name, instead in OF_A_RUN.items():
        if getattr(run.train, name) != TrainConfig.model_fields[name].default:
            raise HeddleError(f"fit does not know {name}: leave it out; {instead}")
    return run


def _from_data(model: Transformer, tokenizer: Tokenizer | None, data: Any, validation: Any, run: RunConfig) -> Learned:
    """What is learned from data that a tokenizer reads."""
    if tokenizer is None:
        raise wrong("fit", "tokenizer", None, "the model's tokenizer, unless data are batches")
    model.check_vocabulary(tokenizer.vocab_size)
    if isinstance(run.task, ChatConfig):
        now = datetime.now().isoformat(timespec="seconds")
        run = run.model_copy(update={"task": run.task.completed(model.config.chat, now)})
    train, head = run.train, model.config.head
    held_out: InMemoryData | float | None = None
    if isinstance(validation, Real) and not isinstance(validation, bool):
        held_out = float(validation)
        if not 0 < held_out < 1:
            raise wrong("fit", "validation", validation, "data, or a share above 0 and below 1")
    elif validation is not None:
        held_out = InMemoryData(validation, run.task, run.data, "validation")
    _check_evaluated(train, held_out is not None)
    known = head.names if isinstance(head, ClassifierHeadConfig) else ()
    prompts = run.task.prompts(run.data.layout, model.config.stacks())
    chat = run.task.chat(None) if isinstance(run.task, ChatConfig) else model.config.chat
    model.config = model.config.model_copy(update={"prompts": prompts, "chat": chat})
    items = InMemoryData(data, run.task, run.data)
    corpus = corpus_of(items, held_out, tokenizer, known)
    for each in (items, held_out):
        for line in each.left_out() if isinstance(each, InMemoryData) else ():
            warnings.warn(line, stacklevel=4)
    batch = batch_size(run, model.config.context, model.device.type)
    tokens = padded_tokens(run, batch * model.config.context)
    spec = DataSpec.of(run.data, train, corpus, model.config, tokenizer, rows=batch, batch_tokens=tokens)
    task = make_task(run.task, spec)
    check_tokens(train, task)
    if isinstance(head, ClassifierHeadConfig) and corpus.classes and not known:
        model.config = model.config.override({"head.names": list(corpus.classes)})
        task.spec = replace(spec, model=model.config)
    steps = requested_steps(train, task) or 1
    if held_out is None:
        return Learned(task, steps, None)
    evaluations = Evaluations(task, steps, train.evaluate_every)
    check_patience(train, steps, evaluations.every)
    return Learned(task, steps, evaluations.every, evaluations.probe, evaluations.ending)


def _from_batches(
    model: Transformer,
    tokenizer: Tokenizer | None,
    data: Any,
    validation: Any,
    run: RunConfig,
    settings: Mapping[str, Any],
    by_task: bool,
) -> Learned:
    """What is learned from the user's own batches, by the objective of the run's task or by cross-entropy."""
    for name in ("batch", "batch_tokens", "columns", "layout", "skip_invalid"):
        if settings.get(name) is not None:
            raise HeddleError(f"fit: {name} = {settings[name]} has no effect on batches: leave it out")
    if isinstance(data, Batch):
        raise HeddleError("fit: data = a Batch: must be a list of them")
    if run.train.precision == "auto":
        raise HeddleError("fit: precision = 'auto' cannot be measured with batches: name one")
    if validation is not None and (not isinstance(validation, Iterable) or isinstance(validation, str)):
        raise HeddleError("fit: validation: must be batches, as data are")
    _check_evaluated(run.train, validation is not None)
    inner = make_task(run.task, DataSpec(Corpus(), model.config, tokenizer=tokenizer)) if by_task else None
    task = BatchesTask(data, validation, model, inner)
    steps = requested_steps(run.train, task) or 1
    every = None if validation is None else run.train.evaluate_every or ceil(steps / MOST)
    if every is not None:
        check_patience(run.train, steps, every)
    return Learned(task, steps, every)


def _check_evaluated(train: TrainConfig, evaluated: bool) -> None:
    """Refuse settings of evaluations without data to evaluate on."""
    for name in ("patience", "evaluate_every"):
        if not evaluated and getattr(train, name) is not None:
            raise HeddleError(f"fit: {name} = {getattr(train, name)} needs validation data: give validation")


@contextmanager
def _threads(train: TrainConfig) -> Iterator[None]:
    """As many threads as the settings say, inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(pick_threads(train.threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _made(model: Transformer, run: RunConfig, learned: Learned, loss: OwnLoss | None) -> Iterator[Training]:
    """A training of `model`, which leaves it in fp32 and evaluation mode, with gradients where they were before."""
    train, task, device = run.train, learned.task, model.device.type
    warmup = warmup_of(train, learned.steps, usual(train).warmup)
    if train.lora is not None and train.lora.head is None:
        train = train.override({"lora.head": isinstance(model.config.head, ClassifierHeadConfig)})
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    small = replace(task.spec, rows=max(1, task.spec.rows // train.accumulate))
    precision = faster_precision(small, device, run) if train.precision == "auto" else train.precision
    by_onednn = pick_products(train.products, model.config, small.rows * model.config.context, device, precision)
    rate = train.learning_rate or usual(train).rate(train, model.config.dim)
    optimizer: Optimizer | None = None
    try:
        adapt(model, train.lora, train.seed)
        if by_onednn:
            use_products(model, by_onednn)
        optimizer = Optimizer(model, train, rate, precision, by_onednn)
        eager = task.minimised(model, train, loss)
        with checkpointed(model, train.checkpoint_activations):
            yield Training(
                train=train,
                model=model,
                optimizer=optimizer,
                task=task,
                eager=eager,
                objective=compile_objective(eager) if train.compile == "on" else eager,
                learning_rate=rate,
                warmup=warmup,
                steps=learned.steps,
                ema=moving_average(train, optimizer, {}),
            )
    finally:
        merge(model, None if optimizer is None else optimizer.masters)  # after an error; otherwise it has been done
        for working, master in optimizer.copies if optimizer is not None else ():
            working.data = master.data
        model.to(torch.float32).eval()
        model.zero_grad(set_to_none=True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained[name])
        if by_onednn:
            use_products(model, ())


def _loop(training: Training, learned: Learned, readers: Sequence[Reader], history: History) -> None:
    """Steps and evaluations to the end; then the weights to keep, and their score."""
    best: dict[str, Tensor] = {}
    while training.step < training.steps and not training.stopped_early:
        training.ended = tell(readers, training.advance())
        if learned.every is not None and training.due(learned.every):
            scored = training.score(learned.probe)
            training.ended |= tell(readers, training.report(scored))
            if training.update_best(scored.loss):
                best = {name: weight.clone() for name, weight in training.weights().items()}
    ema, best_so_far = training.train.ema, training.best
    history.weights = SelectedWeights("last", (training.step,), ema)
    if best_so_far is not None:
        history.weights = SelectedWeights("best", (best_so_far.step,), ema, best_so_far.loss)
    training.adopt(best or training.weights())
    history.adapter = training.merge()
    history.epochs = learned.task.epochs(training.step)
    if learned.every is not None:
        history.evaluation = training.evaluate(learned.ending)
