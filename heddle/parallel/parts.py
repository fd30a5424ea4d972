"""The parts of a model's parameters that one of several processes has, as an optimizer sees them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from heddle.data.batch import Batch
from heddle.parallel.dealing import Dealer
from heddle.tasks.objective import Loss
from heddle.weights.tensors import Weights

Objective = Callable[[Batch], Loss]

STEP = "step"  # what an optimizer's state calls its counts, which are whole on every process


class Parts(ABC):
    """What an optimizer needs to know of a model whose parameters are divided among processes.

    Attributes:
        masters: this process's part of each parameter, by name, in fp32.
    """

    masters: dict[str, nn.Parameter]

    @abstractmethod
    def wrap(self, objective: Objective) -> Objective:
        """The objective, whose backward pass leaves the mean of all processes' gradients after a step's last micro-batch."""

    def backward(self, objective: Objective, batches: Sequence[Batch], share: Tensor) -> Iterator[Loss]:
        """The losses of a step's micro-batches after their backward passes, see `in_turn`."""
        return in_turn(objective, batches, share)

    def whole_model(self) -> AbstractContextManager[None]:
        """Inside the `with` block, every process that calls the model gets what the whole model computes, without gradients."""
        return nullcontext()

    @abstractmethod
    def cut(self, batch: Batch) -> Batch:
        """This process's tokens of its rows."""

    @abstractmethod
    def collect(self) -> None:
        """Give each master the gradient of its part, summed over the micro-batches of a step."""

    @abstractmethod
    def norms(self, names: tuple[str, ...], each: Tensor) -> tuple[tuple[str, ...], Tensor]:
        """The names and norms of whole tensors [P] from those of this process's parts."""

    @abstractmethod
    def matrices(self, masters: Sequence[Tensor]) -> list[nn.Parameter]:
        """Those masters that are parts of one matrix."""

    @abstractmethod
    def dealer(self, masters: Sequence[nn.Parameter]) -> Dealer:
        """Deals the matrices of which these are parts among the processes."""

    @abstractmethod
    def whole(self, name: str, part: Tensor) -> Tensor:
        """A whole tensor from the parts of a parameter, or of what has its shape; all processes call this."""

    @abstractmethod
    def joint(self, name: str, part: Tensor) -> Tensor:
        """The same as one tensor of all processes, as `torch.distributed` knows it; nothing is sent."""

    @abstractmethod
    def region(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Where this process's part lies in a parameter, or in a tensor of this shape for it."""

    def saves(self, name: str) -> bool:
        """Whether this process saves its part of a parameter, and of what has its shape."""
        return True

    @torch.no_grad()
    def fill(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Give masters this process's parts of whole tensors, of which only one is held at a time."""
        for name, whole in values:
            self.masters[name].copy_(self.part(name, whole))
            del whole  # before the next one is made

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of a parameter, or of what has its shape."""
        return whole[self.region(name, tuple(whole.shape))]

    def read(self, saved: Weights, name: str) -> Tensor:
        """This process's part of a saved parameter."""
        return saved.region(name, self.region(name, saved.specs[name].shape))

    def read_state(self, saved: Weights, key: str) -> Tensor:
        """The same of a saved tensor of an optimizer's state, named `what/parameter`."""
        what, _, name = key.partition("/")
        return saved[key] if what == STEP else saved.region(key, self.region(name, saved.specs[key].shape))

    def joint_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """An optimizer's state as tensors of all processes."""
        named = ((key, *key.partition("/"), value) for key, value in state.items())
        own = (each for each in named if self.saves(each[3]))
        return {key: value if what == STEP else self.joint(name, value) for key, what, _, name, value in own}


def in_turn(objective: Objective, batches: Sequence[Batch], share: Tensor) -> Iterator[Loss]:
    """Each micro-batch's loss, after the backward pass of what is minimised, divided by `share`."""
    for batch in batches:
        loss = objective(batch)
        ((loss.total + loss.extra) / share).backward()
        yield loss
