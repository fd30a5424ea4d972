"""The layers of a model, and the layouts, masks and states that they need.

In reading order:

- `layout`: the position and segment of each token of a batch (`Layout`).
- `mask`: attention rules, and masks as rules bound to two layouts (`Rule`, `Mask`).
- `numeric`, `activations`, `dropout`, `norm`: elementwise functions, dropout, LayerNorm and RMSNorm.
- `setting`: settings that all layers of a stack share (`Setting`).
- `state`, `cache`: the state of a layer while decoding (`State`), and the states of all layers (`Cache`).
- `position`: sinusoidal, rotary, ALiBi and bucketed positions.
- `kernels`: implementations of attention, from the definition to torch's fused kernels.
- `scope`: a layer's attention pattern (`Pattern`), and that pattern prepared for one pass (`Scope`).
- `attention`, `latent`, `convolution`, `recurrent`: the mixers, in which tokens exchange information.
- `feedforward`, `experts`, `moe`: the feed-forwards, which treat each token alone.
- `custom`: a user's module as a mixer or a feed-forward.
- `output`: hidden vectors and the reports of routers (`Output`, `Routing`).
- `block`: residuals around a mixer and a feed-forward, and the tables of choices (`Block`, `MIXERS`, `FEED_FORWARDS`).
- `embedding`: tables with one vector per id.

`heddle.model` assembles these into a transformer. To use a layer alone, build it as `Module(config, setting)` and call it with
vectors and a scope: `attention(x, attention.pattern.scope(Layout.whole(rows, length)))`.
"""

from heddle.nn.attention import Attention as Attention
from heddle.nn.block import Block as Block
from heddle.nn.block import Residual as Residual
from heddle.nn.cache import Cache as Cache
from heddle.nn.dropout import Dropout as Dropout
from heddle.nn.dropout import drop as drop
from heddle.nn.embedding import Embedding as Embedding
from heddle.nn.feedforward import MLP as MLP
from heddle.nn.feedforward import Gated as Gated
from heddle.nn.kernels import KERNELS as KERNELS
from heddle.nn.kernels import masked_softmax as masked_softmax
from heddle.nn.layout import Layout as Layout
from heddle.nn.mask import Causal as Causal
from heddle.nn.mask import Everything as Everything
from heddle.nn.mask import Mask as Mask
from heddle.nn.norm import LayerNorm as LayerNorm
from heddle.nn.norm import RMSNorm as RMSNorm
from heddle.nn.output import Output as Output
from heddle.nn.output import Routing as Routing
from heddle.nn.position import Rotary as Rotary
from heddle.nn.scope import Pattern as Pattern
from heddle.nn.scope import Scope as Scope
from heddle.nn.setting import Setting as Setting

__all__ = [
    "KERNELS",
    "MLP",
    "Attention",
    "Block",
    "Cache",
    "Causal",
    "Dropout",
    "Embedding",
    "Everything",
    "Gated",
    "LayerNorm",
    "Layout",
    "Mask",
    "Output",
    "Pattern",
    "RMSNorm",
    "Residual",
    "Rotary",
    "Routing",
    "Scope",
    "Setting",
    "drop",
    "masked_softmax",
]
