"""Builds a model from a config: on the meta device first, then initialised. heddle's own modules have no buffers to restore."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heddle.checks import SEED, checked
from heddle.config.model import TransformerConfig
from heddle.model.device import find_device, room_for_weights
from heddle.model.initialise import initialise
from heddle.model.precision import NUMBERS
from heddle.model.transformer import Transformer
from heddle.nn.custom import Custom, moved


@checked(seed=SEED, dtype=NUMBERS)
def build(
    config: TransformerConfig,
    device: torch.device | str = "cpu",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """Build a model with initial weights. On `meta` it has shapes only, so a model of any size fits.

    A user's modules are initialised by their constructors; equal seeds give equal values.

    Args:
        device: `cpu`, `cuda`, `cuda:1`, `mps` or `meta`; `auto` is the first accelerator, else the CPU.
        seed: of the weights.
        dtype: of all weights.

    Raises:
        HeddleError: an argument is invalid, or this machine does not have the device.
    """
    device, seed = find_device(device, meta=True), int(seed)
    with torch.device("meta"), _SkipInit():
        model = Transformer(config)
    in_dtype(model, dtype)
    if device.type == "meta":
        return model
    materialise(model, device, seed, dtype)
    initialise(model, config, torch.Generator().manual_seed(seed))
    return model


class _SkipInit(TorchFunctionMode):
    """Skips the initialisation in torch's constructors: on meta it has no effect, but takes as long as the rest of the build."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = kwargs or {}
        if func in (nn.init.kaiming_uniform_, nn.init.uniform_) and arguments["tensor"].is_meta:
            return arguments["tensor"]
        return func(*args, **arguments)


def materialise(
    model: nn.Module, device: torch.device | str, seed: int = 0, dtype: torch.dtype = torch.float32
) -> None:
    """Allocate memory for a model on the meta device. Its content is undefined, except in a user's modules."""
    for module in custom_modules(model):
        module.inner = nn.Identity()
    # Like `to_empty`, whose `empty_like` of a meta tensor imports sympy: a third of a second.
    with room_for_weights(model, device):
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))
    build_custom(model, device, seed, dtype)


def build_custom(
    model: nn.Module, device: torch.device | str, seed: int = 0, dtype: torch.dtype = torch.float32
) -> None:
    """Build a user's modules on a device, of a model that is on the meta device or was.

    Only their constructors know the content of their buffers and tensor attributes. Random numbers are generated on the CPU, so
    that a seed gives the same values on every device.
    """
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        for module in custom_modules(model):
            inner = module.instantiate()
            in_dtype(inner, dtype)
            module.inner = moved(inner, device).train(module.training)


def custom_modules(model: nn.Module) -> list[Custom]:
    """The user's modules of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Custom)]


def in_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point weights and buffers to one dtype; integers, booleans and complex numbers keep theirs."""
    for tensor in chain(module.parameters(), module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
