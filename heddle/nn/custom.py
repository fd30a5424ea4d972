"""A module of the user's own, as a mixer or as a feed-forward (L0-07): it fills its own weights and keeps its own precision."""

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.layers import CustomConfig
from heddle.errors import HeddleError
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal, Everything
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Output
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Growing, State


class Custom(nn.Module):
    """A module of the user's own, taken as a unit: what stands inside it is neither filled nor cast by anybody else.

    `inner` is given vectors in the dtype of its own weights and buffers, in fp32 or wider where it has none; what comes out is
    brought back to the dtype of the others.

    Raises:
        HeddleError: the target cannot be imported, is no class of modules, or cannot be called so.
    """

    def __init__(self, config: CustomConfig, setting: Setting) -> None:
        super().__init__()
        self.config, self.dim = config, setting.dim
        self.pattern = Pattern(Causal() if setting.causal else Everything())
        self.inner = self.made()

    def made(self) -> nn.Module:
        """A new module of the user's class, as its constructor fills it."""
        kind = found(self.config)
        try:
            made = kind(self.dim, **self.config.options)
        except Exception as error:
            if torch.get_default_device().type != "meta":
                raise HeddleError(_refusal(self.config, error)) from error
        else:
            return made
        # A constructor may ask for values (`torch.linspace(0, 1, 3).tolist()`), and without memory there are none.
        with torch.device("cpu"), torch.random.fork_rng(devices=()):
            return moved(self.made(), "meta")

    def call(self, x: Float[Tensor, "B T D"], *more: Any) -> Float[Tensor, "B T D"]:
        """What the user's module makes of x.

        Raises:
            HeddleError: it is not a tensor of the same shape.
        """
        out = self.inner(x.to(self._dtype(x)), *more)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            gave = str(list(out.shape)) if isinstance(out, Tensor) else type(out).__name__
            raise HeddleError(
                f"target = {self.config.target!r} was given x {list(x.shape)} and gave {gave}, not the same shape"
            )
        return out.to(x.dtype)

    def _dtype(self, x: Tensor) -> torch.dtype:
        held = (*self.inner.parameters(), *self.inner.buffers())
        own = (tensor.dtype for tensor in held if tensor.is_floating_point())
        return next(own, wide_dtype(x.dtype))


class CustomMixer(Custom):
    """A user's own mixer, called as `inner(x, layout)` and causal by itself; every earlier token is shown to it again.

    That makes cached decoding right for any mixer, at the price of computing the past anew with each step.
    """

    def forward(self, x: Float[Tensor, "B T D"], scope: Scope, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        (seen,) = state.update((x[:, None],), scope.queries, scope.keys)
        out = self.call(seen[:, 0], scope.keys)
        if scope.keys is scope.queries or seen.shape[2] == x.shape[1]:
            return out
        index = scope.queries.position[:, :, None].expand(-1, -1, out.shape[2])
        return out.gather(1, index.clamp(max=out.shape[1] - 1))

    def new_state(self) -> State:
        """Remembers every token's vector."""
        return Growing()


class CustomFeedForward(Custom):
    """A user's own feed-forward, called as `inner(x)`."""

    def forward(self, x: Float[Tensor, "B T D"], queries: Layout | None = None) -> Output:
        return Output(self.call(x))


def found(config: CustomConfig) -> type[nn.Module]:
    """The user's class, imported. Nothing but a class of modules is taken, so that no config calls what it likes.

    Raises:
        HeddleError: it cannot be imported, or is no such class.
    """
    module, name = config.target.split(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise HeddleError(_refusal(config, error)) from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise HeddleError(
            f"target = {config.target!r} is not a class derived from torch.nn.Module, so it is not called"
        )
    return kind


def _refusal(config: CustomConfig, error: Exception) -> str:
    said = " ".join(str(error).split())
    called = f"{config.target.split(':')[1]}(dim, **options)"
    return f"target = {config.target!r}: {type(error).__name__}: {said}; it is imported and called as {called}"


def moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """A module on another device, with the tensors it keeps as plain attributes, which `nn.Module.to` leaves behind."""
    for part in module.modules():
        plain = {name: value.to(device) for name, value in vars(part).items() if isinstance(value, Tensor)}
        vars(part).update(plain)
    return module.to(device)


def without_custom(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all its parts, as `modules()` gives them, but for what stands inside a user's own."""
    yield module
    if not isinstance(module, Custom):
        for child in module.children():
            yield from without_custom(child)
