"""Sharding: every process holds a part of each parameter, its gradient and its optimizer state (FSDP2; Zhao et al. 2023).

Blocks gather their parameters when they compute, one block at a time. The precision is a policy of the gathered parameters:
matrices of blocks are cast to it, while tables, norms, routers and a user's modules stay in fp32. Gradients are summed in fp32.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from heddle.config.parallel import ParallelConfig
from heddle.data.batch import Batch
from heddle.display import size as readable
from heddle.errors import room_for
from heddle.model.precision import DTYPES
from heddle.model.stack import Stack
from heddle.model.transformer import Transformer
from heddle.nn.block import MATRICES, Block
from heddle.nn.custom import Custom, without_custom
from heddle.parallel.context import check_layers as check_tokens
from heddle.parallel.context import cut_tokens, gather_keys
from heddle.parallel.dealing import Dealer
from heddle.parallel.experts import DividedExperts, check_experts, divide_experts, divided_again
from heddle.parallel.mesh import make_context, make_expert_mesh, make_mesh
from heddle.parallel.parts import Objective, Parts
from heddle.parallel.regions import Division, slices
from heddle.parallel.tensor import check_layers, divide_layers
from heddle.parallel.vocabulary import OwnRows, check_tables, divide_tables
from heddle.tasks.objective import Loss

FP32 = MixedPrecisionPolicy(cast_forward_inputs=False)


class Shards(Parts):
    """The parts of a model's parameters that this process holds.

    Small parameters of the blocks, such as norms and routers, are whole on every process.

    Args:
        model: a model in fp32, alike on all processes; its parameters are sharded in place. On the meta device, only the parts get
            memory, and `fill` gives them their values.
        config: how they are divided.
        sizes: of the axes of the mesh, see `heddle.parallel.mesh.mesh_sizes`.
        precision: what blocks compute in, `fp32` or `bf16`.
        accumulate: micro-batches of a step; gradients are summed over processes after the last one only.
        device: where the parts of a model on the meta device get memory; None: the model has its own.

    Attributes:
        masters: this process's part of each parameter, by name; its memory is that of the model's own parameter.
    """

    def __init__(
        self,
        model: Transformer,
        config: ParallelConfig,
        sizes: dict[str, int],
        precision: str,
        accumulate: int = 1,
        device: torch.device | None = None,
    ) -> None:
        check_division(model, config)
        leave_out_advice()
        kind = (model.device if device is None else device).type
        self.every = make_mesh(sizes, kind)
        mesh = self.every["replicate", "shard", "tensor"]
        self.model, self.mesh, self.accumulate, self.calls = model, mesh, accumulate, 0
        self.place = dict(zip(mesh.mesh_dim_names or (), mesh.get_coordinate() or (), strict=True))
        self.group = mesh._flatten().get_group()
        self.summed, self.rows = set[str](), dict[str, OwnRows]()
        if mesh["tensor"].size() > 1:
            self.summed = divide_layers(model, mesh["tensor"], config.sequence)
            self.rows = divide_tables(model, mesh["tensor"])
        self.context = make_context(sizes, kind) if sizes["context"] > 1 else None
        if self.context is not None:
            gather_keys(model, self.context)
        self.expert_size = sizes["expert"]
        self.expert_mesh = make_expert_mesh(sizes, kind) if self.expert_size > 1 else None
        self.experts = {} if self.expert_mesh is None else divide_experts(model, self.expert_mesh["expert"])
        if self.expert_mesh is not None:
            shard_experts(model, self.expert_mesh, precision)
        self.roots: Sequence[nn.Module] = [model]
        self.shard(config, precision)
        if device is not None:
            self.materialise(device)
        self.parameters = dict(model.named_parameters())
        self.masters = {name: _master(parameter) for name, parameter in self.parameters.items()}
        sharded = {name: each for name, each in self.parameters.items() if isinstance(each, DTensor)}
        self.divisions = {name: Division.of(each) for name, each in sharded.items()}
        if self.expert_mesh is not None:
            self.divisions |= {name: divided_again(self.divisions[name], self.expert_mesh) for name in self.experts}

    def shard(self, config: ParallelConfig, precision: str) -> None:
        """Leave this process its parts of the parameters."""
        shard_model(self.model, self.mesh, precision)

    def materialise(self, device: torch.device) -> None:
        """Give the parts of parameters on the meta device memory; their values are undefined."""

        def real(tensor: Tensor) -> Tensor:
            return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

        needed = sum(_part(each).nbytes for each in self.model.parameters() if each.is_meta)
        with room_for(f"{readable(needed)} of weights on {device}", "use more processes, or a smaller model"):
            for root in dict.fromkeys((*self.roots, self.model)):
                # What is inside comes first, since a module that FSDP manages then looks for the new memory of all its parameters.
                for module in reversed([*without_custom(root)]):
                    module._apply(real, recurse=False)

    def cut(self, batch: Batch) -> Batch:
        """This process's tokens of its rows."""
        context = self.context
        return batch if context is None else cut_tokens(batch, context.get_local_rank(), context.size())

    def wrap(self, objective: Objective) -> Objective:
        """The objective, whose backward pass leaves the mean of all processes' gradients after a step's last micro-batch."""

        def micro_batch(batch: Batch) -> Loss:
            self.calls += 1
            last = self.calls % self.accumulate == 0
            module: Any = self.model
            module.set_requires_gradient_sync(last)
            module.set_is_last_backward(last)
            return objective(batch)

        return micro_batch

    @contextmanager
    def whole_model(self) -> Iterator[None]:
        """Inside the `with` block, every process that calls the model gets what the whole model computes, without gradients."""
        yield
        for module in (module for root in self.roots for module in root.modules() if isinstance(module, FSDPModule)):
            module.reshard()  # the next step begins with the parts, not with an average that was scored

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
                if (
                    name in self.experts
                ):  # the tokens of all processes of the axis `expert` came here: a sum, not a mean
                    master.grad /= self.expert_size
            elif gradient is not None:
                if name in self.summed:
                    gradient *= self.mesh["tensor"].size()  # each process has the gradient through its own heads
                whole.append(gradient)
        if whole:
            flat = torch.cat([gradient.flatten() for gradient in whole])
            dist.all_reduce(flat, group=self.group)
            flat /= self.mesh.size()
            torch._foreach_copy_([each.view(-1) for each in whole], flat.split([each.numel() for each in whole]))

    def norms(self, names: tuple[str, ...], each: Tensor) -> tuple[tuple[str, ...], Tensor]:
        """The names and norms of whole tensors [P] from those of this process's parts."""
        copies = each.new_tensor([self.copies(name) for name in names])
        squares = each.square() / copies
        dist.all_reduce(squares, group=self.group)
        return names, squares.sqrt()

    def copies(self, name: str) -> int:
        """How many processes hold the same part of a parameter."""
        return self.mesh.size() // (self.divisions[name].parts if name in self.divisions else 1)

    def matrices(self, masters: Sequence[Tensor]) -> list[nn.Parameter]:
        """Those masters that are parts of one matrix."""
        cut = {id(self.masters[name]) for name, division in self.divisions.items() if len(division.shape) == 2}
        return [each for each in masters if isinstance(each, nn.Parameter) and id(each) in cut]

    def dealer(self, masters: Sequence[nn.Parameter]) -> Dealer:
        """Deals the matrices of which these are parts among the processes."""
        divisions = {id(self.masters[name]): division for name, division in self.divisions.items()}
        replicas = self.mesh["replicate"].get_group() if self.mesh["replicate"].size() > 1 else None
        inner = self.mesh["shard", "tensor"]
        places = [{**self.place, "shard": s, "tensor": t} for s in range(inner.size(0)) for t in range(inner.size(1))]
        matrices = [divisions[id(each)] for each in masters]
        shapes = [(each.shape[0], each.shape[1]) for each in matrices]
        regions = [[each.region(place) for place in places] for each in matrices]
        return Dealer(shapes, regions, inner._flatten().get_group(), replicas)

    @torch.no_grad()
    def whole(self, name: str, part: Tensor) -> Tensor:
        """A whole tensor from the parts of a parameter, or of what has its shape; all processes call this."""
        joint = self.joint(name, part)
        return joint.full_tensor() if isinstance(joint, DTensor) else joint

    @torch.no_grad()
    def joint(self, name: str, part: Tensor) -> Tensor:
        """The same as one tensor of all processes, as `torch.distributed` knows it; nothing is sent."""
        is_part = name in self.divisions and part.shape == self.masters[name].shape
        return self.divisions[name].joint(part) if is_part else part

    def region(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where this process's part lies in a parameter, or in a tensor of this shape for it."""
        division = self.divisions.get(name)
        if division is None or shape != division.shape:
            return tuple(slice(0, size) for size in shape)
        return slices(division.region())


def leave_out_advice() -> None:
    """Leave out two warnings of torch that users take for errors: whole tables are gathered in two steps, and a model's output is a
    view, which nothing here changes."""
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")


def check_division(model: Transformer, config: ParallelConfig) -> None:
    """Check that the layers of a model, which may be on the meta device, can be divided.

    Raises:
        HeddleError: one of them cannot.
    """
    if config.tensor > 1:
        check_layers(model, config.tensor)
        check_tables(model, config.tensor)
    if config.context > 1:
        check_tokens(model, config.context)
    if config.expert > 1:
        check_experts(model, config.expert)


def shard_experts(model: Transformer, mesh: DeviceMesh, precision: str) -> None:
    """Shard the experts of this process's share over the axis `shard` of a mesh of experts."""
    axes = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    for module in model.modules():
        if isinstance(module, DividedExperts):
            fully_shard(module, mesh=axes, mp_policy=policy(precision))


def policy(precision: str) -> MixedPrecisionPolicy:
    """Of the matrices of blocks. Inputs are not cast: rotations and masks in them stay as they are."""
    return MixedPrecisionPolicy(DTYPES[precision], torch.float32, cast_forward_inputs=False)


def shard_model(
    model: nn.Module, mesh: DeviceMesh, precision: str, whole: Iterable[nn.Parameter] = (), once: bool = False
) -> None:
    """Shard the parameters of a model, or of a part of one, over the axis `shard` of a mesh, and replicate them over `replicate`.

    Args:
        whole: parameters to leave as they are.
        once: whether blocks gather their parameters once for a step, and not for each pass.
    """
    mesh, whole = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"], set(whole)
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    for block in list(blocks_of(model)):
        for custom in (module for module in block.modules() if isinstance(module, Custom)):
            fully_shard(custom, mesh=mesh, mp_policy=FP32, reshard_after_forward=not once)
        whole |= small_parameters(block)
        fully_shard(block, mesh=mesh, mp_policy=policy(precision), ignored_params=whole, reshard_after_forward=not once)
    whole |= {each for stack in stacks for each in stack.final_norm.parameters()}
    fully_shard(model, mesh=mesh, mp_policy=FP32, ignored_params=whole)
    if precision != "fp32":  # the parameters of blocks, which have not been gathered yet, are in fp32
        for stack in stacks:
            stack.entry.register_forward_pre_hook(partial(cast_vectors, DTYPES[precision]))


def cast_vectors(dtype: torch.dtype, entry: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
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


def blocks_of(model: nn.Module) -> Iterator[Block]:
    """All blocks of a model, or of a part of one."""
    return (module for module in model.modules() if isinstance(module, Block))


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter itself or, of one that is sharded, this process's part, in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(_part(parameter), requires_grad=parameter.requires_grad)


def _part(parameter: nn.Parameter) -> Tensor:
    """This process's part of a parameter, in the same memory."""
    return parameter.to_local().detach() if isinstance(parameter, DTensor) else parameter.detach()
