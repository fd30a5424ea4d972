"""One small model of every kind, for what must be countable whatever a model is made of."""

from typing import Any

import torch
from torch import Tensor, nn

from heddle.config import TransformerConfig
from heddle.nn.layout import Layout

ATTENTION: dict[str, Any] = {"kind": "attention", "heads": 4, "kv_heads": 2}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": 24}
MOE: dict[str, Any] = {"kind": "moe", "experts": 5, "active": 2, "expert": {"kind": "gated", "hidden": 12}}
LEARNED = {"positions": "learned"}


class Shift(nn.Module):
    """A mixer of somebody's own: each token becomes a linear function of the token before it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.map(torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1))


class Asks(nn.Module):
    """A feed-forward of somebody's own that looks at the values, as nothing can without memory."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if x.sum().item() > 0 else x


def stack(mixer: Any = ATTENTION, ffn: Any = MLP, **more: Any) -> dict[str, Any]:
    """A stack of two layers."""
    block = {"mixer": mixer, "ffn": ffn, **more.pop("block", {})}
    return {"depth": 2, "entry": LEARNED, "block": block, **more}


def model(**parts: Any) -> TransformerConfig:
    """A model of small sizes."""
    return TransformerConfig.of({"vocab_size": 31, "dim": 16, "context": 40, **parts})


CROSS = {"cross": {"kind": "attention", "heads": 2}}
BUCKETS = {**ATTENTION, "relative": {"kind": "buckets", "buckets": 8, "furthest": 16}}
KINDS: dict[str, TransformerConfig] = {
    "decoder": model(decoder=stack()),
    "encoder": model(encoder=stack(), head={"bias": True, "transform": True}),
    "both": model(encoder=stack(), decoder=stack(block=CROSS)),
    "two tables": model(source_vocab_size=19, encoder=stack(), decoder=stack(block=CROSS), head={"tied": False}),
    "classifier": model(encoder=stack(), head={"kind": "classifier", "classes": 3, "dense": True}),
    "embedding": model(encoder=stack(), head={"kind": "embedding", "dense": True}),
    "no head": model(encoder=stack(), head={"kind": "none"}),
    "token types": model(encoder=stack(entry={**LEARNED, "types": 2, "norm": {"kind": "layer"}})),
    "buckets": model(encoder=stack(BUCKETS), decoder=stack(BUCKETS, block=CROSS)),
    "windows": model(decoder=stack(overrides=[{"layers": "0", "block": {"mixer": {"window": 8}}}])),
    "all windows": model(decoder=stack({**ATTENTION, "window": 8})),
    "experts": model(decoder=stack(ffn={**MOE, "shared": 1, "shared_gate": True})),
    "plain experts": model(decoder=stack(ffn={**MOE, "expert": {"kind": "mlp", "hidden": 8}, "bias_rate": 0.01})),
    "balanced experts": model(decoder=stack(ffn={**MOE, "balance": 0.01, "z": 0.01})),
    "experts here and there": model(decoder=stack(overrides=[{"layers": "1", "block": {"ffn": MOE}}])),
    "convolution": model(decoder=stack({"kind": "convolution", "taps": 3, "dilation": 2})),
    "convolution, encoder": model(encoder=stack({"kind": "convolution", "taps": 3})),
    "gru": model(decoder=stack({"kind": "recurrent", "cell": "gru", "hidden": 10})),
    "lstm": model(decoder=stack({"kind": "recurrent", "cell": "lstm"}, {"kind": "none"})),
    "linear": model(decoder=stack({"kind": "linear", "taps": 4}, {"kind": "none"})),
    "recurrent, both": model(
        encoder=stack({"kind": "recurrent"}), decoder=stack({"kind": "recurrent"}, {"kind": "none"}, block=CROSS)
    ),
    "mixed": model(decoder=stack(overrides=[{"layers": "1", "block": {"mixer": {"kind": "recurrent"}}}])),
    "parallel": model(decoder=stack(block={"wiring": "parallel_one_norm"})),
    "alibi and cap": model(decoder=stack({**ATTENTION, "relative": {"kind": "alibi"}, "cap": 20.0})),
    "concat": model(decoder=stack(entry={**LEARNED, "combine": "concat"}), head={"tied": False}),
    "custom": model(decoder=stack({"kind": "custom", "target": f"{__name__}:Shift"})),
}
ASKING = model(decoder=stack(ffn={"kind": "custom", "target": f"{__name__}:Asks"}))
