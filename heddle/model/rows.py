"""The rows of a table that one of several processes has; `heddle.parallel.vocabulary` divides tables so."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor


class Rows(ABC):
    """Which rows of a table this process has, if several processes divide it.

    Attributes:
        real: how many of them are not padding.
    """

    real: int

    @abstractmethod
    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of ids in this process's table, and which are there; other ids get row 0."""

    @abstractmethod
    def sum(self, x: Tensor) -> Tensor:
        """The sum over the processes. No gradient passes it."""

    @abstractmethod
    def largest(self, x: Tensor) -> Tensor:
        """The largest number of all processes at each place. No gradient passes it."""

    @abstractmethod
    def join(self, x: Float[Tensor, "*rows P"]) -> Float[Tensor, "*rows V"]:
        """The columns of all processes."""
