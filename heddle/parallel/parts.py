"""The parts of a model's parameters that one of several processes has, as an optimizer sees them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from heddle.data.batch import Batch
from heddle.parallel.dealing import Dealer
from heddle.tasks.objective import Loss


class Parts(ABC):
    """What an optimizer needs to know of a model whose parameters are divided among processes.

    Attributes:
        masters: this process's part of each parameter, by name, in fp32.
    """

    masters: dict[str, nn.Parameter]

    @abstractmethod
    def wrap(self, objective: Callable[[Batch], Loss]) -> Callable[[Batch], Loss]:
        """The objective, whose backward pass leaves the mean of all processes' gradients after a step's last micro-batch."""

    @abstractmethod
    def cut(self, batch: Batch) -> Batch:
        """This process's tokens of its rows."""

    @abstractmethod
    def collect(self) -> None:
        """Give each master the gradient of its part, summed over the micro-batches of a step."""

    @abstractmethod
    def norms(self, names: tuple[str, ...], each: Tensor) -> Tensor:
        """The norms of whole tensors [P] from those of this process's parts."""

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
    def part(self, name: str, whole: Tensor) -> Tensor:
        """This process's part of a parameter, or of what has its shape."""


def whole_state(parts: Parts, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors of an optimizer's state, named `what/parameter`; all processes call this."""
    return {key: value if _counts(key) else parts.whole(_parameter(key), value) for key, value in state.items()}


def part_of_state(parts: Parts, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This process's part of an optimizer's state."""
    return {key: value if _counts(key) else parts.part(_parameter(key), value) for key, value in state.items()}


def _counts(key: str) -> bool:
    return key.startswith("step/")


def _parameter(key: str) -> str:
    return key.partition("/")[2]
