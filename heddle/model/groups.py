"""Parameter groups: the rows of `[[train.groups]]`, which match parameters by name, applied to a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor

from heddle.config.model import TransformerConfig
from heddle.config.train import WEIGHT_DECAY, TrainConfig
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.lora import adapt, is_adapter
from heddle.model.roles import DECAYED, role
from heddle.model.transformer import Transformer


@dataclass(frozen=True)
class ParameterSetting:
    """The settings of one parameter.

    Attributes:
        rate: factor on its learning rate.
        weight_decay: its weight decay, if its role has any.
        frozen: whether it is not trained.
    """

    rate: float
    weight_decay: float
    frozen: bool


def parameter_settings(config: TrainConfig, names: Iterable[str]) -> dict[str, ParameterSetting]:
    """The setting of each parameter: each matching row of `config.groups` overrides the fields that it sets, in order.

    With `config.lora`, everything but the adapters (and the head, if it is trained) is frozen by default.
    """
    decay = WEIGHT_DECAY[config.optimizer] if config.weight_decay is None else config.weight_decay
    settings, lora = {}, config.lora
    for name in names:
        learns = lora is None or is_adapter(name) or (bool(lora.head) and name.startswith("head."))
        setting = ParameterSetting(1.0, decay, frozen=not learns)
        for row in config.groups:
            if fnmatchcase(name, row.parameters):
                setting = ParameterSetting(
                    setting.rate if row.rate is None else row.rate,
                    setting.weight_decay if row.weight_decay is None else row.weight_decay,
                    setting.frozen if row.frozen is None else row.frozen,
                )
        settings[name] = setting
    return settings


def check_groups(model: Transformer, config: TrainConfig) -> None:
    """Check that groups fit a model.

    Raises:
        HeddleError: a row matches no parameter, or sets the decay of vectors, or everything is frozen.
    """
    dimensions = {name: parameter.dim() for name, parameter in model.named_parameters()}
    for row in config.groups:
        matched = [name for name in dimensions if fnmatchcase(name, row.parameters)]
        group = f"groups: parameters = {row.parameters!r}"
        if not matched:
            similar = get_close_matches(row.parameters, dimensions, n=3, cutoff=0.0)
            raise HeddleError(f"{group} matches no parameter of this model. Similar names: {', '.join(similar)}")
        if row.weight_decay is not None and all(role(name, dimensions[name]) not in DECAYED for name in matched):
            raise HeddleError(f"{group} matches only vectors, which have no weight decay: leave weight_decay out")
    if config.lora is not None and config.lora.head and not any(name.startswith("head.") for name in dimensions):
        raise HeddleError("lora: head = true, but this model's head has no weights of its own: leave it out")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    settings = parameter_settings(config, trained)
    if trained and all(settings[name].frozen for name in trained):
        raise HeddleError("groups: every parameter is frozen, so nothing would be trained; leave one out")


def freeze(model: Transformer, config: TrainConfig) -> set[str]:
    """Disable the gradients of the parameters that a config freezes, after checking its groups; returns their names.

    Raises:
        HeddleError: see `check_groups`.
    """
    check_groups(model, config)
    settings = parameter_settings(config, (name for name, _ in model.named_parameters()))
    frozen = {name for name, setting in settings.items() if setting.frozen}
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    return frozen


def skeleton(config: TransformerConfig, train: TrainConfig) -> Transformer:
    """A model as it is trained, on the meta device: with its adapters, and without gradients where it is frozen.

    Raises:
        HeddleError: the groups or the adapters do not fit the model.
    """
    model = adapt(build(config, "meta"), train.lora)
    freeze(model, train)
    return model


def trained_state(model: Transformer, config: TrainConfig) -> dict[str, Tensor]:
    """The tensors of a model that training changes: parameters that are not frozen, and the buffers of a user's modules."""
    settings = parameter_settings(config, (name for name, _ in model.named_parameters()))
    return {
        name: tensor for name, tensor in model.state_dict().items() if name not in settings or not settings[name].frozen
    }
