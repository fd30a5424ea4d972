"""Which head a published family puts on such a model, and what an export will be, known before anything is trained."""

from dataclasses import dataclass

import torch

from heddle.config.model import TransformerConfig
from heddle.config.tasks import TaskSettings
from heddle.config.train import TrainConfig
from heddle.convert.families import Family
from heddle.convert.fitting import ALL, choose, family_names, fits
from heddle.convert.peft import to_peft
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.groups import trained_state
from heddle.model.lora import adapt
from heddle.weights.adapter import Adapter

HEAD = "head."


def with_family_head(config: TransformerConfig, task: TaskSettings) -> TransformerConfig:
    """The model with the head for a task that its published family has; unchanged if it has one already, or the family has none.

    Args:
        config: a model that has learned something else.
        task: what it will learn.
    """
    table = task.head_table(config.head.to_dict(), config.last()[0], ())
    kind, by_token = table["kind"], table.get("pooling") == "none"
    if kind == "embedding" or _is_such(config.head, kind, by_token):  # files beside a family's own hold any embedding
        return config
    names = family_names(config)
    having = [family for family in ALL if _has_such(family, config, kind, by_token)]
    for family in sorted(having, key=lambda family: family.name not in names):
        try:
            made = config.model_copy(update={"head": family.usual_head(config)})
        except HeddleError:
            continue
        if not family.reasons(made)[0]:
            return made
    return config


def _has_such(family: Family, config: TransformerConfig, kind: str, by_token: bool) -> bool:
    return set(family.options.stacks) == set(config.stacks()) and _is_such(family.options.head, kind, by_token)


def _is_such(head: object, kind: str, by_token: bool) -> bool:
    return getattr(head, "kind", None) == kind and (
        kind != "classifier" or (getattr(head, "pooling", None) == "none") == by_token
    )


@displayed()
@dataclass(frozen=True)
class Exported:
    """What the export of a run will be.

    Attributes:
        architecture: the Hugging Face class; None: there is none.
        reason: why there is none, in a line, with the settings that would make it so if those of the head do.
        adapter: why peft's format cannot hold what adapters learn; empty if it can, None without adapters.
    """

    architecture: str | None
    reason: str = ""
    adapter: str | None = None

    def sentence(self) -> str:
        """The same in words."""
        whole = f"can be exported as {self.architecture}" if self.architecture else f"cannot be exported: {self.reason}"
        if self.adapter is None or self.architecture is None:
            return whole
        alone = f"but not alone for peft: {self.adapter}" if self.adapter else "its adapter alone for peft"
        return f"{whole}, {alone}"


def exported(config: TransformerConfig, train: TrainConfig) -> Exported:
    """Ask the exporters, before training, what they will make of such a model."""
    try:
        family, _ = choose(config)
    except HeddleError as error:
        family = fits(config)[0].family
        settings = _of_head(family, config)
        advice = f"; {' '.join(settings)} would make it a {family.architecture}" if settings else ""
        return Exported(None, f"{error}{advice}", None if train.lora is None else str(error))
    return Exported(family.architecture, "", None if train.lora is None else _against_peft(family, config, train))


def _against_peft(family: Family, config: TransformerConfig, train: TrainConfig) -> str:
    """Why peft's format cannot hold what these adapters will learn; empty if it can."""
    assert train.lora is not None
    learned = trained_state(adapt(build(config, "meta"), train.lora), train)
    empty = {name: torch.zeros(each.shape) for name, each in learned.items()}
    adapter = Adapter(empty, train.lora.alpha / train.lora.rank, head=config.head if train.lora.head else None)
    try:
        to_peft(adapter, family, config)
    except HeddleError as error:
        return str(error)
    return ""


def _of_head(family: Family, config: TransformerConfig) -> list[str]:
    """The settings of the head that would make a family express a model; empty if others stand against it too."""
    try:
        apart = [each for each in family.apart(config) if not each[0].endswith("dropout")]
    except HeddleError:
        return []
    of_head = all(path.startswith(HEAD) and not path.endswith(".kind") for path, *_ in apart)
    return [f"{path}={needed}" for path, _, needed in apart] if of_head else []
