"""Counts what tensors hold, what processes send, and FLOPs, while operations run, on real tensors or on ones without memory."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, shape_wrapper

from heddle.account.forward import EXPERTS_FLOPS

# The bytes that a process sends in a collective of n processes: the argument with the tensors, and the share of them as a function
# of n, for the ring that NCCL and gloo use.
Share = Callable[[int], float]
SENT: dict[str, tuple[str, int, Share]] = {
    "_allgather_base_": ("all-gather", 0, lambda n: (n - 1) / n),
    "_reduce_scatter_base_": ("reduce-scatter", 1, lambda n: (n - 1) / n),
    "allreduce_": ("all-reduce", 0, lambda n: 2 * (n - 1) / n),
    "alltoall_base_": ("deal", 1, lambda n: (n - 1) / n),
    "broadcast_": ("broadcast", 0, lambda n: 1.0),
}
# The same of those that return what they compute.
RETURNED: dict[str, tuple[str, Share]] = {
    "all_gather_into_tensor": ("all-gather", lambda n: n - 1),
    "reduce_scatter_tensor": ("reduce-scatter", lambda n: (n - 1) / n),
    "all_reduce": ("all-reduce", lambda n: 2 * (n - 1) / n),
    "all_to_all_single": ("deal", lambda n: (n - 1) / n),
}
FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    **{name: shape_wrapper(count) for name, count in EXPERTS_FLOPS.items()},
}


class Meter(TorchDispatchMode):
    """Counts inside the `with` block.

    Args:
        node: how many processes share a machine.
        gloo: whether to count the copy in which gloo sums what it scatters, which no operation shows without it.

    Attributes:
        now: bytes of the storages that are alive and were seen.
        peaks: the most bytes in each phase (see `enter`).
        flops: of matrix products.
        kernels: operations that compute, of which a device starts one after another.
        sent: bytes that this process sends, by kind of collective and by `link` (in its machine) or `network`; `layers/` of those
            within layers, `stages/` of those to other stages.
        held: bytes when a phase began first.
    """

    def __init__(self, node: int = 1, gloo: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.node, self.gloo, self.now, self.flops, self.kernels = node, gloo, 0, 0, 0
        self.peaks, self.sent, self.held = Counter[str](), Counter[tuple[str, str]](), dict[str, int]()
        self.phase = "before"
        self.sizes = dict[int, int]()
        self.clock = 0
        self.resized = dict[
            int, list[tuple[int, int]]
        ]()  # of storages that are emptied and filled again: (time, bytes)
        self.born = dict[int, int]()

    def __enter__(self) -> Self:
        original = self.original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            """FSDP empties and fills storages, which no operation shows."""
            key = storage._cdata
            if key in self.sizes:
                self.resized.setdefault(key, [(self.born[key], self.sizes[key])]).append((self.clock, size))
                self._resize(key, size)
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        torch.UntypedStorage.resize_ = self.original  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.clock += 1
        # Where nothing watches it, the engine adds gradients of one tensor in place.
        if function is torch.ops.aten.add.Tensor and _called_by_engine():
            function, args = torch.ops.aten.add_.Tensor, args[1::-1]
        out = function(*args, **(kwargs or {}))
        self.see((args, out))
        packet = function._overloadpacket
        name = packet.__name__
        self.kernels += not (function.is_view or "empty" in name or name == "_unsafe_view")
        counter = FLOPS.get(packet)
        if counter is not None:
            self.flops += counter(*args, **(kwargs or {}), out_val=out)
        if packet is torch.ops.c10d.send:
            self._note_to(args[0], dist.get_process_group_ranks(dist.ProcessGroup.unbox(args[1]))[args[2]])
        elif function.namespace == "c10d":
            self._note_sent(packet.__name__, args)
            if self.gloo and packet.__name__ == "_reduce_scatter_base_":
                self.peaks[self.phase] = max(self.peaks[self.phase], self.now + args[1].nbytes)
        if function.namespace == "_c10d_functional" and packet.__name__ in RETURNED:
            kind, share = RETURNED[packet.__name__]
            self._note(f"layers/{kind}", share, args[0].nbytes, _resolve_process_group(args[-1]))
        return out

    def enter(self, phase: str) -> None:
        """From now on, the most bytes are those of this phase."""
        self.phase = phase
        self.held.setdefault(phase, self.now)
        self.peaks[phase] = max(self.peaks[phase], self.now)

    def see(self, values: Any) -> None:
        """Count the storages of tensors among these values from now on, each once, until it is gone."""
        for tensor in tree_leaves(values):
            if is_traceable_wrapper_subclass(tensor):  # the storage around another tensor has a size, but no memory
                self.see([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
            elif isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self.sizes:
                    self.sizes[key] = 0
                    self.born[key] = self.clock
                    weakref.finalize(storage, self._drop, key)
                if self.sizes[key] != size:
                    self._resize(key, size)

    def gathered(self) -> int:
        """The most bytes at a time in storages that were emptied and filled again: parameters gathered from all processes."""
        changes = list[tuple[int, int]]()
        for events in self.resized.values():
            before = 0
            for time, size in events:
                changes.append((time, size - before))
                before = size
        most = held = 0
        for _, change in sorted(changes):
            held += change
            most = max(most, held)
        return most

    def _resize(self, key: int, size: int) -> None:
        self.now += size - self.sizes[key]
        self.sizes[key] = size
        self.peaks[self.phase] = max(self.peaks[self.phase], self.now)

    def _drop(self, key: int) -> None:
        self.now -= self.sizes.pop(key)

    def _note_sent(self, name: str, args: Any) -> None:
        if name not in SENT:
            return
        kind, place, share = SENT[name]
        group = next(group for group in map(_group, args) if group is not None)
        tensors: Iterable[Any] = (each for each in tree_leaves(args[place]) if isinstance(each, Tensor))
        self._note(kind, share, sum(each.nbytes for each in tensors), group)

    def _note_to(self, tensors: list[Tensor], process: int) -> None:
        """What is sent to one process, which computes another stage."""
        where = "link" if process // self.node == dist.get_rank() // self.node else "network"
        self.sent["stages/send", where] += sum(each.nbytes for each in tensors)

    def _note(self, kind: str, share: Share, count: int, group: dist.ProcessGroup) -> None:
        ranks = dist.get_process_group_ranks(group)
        where = "link" if ranks[0] // self.node == ranks[-1] // self.node else "network"
        self.sent[kind, where] += round(count * share(len(ranks)))


def _called_by_engine() -> bool:
    """Whether no Python code but torch's own stands between the engine of the backward pass and the operation."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(("eval_frame.py", "_compile.py")):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _group(value: Any) -> dist.ProcessGroup | None:
    """The group of processes in an argument of a collective."""
    is_group = isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())
    return dist.ProcessGroup.unbox(value) if is_group else None
