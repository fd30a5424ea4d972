"""Named tensors inside a model that can be read and replaced, such as `decoder.3.mixer.heads` or `encoder.0.residual_after`.

A site is an input or output of a module, so a forward hook reaches it with any kernel and cache. Models need no conversion, and
without hooks there is no overhead.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    """How to read a tensor from a module's call, and how to replace it.

    Attributes:
        read: maps (module, arguments, output) to the tensor; before the call, the output is None.
        write: maps (module, arguments, output, new tensor) to the new arguments or output.
        before: whether the tensor is an argument of the call.
    """

    read: Callable[[nn.Module, Arguments, Any], Tensor]
    write: Callable[[nn.Module, Arguments, Any, Tensor], Any]
    before: bool = False


def argument(index: int) -> Port:
    """A positional argument of the call."""
    return Port(
        lambda module, args, output: args[index],
        lambda module, args, output, new: (*args[:index], new, *args[index + 1 :]),
        before=True,
    )


def _output(module: nn.Module, args: Arguments, output: Any) -> Tensor:
    result: Tensor = output.hidden if isinstance(output, Output) else output
    return result


def _with_output(module: nn.Module, args: Arguments, output: Any, new: Tensor) -> Any:
    return output._replace(hidden=new) if isinstance(output, Output) else new


def _gates(module: nn.Module, args: Arguments, output: Any) -> Tensor:
    gates, choice, logits = output
    return torch.zeros_like(logits).scatter(-1, choice, gates)


def _with_gates(module: nn.Module, args: Arguments, output: Any, new: Tensor) -> Any:
    return new.gather(-1, output[1]), *output[1:]


def _attention_pass(module: nn.Module, args: Arguments, output: Any) -> AttentionPass:
    assert isinstance(module, Kernel)
    q, k, v, lowered = args
    return AttentionPass(q, k, v, output, lowered, module.scale, module.cap)


def _from_scores(attended: AttentionPass, scores: Tensor) -> Tensor:
    return attended.weighted(attended.softmaxed(scores))


RESULT = Port(_output, _with_output)
GATES = Port(_gates, _with_gates)  # [B T E]: 0 for inactive experts, which cannot be changed
ROUTER_LOGITS = Port(lambda module, args, output: output[2], lambda module, args, output, new: (*output[:2], new))
SCORES = Port(
    lambda module, args, output: _attention_pass(module, args, output).scores(),
    lambda module, args, output, new: _from_scores(_attention_pass(module, args, output), new).to(output.dtype),
)
WEIGHTS = Port(
    lambda module, args, output: _attention_pass(module, args, output).weights(),
    lambda module, args, output, new: _attention_pass(module, args, output).weighted(new).to(output.dtype),
)


@dataclass(frozen=True)
class Site:
    """A tensor inside a model.

    Attributes:
        name: such as `decoder.3.mixer.heads`; layers are counted from 0.
        axes: letters of the axes, such as `B H T d`.
        description: one line.
        module: the hooked module.
        port: how to read and replace the tensor.
    """

    name: str
    axes: str
    description: str
    module: nn.Module
    port: Port


def sites(model: Transformer) -> dict[str, Site]:
    """All sites of a model by name, in forward order."""
    sites_by_name: dict[str, Site] = {}
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is not None:
            sites_by_name.update({site.name: site for site in _stack_sites(name, stack)})
    return sites_by_name


@checked()
def names(model: Transformer) -> dict[str, str]:
    """The named tensors of a model, with their axes and descriptions.

    Axes: B batch, T queries, S keys, D width, H heads, K kv-heads, d head width, F feed-forward,
    E experts.
    The path of any other module names its output: `decoder.blocks.0.mixer.inner.taps`.
    """
    return {name: f"{site.axes}: {site.description}" for name, site in sites(model).items()}


def _stack_sites(stack: str, module: Stack) -> Iterator[Site]:
    yield Site(f"{stack}.embedded", "B T D", "token embeddings, without positions", module.entry, argument(0))
    yield Site(f"{stack}.entry", "B T D", "input of the first layer, with positions and norm", module.entry, RESULT)
    for number, block in enumerate(module.layers()):
        yield from _block_sites(f"{stack}.{number}", block)
    yield Site(f"{stack}.output", "B T D", "hidden states after the final norm", module, RESULT)


def _block_sites(name: str, block: Block) -> Iterator[Site]:
    def site(end: str, axes: str, description: str, module: nn.Module, port: Port = RESULT) -> Site:
        return Site(f"{name}.{end}", axes, description, module, port)

    yield site("residual_before", "B T D", "residual stream before the layer", block.mixer_residual.before, argument(0))
    yield from _branch_sites(f"{name}.mixer", "the mixer", block.mixer, block.mixer_residual)
    if block.cross is not None and block.cross_residual is not None:
        before = block.cross_residual.before
        yield site("residual_before_cross", "B T D", "residual stream after the mixer", before, argument(0))
        yield from _branch_sites(f"{name}.cross", "cross-attention", block.cross, block.cross_residual)
    if block.ffn is not None and block.ffn_residual is not None:
        if not isinstance(block, ParallelBlock):  # there, the feed-forward reads the stream that the mixer reads
            before = block.ffn_residual.before
            yield site("residual_middle", "B T D", "residual stream before the feed-forward", before, argument(0))
        yield from _branch_sites(f"{name}.ffn", "the feed-forward", block.ffn, block.ffn_residual)
    yield site("residual_after", "B T D", "residual stream after the layer", block)


def _branch_sites(name: str, owner: str, module: nn.Module, residual: Any) -> Iterator[Site]:
    def site(end: str, axes: str, description: str, module: nn.Module, port: Port = RESULT) -> Site:
        return Site(f"{name}.{end}", axes, description, module, port)

    yield site("input", "B T D", f"input of {owner}", module, argument(0))
    kernel = next((submodule for submodule in module.modules() if isinstance(submodule, Kernel)), None)
    if kernel is not None:
        yield site("q", "B H T d", "queries, after norm and rotary positions", kernel, argument(0))
        yield site("k", "B K S d", "keys, after norm and rotary positions, including cached ones", kernel, argument(1))
        yield site("v", "B K S d", "values, including cached ones", kernel, argument(2))
        yield site("scores", "B H T S", "q kᵀ · scale, capped and biased; -inf where masked", kernel, SCORES)
        yield site("weights", "B H T S", "attention weights, the softmax of the scores", kernel, WEIGHTS)
        yield site("heads", "B H T d", "head outputs, before the output projection", kernel)
    if isinstance(module, MoE):
        yield site("router_logits", "B T E", "router logits of all experts", module.router, ROUTER_LOGITS)
        yield site("gates", "B T E", "gates of active experts, 0 for the others", module.router, GATES)
    if isinstance(module, MLP | Gated):
        first = module.gate if isinstance(module, Gated) else module.up
        yield site("preactivation", "B T F", "input of the activation", first)
        yield site("hidden", "B T F", "hidden units, after activation and gate", module.down, argument(0))
    yield site("output", "B T D", f"output of {owner}", module)
    yield site("added", "B T D", f"what {owner} adds to the residual stream", residual.dropout)


def match_sites(model: Transformer, patterns: str | Iterable[str]) -> list[Site]:
    """The sites that match patterns such as `decoder.*.mixer.weights`, or the outputs of modules given by path.

    Raises:
        HeddleError: a pattern matches nothing.
    """
    all_sites, modules = sites(model), dict(model.named_modules())
    matches: dict[str, Site] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = [name for name in all_sites if fnmatchcase(name, pattern)]
        matches.update((name, all_sites[name]) for name in matching)
        if not matching and pattern in modules and pattern:
            matches[pattern] = Site(pattern, "", "a module's output", modules[pattern], RESULT)
        elif not matching:
            near = did_you_mean(pattern, [*all_sites, *modules])
            raise HeddleError(f"no tensor in this model matches {pattern!r}.{near} See heddle.look.names(model)")
    return list(matches.values())


def kernels(model: Transformer, patterns: str | Iterable[str] = "*") -> dict[str, Kernel]:
    """The attention kernels of a model by layer, such as `decoder.3.mixer` or `decoder.3.cross`, in order.

    Raises:
        HeddleError: a pattern matches nothing.
    """
    all_kernels = {
        site.name.removesuffix(".heads"): site.module for site in sites(model).values() if site.name.endswith(".heads")
    }
    matches: dict[str, Any] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matching = {name: module for name, module in all_kernels.items() if fnmatchcase(name, pattern)}
        if not matching and (all_kernels or pattern != "*"):
            available = f"choose from {', '.join(all_kernels)}" if all_kernels else "it has none"
            raise HeddleError(f"no attention layer of this model matches {pattern!r}: {available}")
        matches.update(matching)
    return matches


Change = Callable[[Tensor], Tensor]
Watcher = Callable[[Any], None]


@contextmanager
def hooked(
    changes: Sequence[tuple[Site, Change]],
    watchers: Sequence[tuple[Site, Watcher]] = (),
    without: Sequence[AbstractContextManager[None]] = (),
) -> Iterator[None]:
    """Register hooks for the context: changes first, then watchers, in the given order.

    Args:
        without: entered before, such as those of `heddle.look.switches`.
    """
    with ExitStack() as handles:
        for context in without:
            handles.enter_context(context)
        for site, change in changes:
            handles.callback(_hook(site, change=change).remove)
        for site, watcher in watchers:
            handles.callback(_hook(site, watcher=watcher).remove)
        yield


def _hook(site: Site, change: Change | None = None, watcher: Watcher | None = None) -> Any:
    port = site.port

    def hook(module: nn.Module, args: Arguments, output: Any = None) -> Any:
        tensor = port.read(module, args, output)
        if watcher is not None:
            watcher(tensor)
        return None if change is None else port.write(module, args, output, change(tensor))

    register = site.module.register_forward_pre_hook if port.before else site.module.register_forward_hook
    return register(hook)


@contextmanager
def watch_attention(
    kernels_by_name: Mapping[str, Kernel], watcher: Callable[[str, AttentionPass], None]
) -> Iterator[None]:
    """Pass every call of these kernels to the watcher within the context."""

    def watch(name: str) -> Callable[[nn.Module, Arguments, Any], None]:
        return lambda module, args, output: watcher(name, _attention_pass(module, args, output))

    handles = [kernel.register_forward_hook(watch(name)) for name, kernel in kernels_by_name.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def broadcast(where: str, name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """Broadcast a user's tensor to the shape, dtype and device of another.

    Raises:
        HeddleError: the shapes are not compatible.
    """
    sizes = like.shape[max(0, like.dim() - tensor.dim()) :]
    if tensor.dim() > like.dim() or any(
        size not in (1, target) for size, target in zip(tensor.shape, sizes, strict=True)
    ):
        raise wrong(where, name, tensor, f"a tensor that can be broadcast to {list(like.shape)}")
    return tensor.to(like).expand_as(like)


def check_single_text(where: str, tokens: Tensor) -> None:
    """Check that tokens have the shape [1 T]."""
    if tokens.dim() != 2 or len(tokens) != 1:
        raise wrong(where, "tokens", tokens, "the ids of one text, of shape [1 T]")
