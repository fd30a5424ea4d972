"""What of a model a training changes: the parameters that it freezes, and those that adapters add."""

from typing import NamedTuple

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.config.train import TrainConfig
from heddle.display import displayed
from heddle.model.build import build
from heddle.model.groups import freeze
from heddle.model.lora import adapt, adapted, is_adapter


@displayed()
class Trained(NamedTuple):
    """Numbers of parameters.

    Attributes:
        frozen: of the model, those that keep their values.
        adapters: those of adapters, which come on top.
        layers: how many layers have an adapter.
        total: those that are trained, adapters included.
    """

    frozen: int
    adapters: int
    layers: int
    total: int


@checked()
def trained(config: TransformerConfig, train: TrainConfig) -> Trained:
    """Count what a training of the model changes.

    Raises:
        HeddleError: the groups or the adapters do not fit the model.
    """
    model = adapt(build(config, "meta"), train.lora)
    frozen = freeze(model, train)
    sizes = {name: each.numel() for name, each in model.named_parameters()}
    kept = sum(sizes[name] for name in frozen)
    added = sum(size for name, size in sizes.items() if is_adapter(name))
    return Trained(kept, added, len(adapted(model)), sum(sizes.values()) - kept)
