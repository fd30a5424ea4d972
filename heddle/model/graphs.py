"""CUDA graphs of decoding steps: one replay in place of hundreds of launches.

A GPU computes a step of a small model in less time than the host takes to launch its operations. A graph stores the launches of a
step together with the addresses that they read and write, so a replay launches all of them at once. The weights are read where they
are; tokens, positions and the KV cache have a place in the graph: a cache is copied there once, when its first step is replayed,
and then stays. There is a graph for each number of rows, rounded up to a power of two, and each capacity of the cache.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from heddle.model.transformer import Transformer
from heddle.nn.cache import Cache, Keys, keys_of
from heddle.nn.custom import Custom
from heddle.nn.layout import Form, Layout
from heddle.nn.numeric import on_device

MOST = 8  # graphs of a model; each holds a cache
MOST_ROWS = 256  # with more rows, launches take little of a step's time
WARM_UP = 2  # runs before a capture, in which libraries allocate their workspaces

Buffers = tuple[Tensor, ...]


def step(model: Transformer, tokens: Tensor, layout: Layout, cache: Cache) -> Tensor:
    """One decoding step."""
    return model.logits(model(tokens, layout, cache=cache).hidden[:, -1])


@dataclass(frozen=True)
class Graph:
    """A captured step.

    Attributes:
        replay: computes it.
        tokens: Int[B 1], the next token of each row.
        start: Int[B], how many tokens each row has; a replay adds `used` to it.
        used: Int[B], 1 for a row that is used, else 0.
        cache: the cache that it reads and writes.
        logits: Float[B V], what it computes.
    """

    replay: Callable[[], None]
    tokens: Tensor
    start: Tensor
    used: Tensor
    cache: Cache
    logits: Tensor


@dataclass
class Bound:
    """A cache that is in a graph.

    Attributes:
        graph: the graph.
        cache: the cache.
        places: the graph's memory that the cache's states have.
        lengths: of the rows after the last replay; empty before the first.
    """

    graph: Graph
    cache: weakref.ref[Cache]
    places: list[Buffers]
    lengths: list[int] = field(default_factory=list)

    def holds(self, graph: Graph, cache: Cache) -> bool:
        """Whether this graph has this cache's numbers."""
        same = self.graph is graph and self.cache() is cache
        return same and all(state.buffers is each for state, each in zip(cache.flat(), self.places, strict=True))


class Eager:
    """The decoding steps of a model, operation by operation."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def __call__(self, tokens: Int[Tensor, "B 1"], cache: Cache) -> Float[Tensor, "B V"]:
        """Scores of the tokens that follow the next token of each row."""
        return self.run(tokens, cache.advance([1] * len(tokens), tokens.device), cache)

    def run(self, tokens: Int[Tensor, "B 1"], layout: Layout, cache: Cache) -> Float[Tensor, "B V"]:
        """The same for tokens with this layout."""
        return step(self.model, tokens, layout, cache)


class GraphedSteps:
    """The decoding steps of a model on CUDA, captured when first needed, and again if a weight has moved.

    Not captured, but computed as usual, are steps of a model with hooks or modules of the user's own, which a replay would skip,
    and of an encoder-decoder, whose sources have another length in each text.

    Args:
        model: in the precision it predicts in.
        steps: its compiled steps; None: not compiled.
    """

    def __init__(self, model: Transformer, steps: Any = None) -> None:
        self.model, self.steps = model, Eager(model) if steps is None else steps
        self.graphs: dict[tuple[object, ...], Graph] = {}
        self.pool: Any = None
        self.modules: tuple[nn.Module, ...] = ()
        self.weights: list[Tensor] = []
        self.addresses: list[int] = []
        self.identity: list[object] = []
        self.captures = True
        self.seen: weakref.ref[Cache] | None = None
        self.bound: Bound | None = None

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, "B 1"], cache: Cache) -> Float[Tensor, "B V"]:
        """Scores of the tokens that follow the next token of each row, which the next call overwrites."""
        self._check(cache)
        graph = self._graph(cache) if self._replays(cache) else None
        if graph is None:
            scores: Tensor = self.steps(tokens, cache)
            return scores
        rows = len(tokens)
        bound = self.bound
        if bound is None or not bound.holds(graph, cache):
            bound = self._bind(graph, cache)
        if bound.lengths != cache.lengths:
            graph.start[:rows].copy_(on_device(cache.lengths, tokens.device, torch.long))
        graph.tokens[:rows].copy_(tokens)
        graph.replay()
        cache.count_step()
        bound.lengths = list(cache.lengths)
        return graph.logits[:rows]

    def _check(self, cache: Cache) -> None:
        """Drop the graphs if the model has changed. Modules are checked once per cache, addresses of weights in each step."""
        same = self.seen is not None and self.seen() is cache
        if same and [tensor.data_ptr() for tensor in self.weights] == self.addresses:
            return
        self.seen, identity = weakref.ref(cache), identity_of(self.model)
        if identity != self.identity:
            self._release()
            self.graphs.clear()
            self.identity, self.modules = identity, tuple(self.model.modules())
            self.weights = [*self.model.parameters(), *self.model.buffers()]
            self.addresses = [tensor.data_ptr() for tensor in self.weights]
            self.captures = not any(isinstance(module, Custom) for module in self.modules)

    def _replays(self, cache: Cache) -> bool:
        """Whether a graph can compute the step."""
        hooks = (
            any(module._forward_hooks or module._forward_pre_hooks for module in self.modules) or _has_any_global_hook()
        )
        return self.captures and not hooks and cache.encoded is None and len(cache.lengths) <= MOST_ROWS

    def _graph(self, cache: Cache) -> Graph | None:
        """The graph of a cache's next step; None if the step cannot be captured."""
        cache.reserve_step()
        rows = 1 << (len(cache.lengths) - 1).bit_length()
        key = (rows, *(tuple(buffer.shape[1:]) for state in cache.flat() for buffer in state.buffers))
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                self._release()
                self.graphs.clear()
            try:
                self.graphs[key] = self._capture(cache, rows)
            except RuntimeError:  # a module synchronizes with the device, or memory is too short for another cache
                self.captures = False
        return self.graphs.get(key)

    def _bind(self, graph: Graph, cache: Cache) -> "Bound":
        """Copy a cache into a graph, where it stays until another one takes its place."""
        self._release()
        rows, places = len(cache.lengths), list[Buffers]()
        for state, own in zip(cache.flat(), graph.cache.flat(), strict=True):
            places.append(tuple(buffer[:rows] for buffer in own.buffers))
            for place, buffer in zip(places[-1], state.buffers, strict=True):
                place.copy_(buffer)
            state.buffers = places[-1]
        graph.start.zero_()
        graph.used.zero_()
        graph.used[:rows].fill_(1)
        self.bound = Bound(graph, weakref.ref(cache), places)
        return self.bound

    def _release(self) -> None:
        """Give the cache in a graph memory of its own again."""
        bound, self.bound = self.bound, None
        if bound is not None and (cache := bound.cache()) is not None:
            for state, places in zip(cache.flat(), bound.places, strict=True):
                if state.buffers is places:
                    state.buffers = tuple(buffer.clone() for buffer in places)

    def _capture(self, cache: Cache, rows: int) -> Graph:
        """Capture the step of caches with the same shapes as this one."""
        device = self.model.device
        with torch.inference_mode(False):
            own = self.model.new_cache(rows, cache.multiple)
            for state, like in zip(own.flat(), cache.flat(), strict=True):
                state.begin(like, rows)
            tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
            start, used = torch.zeros(2, rows, dtype=torch.long, device=device)
        buffers, capacity = [state.buffers for state in own.flat()], cache.capacity

        def run() -> Tensor:
            position = start[:, None]
            form: Form = "uniform" if rows == 1 else "ragged"
            queries = Layout(position, torch.zeros_like(position), form, unpadded=True)
            own.queries, own.keys = queries, Keys(keys_of(own, queries, start, capacity, device))
            logits = self.steps.run(tokens, queries, own)
            for state, places in zip(own.flat(), buffers, strict=True):
                if state.buffers is not places:  # a recurrent state
                    for place, buffer in zip(places, state.buffers, strict=True):
                        place.copy_(buffer)
                    state.buffers = places
            start.add_(used)
            return logits

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.pool = torch.cuda.graph_pool_handle() if self.pool is None else self.pool
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            logits = run()
        return Graph(graph.replay, tokens, start, used, own, logits)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # A copy of the model has its own weights, which have not been captured.
        return type(None), ()


def identity_of(model: nn.Module) -> list[object]:
    """Everything that a graph depends on except the values of weights: their addresses, modules, modes and hooks."""
    # `model.parameters()` and its like take several times as long, which a step of a small model would notice.
    identity: list[object] = []
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        hooks = (tuple(module._forward_hooks), tuple(module._forward_pre_hooks))  # torch numbers each hook anew
        identity.append((id(module), module.training, *hooks))
        tensors = (*module._parameters.values(), *module._buffers.values())
        identity += [(_address(tensor), tensor.dtype) for tensor in tensors if tensor is not None]
        inner = [each for each in module._modules.values() if each is not None and id(each) not in seen]
        seen.update(map(id, inner))
        waiting += inner
    return identity


def _address(tensor: Tensor) -> int:
    """The address of a tensor's data, or its id if it is in oneDNN's layout, which has no address."""
    return id(tensor) if tensor.is_mkldnn else tensor.data_ptr()


def graph_steps(model: Transformer) -> None:
    """Replay the model's decoding steps from now on if it is on CUDA and predicts tokens."""
    if model.device.type == "cuda" and model.steps is None:
        model.steps = GraphedSteps(model)
