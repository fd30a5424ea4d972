"""Expert parallelism: the experts of each mixture divided among processes, to which tokens travel (Lepikhin et al. 2021)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.nn.experts import Experts
from heddle.parallel.regions import Division


class DividedExperts(Experts):
    """Experts of which this process has some: each pair of token and expert is computed where the expert is.

    Attributes:
        group: the processes that have all experts between them, in order.
    """

    group: dist.ProcessGroup

    def forward(self, x: Tensor, gates: Tensor, choice: Tensor, load: Tensor) -> Tensor:
        """As `Experts.forward`, from this process's tokens and what `load` counts of them."""
        processes, here = self.group.size(), len(self.up)
        arriving, sent, received = self.travels(load, choice.numel())
        order = choice.flatten().argsort(stable=True)[: sum(sent)]  # padding's pairs come last and go nowhere
        rows = self._travel(x[order // choice.shape[1]], received, sent)
        # Rows arrive process by process, and from each of them sorted by expert.
        experts = torch.arange(here, device=x.device).repeat(processes)
        expert = experts.repeat_interleave(arriving.flatten(), output_size=sum(received))
        ones = gates.new_ones(len(rows), 1)
        out = self._travel(super().forward(rows, ones, expert[:, None], arriving.sum(0)), sent, received)
        share = out * gates.flatten()[order, None].to(out.dtype)
        return torch.zeros_like(x).index_add(0, order // choice.shape[1], share)

    def travels(self, load: Tensor, most: int) -> tuple[Tensor, list[int], list[int]]:
        """What arrives for each of this process's experts from each process, how many pairs go to each, and come from each.

        Args:
            load: pairs for each of all experts.
            most: pairs, those of padding included.
        """
        counts = load.view(self.group.size(), len(self.up))
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        return arriving, counts.sum(1).tolist(), arriving.sum(1).tolist()

    def _travel(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        out: Tensor = all_to_all_single_autograd(rows.contiguous(), received, sent, self.group)
        return out


def mixtures_of(model: Transformer) -> list[tuple[str, Experts]]:
    """The experts of each mixture, by name."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Experts)]


def check_experts(model: Transformer, processes: int) -> None:
    """Check that this many processes can divide the experts of a model.

    Raises:
        HeddleError: the model has no mixture, or the experts of one are not a multiple of the processes.
    """
    where, mixtures = f"parallel: expert = {processes}", mixtures_of(model)
    if not mixtures:
        raise HeddleError(f"{where}: this model has no experts: leave it out")
    for name, module in mixtures:
        if len(module.up) % processes:
            raise HeddleError(f"{where} cannot divide {name}: its {len(module.up)} experts are not a multiple of it")
        if module.dispatch != "grouped":
            raise HeddleError(f"{where} cannot divide {name}: set dispatch = grouped")


def divide_experts(model: Transformer, mesh: DeviceMesh) -> dict[str, nn.Parameter]:
    """Leave this process its experts of every mixture of a model, and return their parameters by name."""
    parameters = dict[str, nn.Parameter]()
    for name, module in mixtures_of(model):
        divided: Any = module
        for each, parameter in list(module.named_parameters()):
            own = parameter.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
            setattr(divided, each, nn.Parameter(own, requires_grad=parameter.requires_grad))
            parameters[f"{name}.{each}"] = getattr(divided, each)
        divided.__class__, divided.group = DividedExperts, mesh.get_group()
    return parameters


def divided_again(own: Division, mesh: DeviceMesh) -> Division:
    """How all experts are divided, from how this process's share of them is sharded.

    Args:
        own: the division of the share.
        mesh: with the axes `replicate`, `shard`, `expert` and `tensor`.
    """
    by_expert = _StridedShard(0, split_factor=mesh["expert"].size()) if mesh["shard"].size() > 1 else Shard(0)
    shape = (own.shape[0] * mesh["expert"].size(), *own.shape[1:])
    return Division(mesh["replicate", "shard", "expert"], (Replicate(), by_expert, Shard(0)), shape)
