"""`heddle plan`."""

from dataclasses import asdict
from pathlib import Path

from heddle.account.resolve import CONTEXT, DEPTH, resolve
from heddle.cli.options import Json
from heddle.cli.output import RUNS, console, print_json
from heddle.cli.train import parse_config
from heddle.config.base import read_table
from heddle.config.model import TransformerConfig
from heddle.config.presets import preset, preset_names
from heddle.config.run import RunConfig
from heddle.errors import HeddleError
from heddle.parallel.mesh import check_task, count_readers, mesh_sizes
from heddle.scale.devices import find_row
from heddle.scale.layout import SHARE, Prediction, Request, propose
from heddle.scale.measuring import Measured
from heddle.scale.measuring import measure as take_steps
from heddle.scale.rehearsal import Step
from heddle.scale.text import compare, describe
from heddle.train.sizes import batch_size
from heddle.weights.checkpoints import CONFIG
from heddle.weights.run import read_config

MOST_RANKS = 8  # processes that --measure starts


def plan(
    *words: str,
    world: int = 1,
    device: str = "cpu",
    share: float = SHARE,
    measure: bool = False,
    json: Json = False,
) -> None:
    """Predict what each of many devices holds, sends and computes, and propose a layout that fits.

    Nothing is read and nothing is trained. Settings such as shard=8, accumulate=4 or checkpoint_activations=true are kept.

    Parameters
    ----------
    words
        A preset, a run, a model file or a run file (.toml), then key=value settings as for `heddle train`.
    world
        How many devices there are.
    device
        b200, h200, h100, a100, a100-40, l40s, 4090, or cpu, which is this machine.
    share
        The share of the device's peak that products reach. Published programs reach 0.35 to 0.5.
    measure
        Also take a few steps here, with as many processes on the CPU, and print predicted beside measured.
    """
    if world < 1:
        raise HeddleError(f"--world {world}: must be at least 1")
    if not 0 < share <= 1:
        raise HeddleError(f"--share {share}: must be above 0 and at most 1")
    row = find_row(device)
    if row.name == "cpu":  # the processes share this machine's memory
        row = row._replace(memory=row.memory // world)
    if measure and (row.name != "cpu" or world > MOST_RANKS):
        raise HeddleError(f"--measure takes steps here: use --device cpu and at most --world {MOST_RANKS}")
    label, config, model = _model(words)
    check_task(config.parallel, config.task)
    length = model.longest_text()
    precision = config.train.precision
    if precision == "auto":
        precision = "fp32" if row.bf16 is None else "bf16"
    request = Request(
        model=model,
        train=config.train,
        parallel=config.parallel,
        batch=batch_size(
            config, length, "cpu" if row.name == "cpu" else "cuda", count_readers(mesh_sizes(config.parallel, world))
        ),
        length=length,
        precision=precision,
        world=world,
        device=row,
        share=share,
    )
    with console(as_json=True).status("rehearsing a step") as status:
        made = propose(request)
        status.update("taking steps")
        measured = _measure(request, made) if measure else None
    if json:
        document = {"model": label, "device": row._asdict(), "batch": request.batch, "length": length, **made.to_dict()}
        print_json(document | ({} if measured is None else {"measured": asdict(measured)}))
        return
    console().print(describe(request, made, label))
    if measured is not None:
        console().print(compare(made, measured))


def _measure(request: Request, made: Prediction) -> Measured:
    """A few steps in the predicted layout."""
    changes = {"accumulate": made.accumulate, "checkpoint_activations": made.checkpointed}
    train = request.train.model_copy(update=changes)
    sizes = dict(made.sizes)
    return take_steps(Step(request.model, train, request.parallel, sizes, made.rows, request.length, made.precision))


def _model(words: tuple[str, ...]) -> tuple[str, RunConfig, TransformerConfig]:
    """What the words name: a label, settings, and the model."""
    name, *rest = words if words and "=" not in words[0] else ("", *words)
    label = " ".join(words) or "heddle's default model"
    if name in preset_names():
        config = parse_config((f"preset={name}", *rest))
        return label, config, config.model.resolve(preset(name).vocab_size, DEPTH, CONTEXT, config.task)
    if not name or (name.endswith(".toml") and {"data", "train", "task"} & set(read_table(name))):
        config = parse_config(words)
        return label, config, config.model.resolve(config.data.tokenizer_size, DEPTH, CONTEXT, config.task)
    run = RUNS / name if (RUNS / name / CONFIG).is_file() else Path(name)
    _, model = resolve(str(run))
    config = parse_config(tuple(rest))
    if config.model.model_fields_set:
        raise HeddleError(
            f"{name} has a model of its own: leave out {', '.join(sorted(config.model.model_fields_set))}"
        )
    return label, _as_in(run, config) if (run / CONFIG).is_file() else config, model


def _as_in(run: Path, words: RunConfig) -> RunConfig:
    """The settings of a run, with those that the words change."""
    saved = read_config(run)
    if saved.train is None or saved.chosen is None:
        return words
    train, sizes = saved.train, {"batch", "batch_tokens"}
    if train.batch is None and train.batch_tokens is None and not sizes & words.train.model_fields_set:
        train = train.override({"batch": saved.chosen.batch})
    both = (("train", train, words.train), ("parallel", saved.parallel, words.parallel))
    changed = {name: own.override({key: getattr(new, key) for key in new.model_fields_set}) for name, own, new in both}
    return words.model_copy(update={**changed, "task": saved.task or words.task})
