"""A GPU that is imitated: tensors that say `cuda:0` and hold their numbers on the CPU.

    with Imitation() as gpu:
        heddle.fit(..., device="cuda")
    gpu.syncs, gpu.launches, gpu.attention

Every operation passes `Imitation.call`: it refuses tensors on two devices as CUDA does, counts what waits for the device and what
is a kernel, and computes on the numbers. `guard.load()` must come before torch is imported.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import heddle
from tests.device.functions import Functions
from tests.device.recording import Graph, flat
from tests.device.says import said_by_torch

DEVICE = torch.device("cuda", 0)
HEDDLE = str(Path(heddle.__file__).parent) + "/"

# Operations without a kernel that do not look like views in their schema.
NO_KERNEL = {"_local_scalar_dense", "_reshape_alias", "_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "is_pinned",
             "lift", "lift_fresh", "new_empty", "new_empty_strided", "set_"}  # fmt: skip
# Operations whose result, or its size, the host needs.
WAITING = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
INDEXING = {"_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "index", "index_put", "index_put_"}
# They take no number of the host in place of a tensor of the device.
STRICT = ("_fused_", "addmm", "baddbmm", "bmm", "embedding", "gather", "index_select", "mm")
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.20 GiB is free."
)
# How many tensors a foreach kernel takes at once, by the number of lists (ATen/native/cuda/MultiTensorApply.cuh); and how much.
DEPTH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS, BLOCK = 320, 65536


class Place(NamedTuple):
    """Where in heddle something was called."""

    file: str
    function: str
    line: int

    @classmethod
    def now(cls) -> "Place":
        """The nearest caller that belongs to heddle."""
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(HEDDLE):
                return cls(frame.f_code.co_filename.removeprefix(HEDDLE), frame.f_code.co_qualname, frame.f_lineno)
            frame = frame.f_back
        return cls("outside", "", 0)


class Kind(NamedTuple):
    """An operation of torch.

    Attributes:
        name: without its namespace and overload.
        view: whether what it returns shares the memory of an argument.
    """

    name: str
    view: bool

    @classmethod
    @cache
    def of(cls, function: Any) -> "Kind":
        schema = function._schema
        view = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
        return cls(schema.name.rpartition("::")[2], view)


def tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists of them."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from tensors(each)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same value with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, each) for each in value)
    return value


class OnDevice(Tensor):
    """A tensor that says it is on the device.

    Attributes:
        numbers: the tensor that holds its numbers.
        gpu: the device.
    """

    numbers: Tensor
    gpu: "Imitation"

    @staticmethod
    def __new__(cls, numbers: Tensor, gpu: "Imitation") -> "OnDevice":
        shell = Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        shell.numbers, shell.gpu = numbers, gpu
        return shell

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Reached where no mode is active, as in a thread of torch's own."""
        first = next(each for each in tensors((*args, *(kwargs or {}).values())) if isinstance(each, OnDevice))
        return first.gpu.call(function, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Any) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]  # exchanges the shell alone
        self.numbers = value.numbers

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    __array__ = numpy

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.numbers!r})"


def numbers_of(tensor: Tensor) -> Tensor:
    return tensor.numbers if isinstance(tensor, OnDevice) else tensor


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and it is asked for at every operation

    def __init__(self, gpu: "Imitation") -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.call(function, args, kwargs or {})


class Imitation:
    """The device, inside a `with` block.

    Args:
        double: whether it has float64, which a Mac's has not.
        capability: the compute capability that it says it has.

    Attributes:
        syncs: how often the host waited for the device, by place and reason.
        launches: kernels, by place. A lower bound: an operation counts one, whatever its implementation launches.
        attention: which implementation torch would choose, by its name, with what it was given.
        copies: copies to the host that were not waited for, whose numbers arrive with the next sync.
        full: whether the memory is too short for what is allocated at a place.
    """

    def __init__(self, double: bool = True, capability: tuple[int, int] = (9, 0)) -> None:
        self.double, self.capability = double, capability
        self.graph: Graph | None = None
        self.full: Callable[[Place], bool] = lambda place: False
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self.syncs: Counter[tuple[Place, str]] = Counter()
        self.launches: Counter[Place] = Counter()
        self.attention: Counter[str] = Counter()
        self.copies: list[tuple[Tensor, Tensor]] = []

    def __enter__(self) -> "Imitation":
        self.stack = ExitStack()
        self.stack.enter_context(said_by_torch(self))
        self.stack.enter_context(self.here())
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()

    @contextmanager
    def here(self) -> Iterator[None]:
        """In this thread, which other threads must say for themselves; backward passes stay in it."""
        # A list that becomes a tensor of the device, or an index into one, is a copy that the modes see.
        lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with _Operations(self), Functions(self), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(lifts)

    def sync(self, reason: str) -> None:
        """The host waits until all is done.

        Raises:
            RuntimeError: in the capture of a graph.
        """
        if self.graph is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({reason})")
        self.syncs[Place.now(), reason] += 1
        for target, numbers in self.copies:
            target.copy_(numbers)
        self.copies = []

    def launch(self, number: int = 1) -> None:
        self.launches[Place.now()] += number

    def call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation on whatever it is given."""
        ours, host = list[OnDevice](), list[Tensor]()
        for each in tensors((*args, *kwargs.values())):
            (ours if isinstance(each, OnDevice) else host).append(each)
        device = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        place = device or ("cuda" if ours else "cpu")
        if not ours and place != "cuda":
            return function(*args, **kwargs)
        call = Call(function, Kind.of(function), args, kwargs, ours, host, place)
        call.check()
        for reason in call.waits():
            self.sync(reason)
        if number := call.kernels():
            self.launch(number)
        if place == "cuda" and not call.kind.view and self.full(Place.now()):
            raise torch.OutOfMemoryError(FULL)
        args = mapped(numbers_of, args)
        kwargs = {name: mapped(numbers_of, each) for name, each in kwargs.items()}
        if device == "cuda":
            kwargs["device"] = torch.device("cpu")

        def compute() -> Any:
            return function(*args, **kwargs)

        with torch._C.DisableTorchFunction():  # the mode itself is off while it handles an operation
            if self.graph is None:
                return self._given_back(call, compute())
            if call.moves:
                self.sync("copy of the host's memory")
            if function._schema.is_mutable:
                self.graph.keep([numbers_of(each) for each in call.ours])
            result = compute()
            self.graph.note(compute, flat(result), [numbers_of(each) for each in call.ours])
            return self._given_back(call, result)

    def _given_back(self, call: "Call", result: Any) -> Any:
        """What an operation returns: the same shells for the same numbers, new ones for new numbers."""
        if call.later():
            target = result if call.kind.name == "_to_copy" else call.args[0]
            self.copies.append((target, target.clone()))
            target.copy_(torch.full_like(target, torch.nan if target.is_floating_point() else -1))
        if call.place != "cuda":
            return result
        shells = {id(each.numbers): each for each in call.ours} | {id(each): each for each in call.host}

        def shell(each: Tensor) -> Tensor:
            if id(each) in shells:
                return shells[id(each)]
            if each.dtype == torch.float64 and not self.double:
                raise TypeError(
                    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                    f"Please use float32 instead. ({call.function})"
                )
            return OnDevice(each, self)

        return mapped(shell, result)


class Call(NamedTuple):
    """An operation in which the device has a part.

    Attributes:
        function: torch's operation.
        kind: which one it is.
        args: its arguments.
        kwargs: its arguments by name.
        ours: the tensors on the device among them.
        host: the tensors on the CPU among them.
        place: the type of the device that the result will be on.
    """

    function: Any
    kind: Kind
    args: Any
    kwargs: dict[str, Any]
    ours: list[OnDevice]
    host: list[Tensor]
    place: str

    @property
    def moves(self) -> bool:
        """Whether it copies between the host and the device."""
        return (self.kind.name == "_to_copy" and self.place != ("cuda" if self.ours else "cpu")) or (
            self.kind.name == "copy_" and bool(self.ours and self.host)
        )

    def later(self) -> bool:
        """Whether it copies to the host without waiting, into pinned memory: torch pins what `to` makes."""
        if not self.moves or not self._not_blocking():
            return False
        if self.kind.name == "_to_copy":
            return self.place == "cpu"
        return isinstance(self.args[1], OnDevice) and getattr(self.args[0], "pinned", False)

    def _not_blocking(self) -> bool:
        return bool(
            self.kwargs.get("non_blocking") or (self.kind.name == "copy_" and len(self.args) > 2 and self.args[2])
        )

    def check(self) -> None:
        """Refuse what CUDA refuses.

        Raises:
            RuntimeError: tensors, or a generator, are on another device.
        """
        generator = self.kwargs.get("generator")
        name = self.kind.name
        if generator is not None and generator.device.type == "cpu":
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if not self.ours or self.moves:
            return
        wrong = self.host if name.startswith(STRICT) else [each for each in self.host if each.dim()]
        if name in INDEXING:  # indices may be on the host, and are copied
            wrong = [each for each in wrong if each.is_floating_point()]
        if wrong:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({self.function}, {[tuple(each.shape) for each in wrong]} on the CPU)"
            )

    def waits(self) -> Iterator[str]:
        """Why the host waits for the device in this operation."""
        if self.moves:
            to_host = self.place != "cuda" if self.kind.name == "_to_copy" else not isinstance(self.args[0], OnDevice)
            if not (self.later() or (not to_host and self._not_blocking())):
                yield f"copy to the {'host' if to_host else 'device'}"
        elif self.kind.name in WAITING and self.ours:
            yield self.kind.name
        elif self.kind.name in INDEXING:
            indices = [each for each in self.args[1] if each is not None]
            if any(each.dtype in (torch.bool, torch.uint8) for each in indices):
                yield "indexing with a mask"
            if not all(isinstance(each, OnDevice) for each in indices):
                yield "indices from the host"
        elif self.kind.name == "repeat_interleave" and self.kwargs.get("output_size") is None:
            yield self.kind.name

    def kernels(self) -> int:
        """How many kernels it launches at least; a copy counts one."""
        if self.kind.view or self.kind.name in NO_KERNEL:
            return 0
        if not self.kind.name.startswith(("_foreach", "_fused_ad", "_fused_sgd")):
            return 1
        lists = [each for each in self.args if isinstance(each, (list, tuple))]
        first = [each for each in lists[0] if isinstance(each, Tensor)] if lists else []
        blocks = sum(-(-each.numel() // BLOCK) for each in first)
        return max(1, -(-blocks // BLOCKS), -(-len(first) // DEPTH.get(len(lists), 30))) + (
            self.kind.name == "_foreach_norm"
        )
