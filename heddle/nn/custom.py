"""A user's module as a mixer, a feed-forward or a function of scores (L0-07). It initialises itself and keeps its precision."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.config.layers import CustomConfig, ScoresConfig
from heddle.errors import HeddleError
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal, Everything
from heddle.nn.numeric import wide_dtype
from heddle.nn.output import Output
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Growing, State


class Custom(nn.Module):
    """Wraps a user's module. heddle neither initialises nor casts anything inside it.

    `inner` receives vectors in the dtype of its weights and buffers, or in fp32 or wider if it has none; its output is
    cast back to the input's dtype.

    Raises:
        HeddleError: the target cannot be imported, is not a subclass of `nn.Module`, or its constructor fails.
    """

    first = "dim"  # name of the first argument of its constructor

    def __init__(self, config: CustomConfig | ScoresConfig, setting: Setting) -> None:
        super().__init__()
        self.config, self.width = config, setting.dim
        self.pattern = Pattern(Causal() if setting.causal else Everything())
        self.inner = self.instantiate()

    def instantiate(self) -> nn.Module:
        """A new instance of the user's class, initialised by its constructor."""
        cls = load_class(self.config, self.first)
        try:
            inner = cls(self.width, **self.config.options)
        except Exception as error:
            if torch.get_default_device().type != "meta":
                raise HeddleError(_refusal(self.config, error, self.first)) from error
        else:
            return inner
        # A constructor may read values (`torch.linspace(0, 1, 3).tolist()`), which a meta tensor does not have.
        with torch.device("cpu"), torch.random.fork_rng(devices=()):
            return moved(self.instantiate(), "meta")

    def call(self, x: Float[Tensor, "*shape"], *arguments: Any) -> Float[Tensor, "*shape"]:
        """Call the user's module on `x`.

        Raises:
            HeddleError: the output is not a tensor of the same shape.
        """
        out = self.inner(x.to(self._dtype(x)), *arguments)
        if not isinstance(out, Tensor) or out.shape != x.shape:
            returned = str(list(out.shape)) if isinstance(out, Tensor) else type(out).__name__
            raise HeddleError(
                f"target = {self.config.target!r} must return the shape of its input: got x {list(x.shape)}, returned {returned}"
            )
        return out.to(x.dtype)

    def _dtype(self, x: Tensor) -> torch.dtype:
        tensors = (*self.inner.parameters(), *self.inner.buffers())
        dtypes = (tensor.dtype for tensor in tensors if tensor.is_floating_point())
        return next(dtypes, wide_dtype(x.dtype))


class CustomMixer(Custom):
    """A user's mixer, called as `inner(x, layout)`, which must itself be causal in a decoder.

    A cache stores its inputs, and every decoding step calls it on all of them: correct for any mixer, at the cost of
    recomputing the past.
    """

    def forward(self, x: Float[Tensor, "B T D"], scope: Scope, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        (seen,) = state.update((x[:, None],), scope.queries, scope.keys)
        out = self.call(seen[:, 0], scope.keys)
        if scope.keys is scope.queries or seen.shape[2] == x.shape[1]:
            return out
        index = scope.queries.position[:, :, None].expand(-1, -1, out.shape[2])
        return out.gather(1, index.clamp(max=out.shape[1] - 1))

    def new_state(self) -> State:
        """An empty state for every token's vector."""
        return Growing()


class CustomFeedForward(Custom):
    """A user's feed-forward, called as `inner(x)`."""

    def forward(self, x: Float[Tensor, "B T D"], queries: Layout | None = None) -> Output:
        return Output(self.call(x))


class CustomScores(Custom):
    """A user's function of attention scores, built as `Class(heads, **options)` and called as `inner(scores, queries, keys)`.

    `scores` are Float[B H T S] in fp32 or wider, scaled, capped and biased, before the mask and the softmax. `queries` are
    Int[B 1 T 1] and `keys` Int[B 1 1 S], the positions of the tokens in their documents: whatever is computed from these is the
    same with a cache, a window, packed documents and padding. It returns scores of that shape; -inf blocks a key.
    """

    first = "heads"

    def __init__(self, config: ScoresConfig, setting: Setting, heads: int) -> None:
        super().__init__(config, replace(setting, dim=heads))

    def forward(
        self, scores: Float[Tensor, "B H T S"], queries: Int[Tensor, "b T"], keys: Int[Tensor, "c S"]
    ) -> Float[Tensor, "B H T S"]:
        return self.call(scores, queries[:, None, :, None], keys[:, None, None, :])


def load_class(config: CustomConfig | ScoresConfig, first: str = "dim") -> type[nn.Module]:
    """Import the user's class. Only a subclass of `nn.Module` is accepted, so that a config cannot call arbitrary code.

    Raises:
        HeddleError: it cannot be imported, or is not a subclass of `nn.Module`.
    """
    module, name = config.target.split(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise HeddleError(_refusal(config, error, first)) from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise HeddleError(
            f"target = {config.target!r} is not a subclass of torch.nn.Module; name one as 'module:Class'"
        )
    return kind


def _refusal(config: CustomConfig | ScoresConfig, error: Exception, first: str) -> str:
    reason = " ".join(str(error).split())
    call = f"{config.target.split(':')[1]}({first}, **options)"
    return f"target = {config.target!r}: {type(error).__name__}: {reason}; it must be importable and callable as {call}"


def moved(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Move a module to a device, including tensors in ordinary attributes, which `nn.Module.to` leaves behind."""
    for child in module.modules():
        tensors = {name: value.to(device) for name, value in vars(child).items() if isinstance(value, Tensor)}
        vars(child).update(tensors)
    return module.to(device)


def without_custom(module: nn.Module) -> Iterator[nn.Module]:
    """Like `module.modules()`, without the modules inside a user's module."""
    yield module
    if not isinstance(module, Custom):
        for child in module.children():
            yield from without_custom(child)
