"""Random configs out of every choice there is. What can be chosen is read off the config classes themselves.

A choice among names, yes and no, kinds, or something and nothing is drawn as soon as it stands in a class. A number cannot be:
`VALUES` says which ones stand for all, and a field that is missing there is an error, so that nothing is forgotten.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from torch import Tensor, nn

from heddle.config import AttentionConfig, BlockConfig, Config, Override, StackConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.nn import Layout

# One of some options; of a hypothesis strategy the first is the simplest. A drawn model is the same for the same picks.
Pick = Callable[[Sequence[Any]], Any]

RATES = (0.0, 0.3)
# What cannot be read off an annotation: numbers, texts, and tuples of names, by field.
VALUES: dict[str, tuple[Any, ...]] = {
    "AttentionConfig.heads": (4, 2, 1, 3),
    "AttentionConfig.kv_heads": (2, 1, 3),
    "AttentionConfig.head_dim": (8, 6, 5, 2, 1),
    "AttentionConfig.value_dim": (5, 8),
    "AttentionConfig.scale": (0.4,),
    "AttentionConfig.bias": (("q", "k", "v"), ("o",), ()),
    "AttentionConfig.cap": (5.0,),
    "AttentionConfig.window": (4, 1),
    "AttentionConfig.dropout": RATES,
    "BlockConfig.dropout": RATES,
    "BucketsConfig.buckets": (8, 5, 4),
    "BucketsConfig.furthest": (20, 6, 3),
    "ClassifierHeadConfig.classes": (3, 1),
    "ClassifierHeadConfig.dropout": RATES,
    "ConvolutionConfig.taps": (3, 1, 4),
    "ConvolutionConfig.dilation": (1, 2),
    "CustomConfig.target": ("tests.choices:Own",),
    "CustomConfig.options": ({}, {"bias": False}, {"any other": 1.5}),
    "EntryConfig.position_dim": (4, 3, 16),
    "EntryConfig.offset": (0, 2),
    "EntryConfig.types": (0, 2),
    "EntryConfig.dropout": RATES,
    "GatedConfig.hidden": (12, 3),
    "GatedConfig.dropout": RATES,
    "InitialConfig.std": (0.02, 0.2),
    "InitialConfig.position_std": (0.01,),
    "LanguageHeadConfig.eps": (1e-12, 1e-3),
    "LanguageHeadConfig.scale": (1.0, 0.25),
    "LanguageHeadConfig.cap": (3.0,),
    "LayerNormConfig.eps": (1e-5, 1e-3, 0.0),
    "LinearConfig.taps": (3, 1, 4),
    "LinearScaling.factor": (1.0, 4.0),
    "Llama3Scaling.factor": (1.0, 4.0),
    "Llama3Scaling.original": (16, 100),
    "Llama3Scaling.low": (1.0, 2.0),
    "Llama3Scaling.high": (4.0, 8.0),
    "MLPConfig.hidden": (7, 3),
    "MLPConfig.dropout": RATES,
    "MoEConfig.experts": (4, 2, 1),
    "MoEConfig.active": (2, 1, 4),
    "MoEConfig.shared": (0, 1, 2),
    "MoEConfig.shared_hidden": (5,),
    "MoEConfig.scale": (1.0, 2.5),
    "MoEConfig.balance": (0.0, 0.01),
    "MoEConfig.z": (0.0, 0.001),
    "MoEConfig.bias_rate": (0.0, 0.01),
    "NTKScaling.factor": (1.0, 4.0),
    "Override.layers": ("0", "-1", "::2", "1:", "5"),
    "RecurrentConfig.hidden": (9, 3),
    "RMSNormConfig.eps": (1e-6, 1e-3, 0.0),
    "RotaryConfig.base": (10_000.0, 100.0, 1.5),
    "RotaryConfig.fraction": (1.0, 0.5, 0.1),
    "SpecialIds.banned": ((), ((3,), (4, 5))),
    "SpecialIds.begin": (1,),
    "SpecialIds.decoder_start": (0,),
    "SpecialIds.end": (2, (2, 6)),
    "SpecialIds.forced_begin": (4,),
    "SpecialIds.forced_end": (2, (2, 5)),
    "SpecialIds.padding": (0,),
    "StackConfig.depth": (1, 2, 3),
    "TransformerConfig.architecture": ("LlamaForCausalLM",),
    "TransformerConfig.vocab_size": (7, 31),
    "TransformerConfig.source_vocab_size": (13,),
    "TransformerConfig.pad_vocab_to": (1, 8),
    "TransformerConfig.dim": (16, 24, 12, 15, 1),
    "TransformerConfig.context": (12, 40),
    "YarnScaling.factor": (1.0, 4.0),
    "YarnScaling.original": (16, 100),
    "YarnScaling.fast": (32.0, 1.0),
    "YarnScaling.slow": (1.0, 0.5),
    "YarnScaling.magnitude": (1.2,),
}
# How often a kind stands among its likes: most choices are attention's, and then rotary positions'.
OFTEN = {"AttentionConfig": 4, "RotaryConfig": 3}
TRIES = 50  # at a part by itself, such as a layer, until it is not refused


class Stuck(Exception):
    """Nothing possible was picked, however often: a part was refused each time."""


class Own(nn.Module):
    """Somebody else's module: as a mixer the mean of what came before in the same text, as a feed-forward a linear map."""

    def __init__(self, dim: int, bias: bool = True, **ignored: float) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        if layout is not None:
            segment = layout.segment
            seen = ((segment[:, :, None] == segment[:, None, :]) & (segment >= 0)[:, :, None]).tril()
            x = seen.to(x.dtype) / seen.sum(-1, keepdim=True).clamp(min=1) @ x
        return self.map(x).tanh()


@cache
def options(cls: type[Config], name: str) -> list[Any]:
    """All that can stand in a field: values, and classes of configs that are drawn in turn.

    Raises:
        LookupError: it takes numbers or texts, and `VALUES` does not say which.
    """
    key = f"{cls.__name__}.{name}"
    found = list(_options(cls.model_fields[name].annotation, key))
    return list({repr(option): option for option in found}.values())


def _options(annotation: Any, key: str) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _options(get_args(annotation)[0], key)
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _options(each, key)
    elif origin is Literal:
        yield from get_args(annotation)
    elif annotation is NoneType:
        yield None
    elif annotation is bool:
        yield from (False, True)
    elif isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    elif key not in VALUES:
        raise LookupError(f"{key} takes {annotation}: no row in VALUES of tests/choices.py says what to draw")
    else:
        yield from VALUES[key]


def classes(cls: type[Config] = TransformerConfig) -> list[type[Config]]:
    """The class and all that can stand in it, each once."""
    found = [cls]
    for each in found:
        for name in each.model_fields:
            if f"{each.__name__}.{name}" not in SPECIAL:
                kinds = [option for option in options(each, name) if isinstance(option, type)]
                found += [kind for kind in kinds if kind not in found]
    return found


def draw(cls: type[Config], pick: Pick) -> dict[str, Any]:
    """Plain data of a class, each field on its own; often, but not always, of something possible."""
    data: dict[str, Any] = {}
    for name in cls.model_fields:
        key = f"{cls.__name__}.{name}"
        if key in SPECIAL:
            data[name] = SPECIAL[key](pick)
            continue
        found = options(cls, name)
        if name == "kind":
            data[name] = found[0]
            continue
        option = pick([option for option in found for _ in range(OFTEN.get(getattr(option, "__name__", ""), 1))])
        data[name] = part(option, pick) if isinstance(option, type) else option
    return data


def part(cls: type[Config], pick: Pick) -> dict[str, Any]:
    """Plain data of a class that is possible by itself, such as an attention that no kernel refuses."""
    for _ in range(TRIES):
        data = draw(cls, pick)
        if cls is StackConfig or not refusal(cls, data):
            return data
    raise Stuck(f"{cls.__name__} was refused {TRIES} times")


def refusal(cls: type[Config], data: dict[str, Any]) -> str:
    """What is said against the data, or nothing. Any other error than a refusal goes through."""
    try:
        cls.of(data)
    except HeddleError as error:
        return str(error)
    return ""


def overrides(pick: Pick) -> list[dict[str, Any]]:
    """Layers that differ in some of what a block has: no, one or two changes."""
    return [part(each, pick) for each in pick(((), (), (Override,), (Override, Override)))]


def crossing(pick: Pick) -> dict[str, Any] | None:
    """What looks at the encoder's output, mostly without what only looking at oneself knows."""
    if not pick((False, True)):
        return None
    attention = part(AttentionConfig, pick)
    return attention | {"window": None, "relative": None} if pick((True, True, True, True, False)) else attention


def change(pick: Pick) -> dict[str, Any]:
    """What an override changes: whole parts of a block, or single fields of them."""
    block = part(BlockConfig, pick)
    names = pick(([*block], ["mixer"], ["ffn"], ["norm", "dropout"], ["cross", "mixer"]))
    return said({name: block[name] for name in names})


def said(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is None, which an override cannot say."""
    return {
        name: said(value) if isinstance(value, dict) else value for name, value in data.items() if value is not None
    }


# Fields that are no choice by themselves.
SPECIAL: dict[str, Callable[[Pick], Any]] = {
    "StackConfig.overrides": overrides,
    "Override.block": change,
    "BlockConfig.cross": crossing,
}


def model(pick: Pick) -> dict[str, Any]:
    """Plain data of a whole model. Mostly its stacks fit together; whether it is possible, the config says."""
    data = draw(TransformerConfig, pick)
    if not pick((True, True, True, False)):
        return data
    if data["encoder"] is None and data["decoder"] is None:
        data["decoder"] = part(StackConfig, pick)
    both = data["encoder"] is not None and data["decoder"] is not None
    for name in ("encoder", "decoder"):
        stack = data[name]
        for block in [stack["block"], *[each["block"] for each in stack["overrides"]]] if stack else []:
            if not (both and name == "decoder"):
                block.pop("cross", None)
            elif block is stack["block"] and block["cross"] is None:
                block |= {"cross": part(AttentionConfig, pick) | {"window": None, "relative": None}}
                block["wiring"] = "serial"
    if not both:
        data["source_vocab_size"] = None
    if all(data[name] is None or data[name]["entry"]["positions"] != "learned" for name in ("encoder", "decoder")):
        data["initial"]["position_std"] = None
    return data


def drawn(seed: int) -> TransformerConfig:
    """A model that validates; the same for the same seed."""
    pick = random.Random(seed).choice
    while True:
        try:
            return TransformerConfig.of(model(pick))
        except HeddleError:
            continue
