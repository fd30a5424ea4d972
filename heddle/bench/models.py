"""The models that are measured, and how much is measured on each kind of device."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heddle.account.resolve import resolve
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.config.presets import preset
from heddle.errors import HeddleError


def _gpt2(dim: int, depth: int, heads: int) -> TransformerConfig:
    changes = {"dim": dim, "decoder.depth": depth, "decoder.block.mixer.heads": heads}
    return preset("gpt2-small").override(changes)


def _llama(dim: int, depth: int, heads: int, hidden: int) -> TransformerConfig:
    sizes = {"dim": dim, "decoder.depth": depth, "decoder.block.mixer.heads": heads, "decoder.block.ffn.hidden": hidden}
    return preset("llama-7b").override({"context": 1024, **sizes})


MODELS = {
    "gpt2-30m": partial(_gpt2, 384, 6, 6),
    "llama-30m": partial(_llama, 320, 6, 5, 896),
    "gpt2-124m": partial(_gpt2, 768, 12, 12),
    "llama-350m": partial(_llama, 1024, 22, 16, 2816),
    "llama-1b": partial(_llama, 2048, 18, 16, 5632),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        models: names of models.
        length: tokens of a row of a training step.
        rows: rows of a training step, at most; fewer if they do not fit.
        batches: numbers of rows that are decoded together.
        tokens: that a row starts from, and that it then gets.
        rounds: turns of each contender.
        seconds: time of a training turn, at least.
        compiled: whether contenders that compile take part.
    """

    models: tuple[str, ...]
    length: int
    rows: int
    batches: tuple[int, ...]
    tokens: int
    rounds: int
    seconds: float
    compiled: bool = True


SMALL = Sizes(("gpt2-30m",), 256, 4, (1, 8, 64), 32, 3, 0.0)
LARGE = Sizes(("gpt2-124m", "llama-350m", "llama-1b"), 1024, 32, (1, 8, 64), 128, 5, 1.0)


def sizes_for(device: str, quick: bool, **changes: Any) -> Sizes:
    """The sizes for a type of device; changes that are None leave them as they are."""
    sizes = LARGE if device == "cuda" else SMALL
    if quick:
        few: dict[str, Any] = {"batches": (1, 8), "tokens": 16, "rounds": 2, "compiled": False}
        sizes = replace(sizes, models=sizes.models[:1], length=sizes.length // 2, rows=sizes.rows // 2, **few)
    return replace(sizes, **{name: value for name, value in changes.items() if value is not None})


def model_of(name: str) -> tuple[str, TransformerConfig]:
    """The label and the config of a name in `MODELS`, or of a preset, a run or a model config.

    Raises:
        HeddleError: it does not exist, or it is not a decoder that predicts tokens.
    """
    label, config = (name, MODELS[name]()) if name in MODELS else resolve(name)
    if tuple(config.stacks()) != ("decoder",) or not isinstance(config.head, LanguageHeadConfig):
        raise HeddleError(f"model = {name!r}: only decoders that predict the next token are measured")
    return label, config
