"""Tensor parallelism: the heads of attention and the hidden units of feed-forwards divided among processes (Shoeybi et al. 2019).

A table says which linear layers are cut by outputs and which by inputs. Each process computes its heads and units for the same
tokens, and the results of `o` and `down` are summed.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from heddle.config.positions import RotaryConfig
from heddle.errors import HeddleError
from heddle.model.lora import adapted
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.block import Block
from heddle.nn.custom import without_custom
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.kernels import SDPA
from heddle.nn.moe import MoE
from heddle.nn.output import Output
from heddle.parallel.masks import divide_masks, pass_masks

BY_OUTPUTS, BY_INPUTS = ColwiseParallel, RowwiseParallel
# The linear layers of each kind of module that is divided, and how each is cut.
STYLES: dict[type[nn.Module], dict[str, type[ParallelStyle]]] = {
    Attention: {"q": BY_OUTPUTS, "k": BY_OUTPUTS, "v": BY_OUTPUTS, "o": BY_INPUTS},
    MLP: {"up": BY_OUTPUTS, "down": BY_INPUTS},
    Gated: {"gate": BY_OUTPUTS, "up": BY_OUTPUTS, "down": BY_INPUTS},
}


def divide_layers(model: Transformer, mesh: DeviceMesh, sequence: bool = False) -> set[str]:
    """Divide the layers of a model along the axis `tensor` of a mesh, in place.

    Args:
        sequence: whether the tokens between the divided layers are divided too (Korthikanti et al. 2022).

    Returns:
        The parameters that each process uses for its own heads or tokens only, such as norms: their gradients add up.
    """
    between = divide_tokens(model, mesh) if sequence else set[nn.Module]()
    shared = set[str]()
    for stack in filter(None, (model.encoder, model.decoder)):
        pass_masks(stack)
    for name, module in list(divided(model)):
        outputs = {"output_layouts": Shard(1)} if module in between else {}
        plan = {
            layer: style(**(outputs if style is BY_INPUTS else {})) for layer, style in STYLES[type(module)].items()
        }
        parallelize_module(module, mesh, plan)
        if not sequence:
            module.register_forward_pre_hook(partial(enter, mesh))
        divide_masks(module, mesh, axis=1 if isinstance(module, Attention) else -1)  # by heads, or by hidden units
        if isinstance(module, Attention):
            norms = (("q_norm", module.q_norm), ("k_norm", module.k_norm))
            shared |= {f"{name}.{norm}.{each}" for norm, inner in norms for each, _ in inner.named_parameters()}
    if sequence:
        shared |= {name for name, _ in model.named_parameters() if re.search(r"_residual\.|\.final_norm\.", name)}
    return shared


def enter(mesh: DeviceMesh, branch: nn.Module, arguments: Any) -> Any:
    """The tokens of a branch of which each process computes a part. Their gradients are summed once, not for each layer."""
    return (DTensor.from_local(arguments[0], mesh, [Replicate()], run_check=False), *arguments[1:])


def divide_tokens(model: Transformer, mesh: DeviceMesh) -> set[nn.Module]:
    """Divide the tokens of each stack between its entry and its end. Branches see all tokens.

    Returns:
        The branches whose last layer divides the tokens itself.
    """
    own = set[nn.Module]()
    for stack in filter(None, (model.encoder, model.decoder)):
        tokens = Tokens(mesh)
        stack.entry.register_forward_hook(tokens.enter)
        stack.final_norm.register_forward_hook(tokens.leave)
        for block in stack.layers():
            for residual in filter(None, (block.mixer_residual, block.cross_residual, block.ffn_residual)):
                divide_masks(residual, mesh, axis=1, whole=tokens.count)
            for module in (block.mixer, block.cross, block.ffn):
                if type(module) in STYLES:
                    assert module is not None
                    own.add(module)
                    module.register_forward_pre_hook(tokens.gather)
                elif module is not None:
                    module.register_forward_pre_hook(tokens.gather_whole)
                    module.register_forward_hook(tokens.cut)
    return own


class Tokens:
    """The tokens of a stack's pass, divided among processes along the second axis; hooks for its modules."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh, self.shape = mesh, torch.Size()

    def count(self) -> int:
        """How many tokens each row has."""
        return self.shape[1]

    def enter(self, entry: nn.Module, arguments: Any, x: Tensor) -> Tensor:
        """This process's tokens, of all that the entry returns."""
        self.shape = x.shape
        return self._cut(x)

    def leave(self, norm: nn.Module, arguments: Any, x: Tensor) -> Tensor:
        """All tokens. Every process computes the same from here on."""
        return self._joint(x).redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])

    def gather(self, branch: nn.Module, arguments: Any) -> Any:
        """All tokens for a branch of which each process computes a part: their gradients are summed."""
        return (self._joint(arguments[0]).redistribute(placements=[Replicate()]), *arguments[1:])

    def gather_whole(self, branch: nn.Module, arguments: Any) -> Any:
        """All tokens for a branch that every process computes whole."""
        return (self.leave(branch, None, arguments[0]), *arguments[1:])

    def cut(self, branch: nn.Module, arguments: Any, output: Output) -> Output:
        """This process's tokens of what such a branch returns."""
        return output._replace(hidden=self._cut(output.hidden))

    def _joint(self, x: Tensor) -> DTensor:
        stride = (self.shape[1] * self.shape[2], self.shape[2], 1)
        return DTensor.from_local(x, self.mesh, [Shard(1)], run_check=False, shape=self.shape, stride=stride)

    def _cut(self, x: Tensor) -> Tensor:
        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(1)]).to_local()


def divided(model: Transformer) -> Iterator[tuple[str, nn.Module]]:
    """The modules of the blocks that are divided, with their names."""
    names = {module: name for name, module in model.named_modules()}
    yield from ((names[module], module) for module in without_custom(model) if type(module) in STYLES)


def check_layers(model: Transformer, processes: int) -> None:
    """Check that the layers of a model can be divided among this many processes.

    Raises:
        HeddleError: one of them cannot.
    """
    for name, module in divided(model):
        for problem in _problems(module, processes):
            raise HeddleError(f"parallel: tensor = {processes} cannot divide {name}: {problem}")
    for name, block in ((name, module) for name, module in model.named_modules() if isinstance(module, Block)):
        for part in ("mixer", "cross", "ffn"):
            branch: nn.Module | None = getattr(block, part, None)
            if branch is not None and type(branch) not in STYLES and not isinstance(branch, MoE):
                kinds = "attention, feed-forwards and mixtures of experts"
                raise HeddleError(
                    f"parallel: tensor = {processes} cannot divide {name}.{part}: it is a {type(branch).__name__}; "
                    f"{kinds} can be divided"
                )


def _problems(module: nn.Module, processes: int) -> Iterator[str]:
    ranks = {len(each.lora_a) for _, each in adapted(module)}
    for rank in (each for each in ranks if len(torch.arange(each).chunk(processes)) < processes):
        yield f"its adapters of rank {rank} leave a process without a row: set a multiple of {processes}"
    # torch takes what a row-wise layer has inside for linear layers, too.
    by_inputs = {layer for layer, style in STYLES[type(module)].items() if style is BY_INPUTS}
    for name in (name for name, _ in adapted(module) if name in by_inputs):
        yield f"adapters of {name}, which is cut by inputs, are not divided: leave it out of lora's layers"
    if not isinstance(module, Attention):
        assert isinstance(module.up, nn.Linear)
        if module.up.out_features % processes:
            yield f"its {module.up.out_features} hidden units are not a multiple of {processes}"
        return
    for heads, what in (
        (module.q.out_features // module.head_dim, "heads"),
        (module.k.out_features // module.head_dim, "key heads"),
    ):
        if heads % processes:
            yield f"its {heads} {what} are not a multiple of {processes}"
    if module.norms_all and any(True for _ in module.q_norm.parameters()):
        yield "its norm of queries is over all heads: set qk_norm_over = head"
    relative = module.pattern.relative
    if relative is not None and not isinstance(relative.config, RotaryConfig):
        yield "each head has relative positions of its own: use rotary or learned ones"
    if isinstance(module.kernel, SDPA) and module.kernel.dropout.rate:
        yield "kernel = 'sdpa' drops weights by random numbers of its own: set kernel = auto"
    if module.sinks is not None or module.scores is not None:
        yield "sinks and custom scores of heads are not divided"
