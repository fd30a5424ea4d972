"""The head that a published family gives a model, and what an export will be, both before training."""

from dataclasses import dataclass

import torch

from heddle.config.model import TransformerConfig
from heddle.config.tasks import TaskSettings
from heddle.config.train import TrainConfig
from heddle.convert.families import ALL, Family
from heddle.convert.fitting import choose, family_names, fits
from heddle.convert.peft import to_peft
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.groups import skeleton, trained_state
from heddle.weights.adapter import Adapter

HEAD = "head."


def with_family_head(config: TransformerConfig, task: TaskSettings) -> TransformerConfig:
    """The model with its published family's head for a task; unchanged if it already has such a head or the family has none.

    Args:
        config: a model that was trained for another task.
        task: the task that it will be trained for.
    """
    table = task.head_table(config.head.to_dict(), config.last()[0], ())
    kind, by_token = table["kind"], table.get("pooling") == "none"
    if kind == "embedding" or _is_such(config.head, kind, by_token):  # sentence-transformers stores any embedding head
        return config
    names = family_names(config)
    matching = [family for family in ALL if _has_such(family, config, kind, by_token)]
    for family in sorted(matching, key=lambda family: family.name not in names):
        try:
            candidate = config.model_copy(update={"head": family.usual_head(config)})
        except HeddleError:
            continue
        if not family.reasons(candidate)[0]:
            return candidate
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
        architecture: the Hugging Face class, or None.
        reason: why there is no class, in a line. If changes to the head would make it fit, it gives these settings.
        adapter: why peft's format cannot store the adapters; empty if it can, None without adapters.
    """

    architecture: str | None
    reason: str = ""
    adapter: str | None = None

    def sentence(self) -> str:
        """The same as text."""
        model_part = (
            f"can be exported as {self.architecture}" if self.architecture else f"cannot be exported: {self.reason}"
        )
        if self.adapter is None or self.architecture is None:
            return model_part
        adapter_part = f"but its adapter not for peft: {self.adapter}" if self.adapter else "and its adapter for peft"
        return f"{model_part}, {adapter_part}"


def exported(config: TransformerConfig, train: TrainConfig) -> Exported:
    """What the exporters will make of a model, before training."""
    try:
        family, _ = choose(config)
    except HeddleError as error:
        family = fits(config)[0].family
        settings = _of_head(family, config)
        advice = f"; {' '.join(settings)} would make it a {family.architecture}" if settings else ""
        return Exported(None, f"{error}{advice}", None if train.lora is None else str(error))
    return Exported(family.architecture, "", None if train.lora is None else _against_peft(family, config, train))


def _against_peft(family: Family, config: TransformerConfig, train: TrainConfig) -> str:
    """Why peft's format cannot store these adapters; empty if it can."""
    assert train.lora is not None
    learned = trained_state(skeleton(config, train), train)
    empty = {name: torch.zeros(each.shape) for name, each in learned.items()}
    adapter = Adapter(empty, train.lora.alpha / train.lora.rank, head=config.head if train.lora.head else None)
    try:
        to_peft(adapter, family, config)
    except HeddleError as error:
        return str(error)
    return ""


def _of_head(family: Family, config: TransformerConfig) -> list[str]:
    """The settings of the head with which a family could express a model; empty if other settings differ too."""
    changed, problems = family.changed_settings(config)
    changed = [each for each in changed if not each[0].endswith("dropout")]
    of_head = not problems and all(path.startswith(HEAD) and not path.endswith(".kind") for path, *_ in changed)
    return [f"{path}={needed}" for path, _, needed in changed] if of_head else []
