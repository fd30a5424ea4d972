"""The run that another one starts from: its model, which settings may change it, and its weights."""

from dataclasses import dataclass
from pathlib import Path

from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.config.run import RunConfig
from heddle.config.saved import StartedFrom
from heddle.convert.heads import with_family_head
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.weights.run import load
from heddle.weights.start import START, cut_tensors, fitting, grown, head_fits, is_head, save_start
from heddle.weights.tensors import specs_of

CHANGEABLE = {"start", "context", "depth", "dropout"}  # settings of [model] that a run to start from can have


@dataclass(frozen=True)
class Start:
    """The run whose weights another run starts from.

    Attributes:
        run: its directory.
        model: its model, with a row for each special token that its tokenizer gets.
        base: the same with the head for the new task that its published family has, if it has one.
        vocab_size: ids of its tokenizer before it gets new ones.
    """

    run: str
    model: TransformerConfig
    base: TransformerConfig
    vocab_size: int

    @classmethod
    def of(cls, config: RunConfig, model: TransformerConfig, before: Tokenizer, after: Tokenizer) -> "Start":
        """The start that a run's settings name.

        Args:
            config: the settings.
            model: the model of the run to start from, as it is.
            before: its tokenizer.
            after: the same tokenizer with the special tokens that the task needs.
        """
        if after.vocab_size > before.vocab_size:
            model = model.override({"vocab_size": max(model.vocab_size, after.vocab_size)})
        return cls(str(config.model.start), model, with_family_head(model, config.task), before.vocab_size)


def new_token_notes(config: RunConfig, before: Tokenizer, after: Tokenizer) -> list[str]:
    """What the user should know about special tokens that a tokenizer gets."""
    new = [name for name in after.special if name not in before.special]
    if not new:
        return []
    notes = [f"the tokenizer gets {', '.join(new)}; their vectors start as the mean of the others"]
    if config.train.lora is not None and not any(row.frozen is False for row in config.train.groups):
        row = '[[train.groups]] with parameters = "embedding.weight", frozen = false'
        notes.append(f"and they stay so, since lora trains no token table; {row} trains it")
    return notes


def check_start(config: RunConfig, model: Transformer, start: Start) -> RunConfig:
    """Refuse settings that a model which starts from a run's weights cannot have, and return the settings completed.

    With adapters, they say whether the head is trained too: if it is new, or scores classes.

    Args:
        config: the settings.
        model: the model that they describe, on the meta device.
        start: the run to start from.

    Raises:
        HeddleError: a weight below the head would be missing or have another shape.
    """
    own = model.state_dict()
    started = cut_tensors(build(start.model, "meta").state_dict(), model.config)
    needed, existing = ({name: tuple(each.shape) for name, each in state.items()} for state in (own, started))
    heads = [{name: shape for name, shape in shapes.items() if is_head(name)} for shapes in (needed, existing)]
    differing = [
        name for name in {**needed, **existing} if not is_head(name) and needed.get(name) != existing.get(name)
    ]
    if differing:
        settings = ", ".join(sorted(config.model.model_fields_set - CHANGEABLE)) or "context"
        raise HeddleError(
            f"from = {start.run!r} has other weights than these settings ask for, first {differing[0]}: leave out {settings}"
        )
    if config.train.lora is None or config.train.lora.head is not None:
        return config
    trained = bool(heads[0]) and (heads[0] != heads[1] or isinstance(model.config.head, ClassifierHeadConfig))
    return config.model_copy(update={"train": config.train.override({"lora.head": trained})})


def copy_weights(start: Start, model: TransformerConfig, count: int, directory: Path) -> tuple[StartedFrom, bool]:
    """Store the weights to start from in the new run, so that it never needs the other run again.

    Args:
        start: the run to start from.
        model: the new run's model.
        count: ids of the new run's tokenizer.
        directory: of the new run.

    Returns:
        Where the weights come from, and whether the head is new.

    Raises:
        HeddleError: the run has no weights, or they do not fit the model.
    """
    shapes = build(model, "meta").state_dict()
    tensors = grown(cut_tensors(load(start.run, "cpu").model.state_dict(), model), shapes, start.vocab_size, count)
    weights, needed = specs_of(tensors), specs_of(shapes)
    fitting(weights, needed, directory / START)
    checksum = save_start(tensors, directory / START)
    return StartedFrom(run=start.run, sha256=checksum), not head_fits(weights, needed)
