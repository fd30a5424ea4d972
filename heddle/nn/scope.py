"""Attention patterns: `Pattern`, fixed for a layer when it is built, and `Scope`, prepared from it once per pass."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.kernels import Needs
from heddle.nn.kernels import Lowered, pick
from heddle.nn.layout import Layout
from heddle.nn.mask import Mask, Rule
from heddle.nn.position import Alibi, Buckets, Relative, Rotary
from heddle.nn.rotation import Rotation


@dataclass(frozen=True)
class Scope:
    """Layouts, mask and positions of one pass, prepared once and shared by all layers of one pattern.

    Attributes:
        queries: layout of the new tokens.
        keys: layout of the tokens that they may attend to.
        mask: the mask, lowered for the kernel; None if the pattern's layers use no attention.
        rotation: rotation of the new tokens' queries and keys; None without rotary positions.
        source: Float[B S D], the vectors that keys and values are computed from; None: the new tokens' own.
    """

    queries: Layout
    keys: Layout
    mask: Lowered | None = None
    rotation: Rotation | None = None
    source: Float[Tensor, "B S D"] | None = None


@dataclass(frozen=True)
class Pattern:
    """The attention pattern of a layer. Layers with equal patterns share one `Scope` in each pass.

    Attributes:
        rule: which positions may attend to which.
        reach: number of tokens in the layer's state; None: all, or the state does not store tokens.
        kernel: the kernel that the config names; None for a mixer without attention.
        needs: the features that the kernel must support in training.
        predicting: the same in inference.
        relative: relative positions, if any.
    """

    rule: Rule
    reach: int | None = None
    kernel: str | None = None
    needs: Needs = field(default_factory=Needs)
    predicting: Needs = field(default_factory=Needs)
    relative: Relative | None = None

    def scope(
        self,
        queries: Layout,
        keys: Layout | None = None,
        relative: nn.Module | None = None,
        source: Tensor | None = None,
        *,
        training: bool = False,
    ) -> Scope:
        """Prepare a pass: choose the kernel, lower the mask, compute angles and biases.

        Args:
            queries: layout of the new tokens.
            keys: layout of the tokens that they may attend to; None: the new tokens themselves.
            relative: the module that computes relative positions; several patterns may share it.
            source: see `Scope`.
            training: whether dropout is active.
        """
        keys = queries if keys is None else keys
        if self.kernel is None:
            return Scope(queries, keys)
        rotation = relative(queries) if isinstance(relative, Rotary) else None
        bias = relative(queries, keys) if isinstance(relative, Alibi | Buckets) else None
        mask, needs = Mask(self.rule, queries, keys), self.needs if training else self.predicting
        return Scope(queries, keys, pick(self.kernel, needs, mask, bias).lower(mask, bias), rotation, source)
