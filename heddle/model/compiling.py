"""Decoding steps compiled by torch.compile: one call for a whole step, instead of hundreds of small operations.

On a CPU, a step of a small model takes as long to call its operations as to read its weights. A compiled step fuses them, holds
the weights in the layout of its kernels, and looks at few of the conditions that torch.compile usually checks in each call. There
are two graphs, one for a single row and one for several, whatever their number and lengths (and one more for sources of unequal
lengths); each takes about half a minute to compile, and holds a copy of the matrices. Whether they pay is measured in `step_rates`.
"""

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, _dynamo, nn
from torch._inductor import config as inductor
from torch._inductor import select_algorithm
from torch._inductor.exc import InductorError
from torch.fx.experimental import _config as shapes

from heddle.errors import HeddleError
from heddle.model.device import COMPILERS, compile_graphs, has_compiler
from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache
from heddle.nn.layout import Layout
from heddle.nn.state import Fixed, Growing

# What computes the products, in torch.compile's words and in the order to try. For one row, the compiler's own kernels read weights
# at the memory's speed, which the libraries do not reach: their steps take 1.3 to 1.9 times as long. Where they lack a product, as
# they do for int4 without AVX-512, both are timed. Several rows are faster with the libraries ("").
OWN_KERNELS = ("CPP", "CPP,ATEN")
LIBRARIES = ("",)


def step(model: Transformer, tokens: Tensor, layout: Layout, cache: Cache) -> Tensor:
    """One decoding step, as it is compiled."""
    return model.logits(model(tokens, layout, cache=cache).hidden[:, -1])


class CompiledSteps:
    """The decoding steps of a model in evaluation mode, compiled when first needed, and again if the model has changed.

    Args:
        model: in the precision it predicts in.

    Raises:
        HeddleError: the model has no decoder or does not score tokens; or there is no C++ compiler.
    """

    def __init__(self, model: Transformer) -> None:
        model.language_head()
        if model.decoder is None:
            raise HeddleError("this model has no decoder, so it has no decoding steps to compile")
        if model.device.type == "cpu" and not has_compiler():
            raise HeddleError(
                f"compiling needs a C++ compiler ({', '.join(COMPILERS)}): install one, or do not compile"
            )
        self.model = model
        one_row = OWN_KERNELS if model.device.type == "cpu" else LIBRARIES
        # Of one row (False) and of several (True). Empty: these steps are not compiled.
        self.kernels: dict[bool, tuple[str, ...]] = {False: one_row, True: LIBRARIES}
        self.calls: dict[tuple[bool, str], Any] = {}  # for one row or several, and the form of their sources
        self.identity: list[object] = []
        self.weights: list[Tensor] | None = None
        self.versions: list[int] = []
        self.cache: weakref.ref[Cache] | None = None

    def __call__(self, tokens: Int[Tensor, "B 1"], cache: Cache) -> Float[Tensor, "B V"]:
        """Scores of the tokens that follow the next token of each row.

        Raises:
            HeddleError: a module of the model cannot be compiled.
        """
        several = len(tokens) > 1
        if not self.kernels[several]:
            layout = cache.advance([1] * len(tokens), tokens.device)
            return step(self.model, tokens, layout, cache)
        layout = cache.advance([1] * len(tokens), tokens.device, compiled=True)
        self._check(cache)
        kind = (several, "" if cache.encoded is None else cache.encoded.layout.form)
        if kind in self.calls:
            out: Tensor = self.calls[kind](self.model, tokens, layout, cache)
            return out
        _mark(tokens, layout, cache)
        self.calls[kind], out = self._compile(tokens, layout, cache)
        return out

    def use(self, several: bool, kernels: tuple[str, ...]) -> None:
        """Compute products of one row or of several with these kernels from now on; empty: do not compile those steps."""
        self.kernels[several] = kernels
        self.calls = {kind: call for kind, call in self.calls.items() if kind[0] != several}

    def _compile(self, tokens: Int[Tensor, "B 1"], layout: Layout, cache: Cache) -> tuple[Any, Float[Tensor, "B V"]]:
        """The first step of a kind, in which its graph is compiled: what to call from now on, and the scores."""
        error: Exception | None = None
        call = _compiled()
        for kernels in self.kernels[len(tokens) > 1]:
            try:
                with _settings(self.model, kernels):
                    return call, call(self.model, tokens, layout, cache)
            except (_dynamo.exc.TorchDynamoException, InductorError) as raised:
                error = raised
                if not isinstance(raised, InductorError):
                    break  # whatever computes the products
        message = str(error).strip().splitlines()[0]
        raise HeddleError(f"this model's decoding step cannot be compiled ({message}): do not compile it")

    def _check(self, cache: Cache) -> None:
        """Forget the graphs of a model that has changed: its parts at the start of a text, its numbers at any time."""
        if self.cache is None or self.cache() is not cache:
            self.cache = weakref.ref(cache)
            identity = _identity(self.model)
            if identity != self.identity:
                self.identity, self.weights = identity, None
        if self.weights is None or [tensor._version for tensor in self.weights] != self.versions:
            all_weights = (*self.model.parameters(), *self.model.buffers())
            self.weights = [tensor for tensor in all_weights if not tensor.is_inference()]  # those have no version
            self.versions = [tensor._version for tensor in self.weights]
            self.calls.clear()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A copy of the model has its own weights, which have not been compiled.
        return type(None), ()


def compile_steps(model: Transformer) -> Transformer:
    """Compile the decoding steps of a model from now on, and return it. Its weights may still change; then they are compiled again.

    Raises:
        HeddleError: see `CompiledSteps`.
    """
    model.steps = CompiledSteps(model)
    return model


@torch.inference_mode()
def warm_up(model: Transformer, rows: Sequence[int]) -> None:
    """Run steps of so many rows, so that later ones need not wait for the compiler."""
    assert model.steps is not None
    for count in rows:
        cache, one = model.new_cache(count), torch.zeros(count, 1, dtype=torch.long, device=model.device)
        source = None if model.encoder is None else one.expand(count, 2)
        model(one, source=source, cache=cache)
        model.steps(one, cache)


def _identity(model: nn.Module) -> list[object]:
    """What graphs are made from, besides the weights' numbers: modules, modes, hooks, and where the weights are."""
    found: list[object] = [(_place(tensor), tensor.dtype) for tensor in (*model.parameters(), *model.buffers())]
    for module in model.modules():
        found.append((id(module), module.training, len(module._forward_hooks), len(module._forward_pre_hooks)))
    return found


def _place(tensor: Tensor) -> int:
    """Where a tensor's numbers are; one in oneDNN's layout has no address."""
    return id(tensor) if tensor.is_mkldnn else tensor.data_ptr()


def _compiled() -> Any:
    """`step`, to be compiled for one model: torch keeps graphs by code object, so each needs its own."""
    made = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__)
    return compile_graphs(made, fullgraph=True, options={"guard_filter_fn": _checked_guards})


def _checked_guards(guards: Sequence[Any]) -> list[bool]:
    """The conditions to check in each call: not those on the model, of which there are thousands, nor on what a cache consists of.

    A cache of the model has the same states in every call; only their sizes differ.
    """
    names = [guard.name.removeprefix("L['") for guard in guards]
    kinds = [guard.guard_type for guard in guards]
    return [
        not name.startswith("model") and (kind == "TENSOR_MATCH" or not name.startswith("cache.states"))
        for name, kind in zip(names, kinds, strict=True)
    ]


@contextmanager
def _settings(model: Transformer, kernels: str) -> Iterator[None]:
    """What holds while a step is compiled with these kernels; "" leaves products to libraries."""
    options: dict[str, Any] = {"freezing": model.device.type == "cpu", "max_autotune_report_choices_stats": False}
    if kernels:
        options |= {"max_autotune": True, "max_autotune_gemm_backends": kernels}
    printed, select_algorithm.PRINT_AUTOTUNE = select_algorithm.PRINT_AUTOTUNE, False
    # Sizes that are equal in the first call need not stay equal.
    duck_free = shapes.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings(), inductor.patch(options), duck_free:
            warnings.simplefilter("ignore")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed


def _mark(tokens: Tensor, layout: Layout, cache: Cache) -> None:
    """Say which sizes differ from call to call, so that one graph serves all."""
    assert cache.keys is not None
    mark = _dynamo.maybe_mark_dynamic
    tensors = [tokens]
    layouts = [layout, *cache.keys.layouts.values()]
    if cache.encoded is not None:
        layouts.append(cache.encoded.layout)
        tensors.append(cache.encoded.hidden)
    tensors += [tensor for each in layouts for tensor in each.tensors()]
    slots = [buffer for state in cache._flat() if isinstance(state, Growing | Fixed) for buffer in state.buffers]
    for tensor in (*tensors, *(buffer for state in cache._flat() for buffer in state.buffers)):
        if tensor.shape[0] > 1:
            mark(tensor, 0)
    for tensor in tensors:
        if tensor.shape[1] > 1:
            mark(tensor, 1)
    for buffer in slots:
        if buffer.shape[2] > 1:
            mark(buffer, 2)
