"""The tensors inside a model that can be read and replaced, by name: `decoder.3.mixer.heads`, `encoder.0.residual_after`.

A site is an input or an output of a module, so it is reached by a forward hook, whatever kernel or cache the pass uses. Nothing is
converted, and a model without hooks runs as ever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from heddle.checks import checked, wrong
from heddle.errors import HeddleError, did_you_mean
from heddle.look.attention import AttentionPass
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.nn.block import Block, ParallelBlock
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.kernels import Kernel
from heddle.nn.moe import MoE
from heddle.nn.output import Output

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Port:
    """How a tensor is taken from a module's call, and how another is put in its place.

    Attributes:
        read: (module, arguments, output) to the tensor; before the call, the output is None.
        write: (module, arguments, output, new tensor) to the arguments or the output to go on with.
        before: whether it is an argument of the call.
    """

    read: Callable[[nn.Module, Arguments, Any], Tensor]
    write: Callable[[nn.Module, Arguments, Any, Tensor], Any]
    before: bool = False


def argument(index: int) -> Port:
    """A positional argument of the call."""
    return Port(
        lambda module, given, output: given[index],
        lambda module, given, output, new: (*given[:index], new, *given[index + 1 :]),
        before=True,
    )


def _output(module: nn.Module, given: Arguments, output: Any) -> Tensor:
    found: Tensor = output.hidden if isinstance(output, Output) else output
    return found


def _with_output(module: nn.Module, given: Arguments, output: Any, new: Tensor) -> Any:
    return output._replace(hidden=new) if isinstance(output, Output) else new


def _gates(module: nn.Module, given: Arguments, output: Any) -> Tensor:
    gates, choice, logits = output
    return torch.zeros_like(logits).scatter(-1, choice, gates)


def _with_gates(module: nn.Module, given: Arguments, output: Any, new: Tensor) -> Any:
    return new.gather(-1, output[1]), *output[1:]


def _attended(module: nn.Module, given: Arguments, output: Any) -> AttentionPass:
    assert isinstance(module, Kernel)
    q, k, v, lowered = given
    return AttentionPass(q, k, v, output, lowered, module.scale, module.cap)


def _from_scores(attended: AttentionPass, scores: Tensor) -> Tensor:
    return attended.weighted(attended.softmaxed(scores))


RESULT = Port(_output, _with_output)
GATES = Port(_gates, _with_gates)  # [B T E]: 0 for an expert that was not chosen; only chosen ones can be changed
ROUTER_LOGITS = Port(lambda module, given, output: output[2], lambda module, given, output, new: (*output[:2], new))
SCORES = Port(
    lambda module, given, output: _attended(module, given, output).scores(),
    lambda module, given, output, new: _from_scores(_attended(module, given, output), new).to(output.dtype),
)
WEIGHTS = Port(
    lambda module, given, output: _attended(module, given, output).weights(),
    lambda module, given, output, new: _attended(module, given, output).weighted(new).to(output.dtype),
)


@dataclass(frozen=True)
class Site:
    """A tensor inside a model.

    Attributes:
        name: such as `decoder.3.mixer.heads`; layers count from 0.
        axes: letters of its axes, such as `B H T d`.
        said: what it is, in one line.
        module: the module whose call it belongs to.
        port: how it is read and replaced there.
    """

    name: str
    axes: str
    said: str
    module: nn.Module
    port: Port


def sites(model: Transformer) -> dict[str, Site]:
    """Every site of a model by name, in the order of a pass."""
    found: dict[str, Site] = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            found.update({site.name: site for site in _of_stack(name, stack)})
    return found


@checked()
def names(model: Transformer) -> dict[str, str]:
    """What can be named: each site of the model, with its axes and what it is.

    Letters are those of the docs: B batch, T queries, S keys, D width, H heads, K kv-heads, d head width, F feed-forward,
    E experts.
    The output of any other module can be named, too, by its path: `decoder.blocks.0.mixer.inner.taps`.
    """
    return {name: f"{site.axes}: {site.said}" for name, site in sites(model).items()}


def _of_stack(stack: str, module: Stack) -> Iterator[Site]:
    yield Site(f"{stack}.embedded", "B T D", "the tokens' vectors, without positions", module.entry, argument(0))
    yield Site(f"{stack}.entry", "B T D", "what the first layer reads: with positions, norm", module.entry, RESULT)
    for number, block in enumerate(module.layers()):
        yield from _of_block(f"{stack}.{number}", block)
    yield Site(f"{stack}.output", "B T D", "the hidden vectors, after the last norm", module, RESULT)


def _of_block(name: str, block: Block) -> Iterator[Site]:
    def site(end: str, axes: str, said: str, module: nn.Module, port: Port = RESULT) -> Site:
        return Site(f"{name}.{end}", axes, said, module, port)

    yield site("residual_before", "B T D", "the residual stream before it", block.mixer_residual.before, argument(0))
    yield from _of_branch(f"{name}.mixer", "its mixer", block.mixer, block.mixer_residual)
    if block.cross is not None and block.cross_residual is not None:
        before = block.cross_residual.before
        yield site("residual_before_cross", "B T D", "the residual stream after its mixer", before, argument(0))
        yield from _of_branch(f"{name}.cross", "its cross-attention", block.cross, block.cross_residual)
    if block.ffn is not None and block.ffn_residual is not None:
        if not isinstance(block, ParallelBlock):  # there, the feed-forward reads the stream that the mixer reads
            before = block.ffn_residual.before
            yield site("residual_middle", "B T D", "the residual stream before its feed-forward", before, argument(0))
        yield from _of_branch(f"{name}.ffn", "its feed-forward", block.ffn, block.ffn_residual)
    yield site("residual_after", "B T D", "its output: the residual stream after it", block)


def _of_branch(name: str, whose: str, module: nn.Module, residual: Any) -> Iterator[Site]:
    def site(end: str, axes: str, said: str, module: nn.Module, port: Port = RESULT) -> Site:
        return Site(f"{name}.{end}", axes, said, module, port)

    yield site("input", "B T D", f"what {whose} reads", module, argument(0))
    kernel = next((each for each in module.modules() if isinstance(each, Kernel)), None)
    if kernel is not None:
        yield site("q", "B H T d", "queries, normed and rotated", kernel, argument(0))
        yield site("k", "B K S d", "keys, normed and rotated, of the cache, too", kernel, argument(1))
        yield site("v", "B K S d", "values, of the cache, too", kernel, argument(2))
        yield site("scores", "B H T S", "q kᵀ · scale, capped and biased; -inf where masked", kernel, SCORES)
        yield site("weights", "B H T S", "attention weights: the softmax of the scores", kernel, WEIGHTS)
        yield site("heads", "B H T d", "each head's output, before the output projection", kernel)
    if isinstance(module, MoE):
        yield site("router_logits", "B T E", "the router's score of every expert", module.router, ROUTER_LOGITS)
        yield site("gates", "B T E", "gates of the chosen experts, 0 for the others", module.router, GATES)
    if isinstance(module, MLP | Gated):
        first = module.gate if isinstance(module, Gated) else module.up
        yield site("preactivation", "B T F", "what its activation gets", first)
        yield site("hidden", "B T F", "its hidden units, after activation and gate", module.down, argument(0))
    yield site("output", "B T D", f"what {whose} returns", module)
    yield site("added", "B T D", f"what {whose} adds to the residual stream", residual.dropout)


def chosen(model: Transformer, patterns: str | Iterable[str]) -> list[Site]:
    """The sites whose names match; `*` stands for anything, as in `decoder.*.mixer.weights`.

    A path of a module names that module's output.

    Raises:
        HeddleError: nothing matches a pattern.
    """
    every, modules = sites(model), dict(model.named_modules())
    found: dict[str, Site] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = [name for name in every if fnmatchcase(name, pattern)]
        found.update((name, every[name]) for name in matching)
        if not matching and pattern in modules and pattern:
            found[pattern] = Site(pattern, "", "a module's output", modules[pattern], RESULT)
        elif not matching:
            near = did_you_mean(pattern, [*every, *modules])
            raise HeddleError(
                f"nothing in this model is called {pattern!r}.{near} heddle.look.names(model) lists the names"
            )
    return list(found.values())


def kernels(model: Transformer, patterns: str | Iterable[str] = "*") -> dict[str, Kernel]:
    """The attention kernels of a model by layer, `decoder.3.mixer` or `decoder.3.cross`, in order.

    Raises:
        HeddleError: nothing matches a pattern.
    """
    every = {
        site.name.removesuffix(".heads"): site.module for site in sites(model).values() if site.name.endswith(".heads")
    }
    found: dict[str, Any] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = {name: module for name, module in every.items() if fnmatchcase(name, pattern)}
        if not matching and (every or pattern != "*"):
            has = f"they are {', '.join(every)}" if every else "it has none"
            raise HeddleError(f"no attention layer of this model is called {pattern!r}: {has}")
        found.update(matching)
    return found


Change = Callable[[Tensor], Tensor]
Watcher = Callable[[Any], None]


@contextmanager
def hooked(changes: Sequence[tuple[Site, Change]], watchers: Sequence[tuple[Site, Watcher]]) -> Iterator[None]:
    """While entered, every call of the sites' modules is changed, then watched, in the order given."""
    handles = [_hook(site, change=change) for site, change in changes]
    handles += [_hook(site, watcher=watcher) for site, watcher in watchers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(site: Site, change: Change | None = None, watcher: Watcher | None = None) -> Any:
    port = site.port

    def act(module: nn.Module, given: Arguments, output: Any = None) -> Any:
        tensor = port.read(module, given, output)
        if watcher is not None:
            watcher(tensor)
        return None if change is None else port.write(module, given, output, change(tensor))

    register = site.module.register_forward_pre_hook if port.before else site.module.register_forward_hook
    return register(act)


@contextmanager
def attending(found: Mapping[str, Kernel], watcher: Callable[[str, AttentionPass], None]) -> Iterator[None]:
    """While entered, each call of these kernels is passed on."""

    def watch(name: str) -> Callable[[nn.Module, Arguments, Any], None]:
        return lambda module, given, output: watcher(name, _attended(module, given, output))

    handles = [kernel.register_forward_hook(watch(name)) for name, kernel in found.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def broadcast(where: str, name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """A user's tensor in the shape, dtype and device of another one.

    Raises:
        HeddleError: it cannot be broadcast to that shape.
    """
    sizes = like.shape[max(0, like.dim() - tensor.dim()) :]
    if tensor.dim() > like.dim() or any(
        size not in (1, wanted) for size, wanted in zip(tensor.shape, sizes, strict=True)
    ):
        raise wrong(where, name, tensor, f"a tensor that can be broadcast to {list(like.shape)}")
    return tensor.to(like).expand_as(like)


def one_text(where: str, tokens: Tensor) -> None:
    """Refuse tokens that are not those of a single text.

    Raises:
        HeddleError: their shape is not [1 T].
    """
    if tokens.dim() != 2 or len(tokens) != 1:
        raise wrong(where, "tokens", tokens, "the ids of one text, of shape [1 T]")
