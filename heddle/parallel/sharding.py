"""Sharding: every process holds a part of each parameter, its gradient and its optimizer state (FSDP2; Zhao et al. 2023).

Blocks gather their parameters when they compute, one block at a time. The precision is a policy of the gathered parameters:
matrices of blocks are cast to it, while tables, norms, routers and a user's modules stay in fp32. Gradients are summed in fp32.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from heddle.data.batch import Batch
from heddle.model.precision import DTYPES
from heddle.model.transformer import Transformer
from heddle.nn.block import MATRICES, Block
from heddle.nn.custom import Custom, without_custom
from heddle.parallel.dealing import Dealer
from heddle.parallel.parts import Parts
from heddle.tasks.objective import Loss

FP32 = MixedPrecisionPolicy(cast_forward_inputs=False)


class Shards(Parts):
    """The parts of a model's parameters that this process holds.

    Small parameters of the blocks, such as norms and routers, are whole on every process.

    Args:
        model: a model in fp32, alike on all processes; its parameters are sharded in place.
        mesh: processes, with the axes `replicate` and `shard`.
        precision: what blocks compute in, `fp32` or `bf16`.
        accumulate: micro-batches of a step; gradients are summed over processes after the last one only.

    Attributes:
        masters: this process's part of each parameter, by name; its memory is that of the model's own parameter.
    """

    def __init__(self, model: Transformer, mesh: DeviceMesh, precision: str, accumulate: int = 1) -> None:
        self.model, self.mesh, self.accumulate, self.calls = model, mesh, accumulate, 0
        self.group = mesh._flatten().get_group() if mesh.ndim > 1 else mesh.get_group()
        shard_model(model, mesh, precision)
        self.parameters = dict(model.named_parameters())
        self.masters = {name: _master(parameter) for name, parameter in self.parameters.items()}

    def wrap(self, objective: Callable[[Batch], Loss]) -> Callable[[Batch], Loss]:
        """The objective, whose backward pass leaves the mean of all processes' gradients after a step's last micro-batch."""

        def micro_batch(batch: Batch) -> Loss:
            self.calls += 1
            last = self.calls % self.accumulate == 0
            module: Any = self.model
            module.set_requires_gradient_sync(last)
            module.set_is_last_backward(last)
            return objective(batch)

        return micro_batch

    @torch.no_grad()
    def collect(self) -> None:
        """Give each master the gradient of its part, once a step's last micro-batch has been computed."""
        if self.calls % self.accumulate:
            return
        whole = []
        for name, parameter in self.parameters.items():
            gradient, master = parameter.grad, self.masters[name]
            if isinstance(gradient, DTensor):
                master.grad, parameter.grad = gradient.to_local(), None
            elif gradient is not None:
                whole.append(gradient)
        if whole:
            flat = torch.cat([gradient.flatten() for gradient in whole])
            dist.all_reduce(flat, group=self.group)
            flat /= self.mesh.size()
            torch._foreach_copy_([each.view(-1) for each in whole], flat.split([each.numel() for each in whole]))

    def norms(self, names: tuple[str, ...], each: Tensor) -> Tensor:
        """The norms of whole tensors [P] from those of this process's parts."""
        copies = each.new_tensor([self.copies(name) for name in names])
        squares = each.square() / copies
        dist.all_reduce(squares, group=self.group)
        return squares.sqrt()

    def copies(self, name: str) -> int:
        """How many processes hold the same part of a parameter."""
        parameter = self.parameters[name]
        if not isinstance(parameter, DTensor):
            return self.mesh.size()
        axes = zip(parameter.placements, parameter.device_mesh.shape, strict=True)
        copies = 1
        for placement, size in axes:
            copies *= 1 if placement.is_shard() else size
        return copies

    def cut_by_rows(self, masters: Sequence[Tensor]) -> list[nn.Parameter]:
        """Those masters that are some rows of a matrix."""
        cut = {id(self.masters[name]): parameter for name, parameter in self.parameters.items() if parameter.dim() == 2}
        return [each for each in masters if isinstance(each, nn.Parameter) and isinstance(cut.get(id(each)), DTensor)]

    def dealer(self, masters: Sequence[nn.Parameter]) -> Dealer:
        """Deals the matrices of which these are rows among the processes."""
        shapes = {id(self.masters[name]): parameter.shape for name, parameter in self.parameters.items()}
        replicas = self.mesh["replicate"].get_group() if self.mesh["replicate"].size() > 1 else None
        rows = [(shapes[id(each)][0], shapes[id(each)][1]) for each in masters]
        return Dealer(rows, self.mesh["shard"].get_group(), replicas)

    @torch.no_grad()
    def whole(self, name: str, part: Tensor) -> Tensor:
        """A whole tensor from the parts of a parameter, or of what has its shape; all processes call this."""
        joint = self.joint(name, part)
        return joint.full_tensor() if isinstance(joint, DTensor) else joint

    @torch.no_grad()
    def joint(self, name: str, part: Tensor) -> Tensor:
        """The same as one tensor of all processes, as `torch.distributed` knows it; nothing is sent."""
        if not self.is_part(name, part):
            return part
        parameter: Any = self.parameters[name]
        layout = {"shape": parameter.shape, "stride": parameter.stride()}
        return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **layout)

    def region(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where this process's part lies in a parameter, or in a tensor of this shape for it."""
        parameter = self.parameters.get(name)
        if not isinstance(parameter, DTensor) or shape != tuple(parameter.shape):
            return tuple(slice(0, size) for size in shape)
        (chunk,) = parameter.__create_chunk_list__()
        return tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))

    def is_part(self, name: str, tensor: Tensor) -> bool:
        """Whether a tensor is a part of a sharded parameter, or has the shape of one."""
        parameter = self.parameters.get(name)
        return isinstance(parameter, DTensor) and tensor.shape == self.masters[name].shape


def shard_model(model: Transformer, mesh: DeviceMesh, precision: str) -> None:
    """Shard the parameters of a model over the last axis of a mesh, and replicate them over the first."""
    mesh = mesh if mesh.size(0) > 1 else mesh["shard"]
    # Inputs are not cast: rotations and masks in them stay as they are.
    matrices = MixedPrecisionPolicy(DTYPES[precision], torch.float32, cast_forward_inputs=False)
    whole = set[nn.Parameter]()
    for block in blocks_of(model):
        for custom in (module for module in block.modules() if isinstance(module, Custom)):
            fully_shard(custom, mesh=mesh, mp_policy=FP32)
        whole |= small_parameters(block)
        fully_shard(block, mesh=mesh, mp_policy=matrices, ignored_params=whole)
    fully_shard(model, mesh=mesh, mp_policy=FP32, ignored_params=whole)
    if precision != "fp32":  # the parameters of blocks, which have not been gathered yet, are in fp32
        for stack in (model.encoder, model.decoder):
            if stack is not None:
                stack.entry.register_forward_pre_hook(partial(_cast_vectors, DTYPES[precision]))


def _cast_vectors(dtype: torch.dtype, entry: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give a stack's entry the tokens' vectors in the precision of the blocks."""
    return (arguments[0].to(dtype), *arguments[1:])


def small_parameters(block: Block) -> set[nn.Parameter]:
    """The parameters of a block that stay in fp32: those of norms, routers and the like, which are small, but no user's module."""
    modules = list(block.modules())
    large = [module for module in without_custom(block) if isinstance(module, (*MATRICES, Custom))]
    cast = {id(parameter) for module in large for parameter in module.parameters()}
    return {
        parameter for module in modules for parameter in module.parameters(recurse=False) if id(parameter) not in cast
    }


def blocks_of(model: Transformer) -> Iterator[Block]:
    """All blocks of a model."""
    for stack in (model.encoder, model.decoder):
        if stack is not None:
            yield from stack.layers()


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter itself or, of one that is sharded, this process's part, in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad)
