"""The definition of attention, with tap points for hooks."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heddle.errors import HeddleError
from heddle.nn.dropout import Dropout
from heddle.nn.kernels.base import Bias, Kernel, Lowered
from heddle.nn.mask import Mask
from heddle.nn.numeric import capped, wide_dtype, with_sinks

MOST_SCORES = 2**32
"""The most scores of one head held at once: 16 GiB in fp32."""


def masked_softmax(
    scores: Float[Tensor, "*b T S"],
    allowed: Bool[Tensor, "..."],
    dead: Bool[Tensor, "..."] | None = None,
    sinks: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "*b T S"]:
    """Softmax over the allowed keys. Blocked keys get weight 0 exactly (L0-92), and so do all keys of a dead row (D-10).

    Scores are set to -inf before the softmax, by selection and never by multiplication (D-08, D-09). `dead` marks the rows
    without any allowed key; None: computed from `allowed`. A head's sink takes its share of each row.
    """
    dead = ~allowed.any(-1, keepdim=True) if dead is None else dead
    # A dead row first sees everything and is then set to 0: the softmax of only -inf is NaN, and so is its gradient.
    every = with_sinks(scores.masked_fill(~(allowed | dead), -torch.inf), sinks)
    weights = every.softmax(-1)[..., : scores.shape[-1]]
    return weights.masked_fill(dead, 0.0)


class Reference(Kernel):
    """The definition of attention, in fp32 or wider, with two tap points for hooks (D-35).

    `scores` are scaled, capped, biased, changed by a user's own module, if any, and masked, -inf where blocked (L0-91);
    `weights` are their softmax, which a layer's sinks join.
    """

    def __init__(self, scale: float, dropout: float | Dropout = 0.0, cap: float | None = None) -> None:
        super().__init__(scale, dropout, cap)
        self.scores = nn.Identity()
        self.weights = nn.Identity()

    @staticmethod
    def lower(mask: Mask, bias: Bias | None = None) -> Lowered:
        """Compute the whole mask.

        Raises:
            HeddleError: the square of scores is too large to hold (L2-15).
        """
        real = type(mask.queries.position) is Tensor and mask.queries.position.device.type != "meta"
        if real and mask.queries.width * mask.keys.width > MOST_SCORES:
            raise HeddleError(
                f"kernel = 'reference' would hold {mask.queries.width} × {mask.keys.width} scores per head at once; "
                "set kernel = 'auto', or 'blockwise', which never holds the whole square"
            )
        allowed = mask.dense()
        return Lowered("reference", mask, allowed=allowed, dead=~allowed.any(-1, keepdim=True), bias=bias)

    def attend(
        self, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B K S d"], v: Float[Tensor, "B K S e"], lowered: Lowered
    ) -> Float[Tensor, "B H T e"]:
        assert lowered.allowed is not None
        assert lowered.dead is not None
        wide = wide_dtype(q.dtype)
        group = q.shape[1] // k.shape[1]
        keys = k.repeat_interleave(group, dim=1).to(wide)
        values = v.repeat_interleave(group, dim=1).to(wide)
        scores = capped(q.to(wide) @ keys.transpose(-2, -1) * self.scale, self.cap)
        scores = scores if lowered.bias is None else scores + lowered.bias
        allowed, dead = lowered.allowed, lowered.dead
        if lowered.custom_scores is not None:
            scores = lowered.custom_scores(scores, lowered.mask.queries.position, lowered.mask.keys.position)
            allowed = allowed & (scores != -torch.inf)  # which blocks a key, too
            dead = ~allowed.any(-1, keepdim=True)
        scores = self.scores(scores.masked_fill(~allowed, -torch.inf))
        # A row of only -inf would be NaN in the softmax and in its gradient.
        weights = masked_softmax(scores.masked_fill(dead, 0.0), allowed, dead, lowered.sinks)
        return (self.dropout(self.weights(weights)) @ values).to(q.dtype)
