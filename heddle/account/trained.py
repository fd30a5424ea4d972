"""Counts the parameters that training updates, given frozen groups and adapters."""

from typing import NamedTuple

from heddle.checks import checked
from heddle.config.model import TransformerConfig
from heddle.config.train import TrainConfig
from heddle.display import displayed
from heddle.model.groups import skeleton
from heddle.model.lora import adapted, is_adapter
from heddle.model.transformer import Transformer


@displayed()
class Trained(NamedTuple):
    """Numbers of parameters.

    Attributes:
        frozen: of the model that are frozen.
        adapters: of adapters, in addition to the model's.
        layers: number of layers with an adapter.
        total: all that are trained, adapters included.
    """

    frozen: int
    adapters: int
    layers: int
    total: int

    @property
    def parameters(self) -> int:
        """The model's parameters, without adapters."""
        return self.total + self.frozen - self.adapters


@checked()
def trained(config: TransformerConfig, train: TrainConfig) -> Trained:
    """Count the parameters that training updates.

    Raises:
        HeddleError: the groups or the adapters do not fit the model.
    """
    return trained_of(skeleton(config, train))


@checked()
def trained_of(model: Transformer) -> Trained:
    """The same of a model that has its adapters and frozen parameters already."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    frozen_count = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    added = sum(size for name, size in sizes.items() if is_adapter(name))
    return Trained(frozen_count, added, len(adapted(model)), sum(sizes.values()) - frozen_count)
