"""Decoding steps compiled by torch.compile: one call for a whole step, instead of hundreds of small operations.

On a CPU, a step of a small model spends as much time on calling its operations as on reading its weights. A compiled step fuses
them, stores the weights in the layout of its kernels, and checks few of torch.compile's usual guards in each call. There are
two graphs, one for a single row and one for several, whatever their number and lengths (and one more for sources of unequal
lengths); each takes about half a minute to compile and stores a copy of the matrices. Commands compile so on an accelerator; on a
CPU they compile ahead of time (`compile_steps`).
"""

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, _dynamo
from torch._inductor import config as inductor
from torch._inductor import select_algorithm
from torch._inductor.exc import InductorError
from torch.fx.experimental import _config as shapes

from heddle.errors import HeddleError
from heddle.model.device import COMPILERS, compile_graphs, has_compiler
from heddle.model.graphs import GraphedSteps, identity_of, step
from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache
from heddle.nn.layout import Layout
from heddle.nn.state import Fixed, Growing

# Backends for products, by their names in torch.compile, in the order to try. For one row, the compiler's own kernels read weights
# at full memory bandwidth, which libraries do not reach: their steps take 1.3 to 1.9 times as long. For products that they lack,
# such as int4 without AVX-512, both are timed. Several rows are faster with the libraries ("").
OWN_KERNELS = ("CPP", "CPP,ATEN")
LIBRARIES = ("",)


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
        # By whether there are several rows. Empty: these steps are not compiled.
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
        return self.run(tokens, cache.advance([1] * len(tokens), tokens.device, compiled=True), cache)

    def run(self, tokens: Int[Tensor, "B 1"], layout: Layout, cache: Cache) -> Float[Tensor, "B V"]:
        """The compiled step of tokens with this layout.

        Raises:
            HeddleError: as in a call.
        """
        several = len(tokens) > 1
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
        """Run the first step of a kind, which compiles its graph. Returns the compiled function and the scores."""
        error: Exception | None = None
        call = _compiled()
        for kernels in self.kernels[len(tokens) > 1]:
            try:
                with _settings(self.model, kernels):
                    return call, call(self.model, tokens, layout, cache)
            except (_dynamo.exc.TorchDynamoException, InductorError) as raised:
                error = raised
                if not isinstance(raised, InductorError):
                    break  # other kernels would not help
        message = str(error).strip().splitlines()[0]
        raise HeddleError(f"this model's decoding step cannot be compiled ({message}): do not compile it")

    def _check(self, cache: Cache) -> None:
        """Drop the graphs if the model has changed. Modules are checked once per cache, versions of weights in each step."""
        if self.cache is None or self.cache() is not cache:
            self.cache = weakref.ref(cache)
            identity = identity_of(self.model)
            if identity != self.identity:
                self.identity, self.weights = identity, None
        if self.weights is None or [tensor._version for tensor in self.weights] != self.versions:
            all_weights = (*self.model.parameters(), *self.model.buffers())
            self.weights = [
                tensor for tensor in all_weights if not tensor.is_inference()
            ]  # inference tensors have no version
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
    steps = CompiledSteps(model)
    model.steps = GraphedSteps(model, steps) if model.device.type == "cuda" else steps
    return model


@torch.inference_mode()
def warm_up(model: Transformer, rows: Sequence[int]) -> None:
    """Run a step with each of these numbers of rows, so that later ones need not wait for the compiler."""
    assert model.steps is not None
    for count in rows:
        cache, token = model.new_cache(count), torch.zeros(count, 1, dtype=torch.long, device=model.device)
        source = None if model.encoder is None else token.expand(count, 2)
        model(token, source=source, cache=cache)
        model.steps(token, cache)


def _compiled() -> Any:
    """`step`, to be compiled for one model: torch keeps graphs by code object, so each needs its own."""
    function = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__)
    return compile_graphs(function, fullgraph=True, options={"guard_filter_fn": _checked_guards})


def _checked_guards(guards: Sequence[Any]) -> list[bool]:
    """Which guards to check in each call: none of the thousands on the model, and none on the structure of a cache.

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
    """Settings of the compiler for these kernels; "" leaves products to libraries."""
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
    """Mark the sizes that differ from call to call, so that one graph serves all."""
    assert cache.keys is not None
    mark = _dynamo.maybe_mark_dynamic
    tensors = [tokens]
    layouts = [layout, *cache.keys.layouts.values()]
    if cache.encoded is not None:
        layouts.append(cache.encoded.layout)
        tensors.append(cache.encoded.hidden)
    tensors += [tensor for layout in layouts for tensor in layout.tensors()]
    slots = [buffer for state in cache.flat() if isinstance(state, Growing | Fixed) for buffer in state.buffers]
    for tensor in (*tensors, *(buffer for state in cache.flat() for buffer in state.buffers)):
        if tensor.shape[0] > 1:
            mark(tensor, 0)
    for tensor in tensors:
        if tensor.shape[1] > 1:
            mark(tensor, 1)
    for buffer in slots:
        if buffer.shape[2] > 1:
            mark(buffer, 2)
