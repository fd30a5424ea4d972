"""The parts: where tokens are, which of them they attend to, and the layers."""

from heddle.nn.attention import Attention as Attention
from heddle.nn.block import Block as Block
from heddle.nn.block import Residual as Residual
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
from heddle.nn.state import Cache as Cache

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
