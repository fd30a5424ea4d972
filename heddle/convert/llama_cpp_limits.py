"""What llama.cpp lacks of the published families that it runs.

llama.cpp ignores settings that it does not know, so a model with such a setting is refused rather than written.
"""

from collections.abc import Iterable, Iterator
from math import isclose
from typing import Any, NamedTuple

from heddle.config.model import TransformerConfig
from heddle.config.positions import DynamicScaling, LinearScaling, NTKScaling, RotaryConfig, YarnScaling
from heddle.convert.families import Family, layers
from heddle.convert.families.difference import differences, resolved
from heddle.convert.fields import Fields
from heddle.errors import HeddleError
from heddle.nn.position import SCALINGS

PLAIN = (NTKScaling, DynamicScaling)  # equivalent to a larger base
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # Gemma 2's, with their published values
ROTARY = "decoder.block.mixer.relative."


class Obstacle(NamedTuple):
    """Why llama.cpp would compute something else than a model.

    Attributes:
        text: the difference.
        changes: fields of config.json with which llama.cpp would compute the same.
        advice: what to do instead, if no such fields exist.
    """

    text: str
    changes: Fields
    advice: str = ""

    def line(self, family: Family, published: Fields, config: TransformerConfig) -> str:
        """The difference, and the settings of heddle that remove it."""
        advice = self.advice or _settings(family, published, config, self.changes)
        return f"{self.text}: set {advice}" if advice else self.text


def _settings(family: Family, published: Fields, config: TransformerConfig, changes: Fields) -> str:
    """The settings in which a model differs from one with other fields in its config.json; empty if those are impossible."""
    try:
        changed = family.to_config({**published, **changes})
    except HeddleError:
        return ""
    return " ".join(f"{path}={value}" for path, _, value in differences(resolved(config), resolved(changed)))


def is_scaled(relative: RotaryConfig) -> bool:
    """Whether rotary angles are scaled otherwise than by a larger base."""
    scaling = relative.scaling
    return scaling is not None and not isinstance(scaling, PLAIN) and scaling != LinearScaling(factor=1)


def rotary_obstacles(relative: RotaryConfig, width: int, scalings: Iterable[type]) -> Iterator[Obstacle]:
    """The obstacles of rotary positions in heads of `width` channels, for an architecture with these scalings."""
    rotated, scaling = relative.rotated_dim(width), relative.scaling
    if rotated % 2:
        text = f"{rotated} channels of a head are rotated, and llama.cpp rotates them in pairs"
        yield Obstacle(text, {}, f"{ROTARY}fraction so that an even number of the {width} channels are rotated")
    if not is_scaled(relative):
        return
    assert scaling is not None
    if not isinstance(scaling, tuple(scalings)):
        text = f"its rotary angles are scaled by {scaling.kind}, which llama.cpp lacks for this architecture"
        yield Obstacle(text, {}, f"{ROTARY}scaling=none")
    elif isinstance(scaling, YarnScaling):
        default = YarnScaling(factor=scaling.factor, original=scaling.original)
        if scaling != default and not _same_length(scaling, default):
            text = "its yarn scaling has other settings than the defaults, which llama.cpp would ignore"
            yield Obstacle(text, {}, f"only factor and original in {ROTARY}scaling")


def _same_length(scaling: YarnScaling, default: YarnScaling) -> bool:
    """Whether the scaling differs from the default only by an explicit magnitude with the default value."""
    if scaling.model_copy(update={"magnitude": None}) != default:
        return False
    return isclose(SCALINGS[YarnScaling](scaling).magnitude, SCALINGS[YarnScaling](default).magnitude, rel_tol=1e-6)


def _gemma_scale(published: Fields, largest: int) -> Iterator[Obstacle]:
    """Another scale of scores than llama.cpp's: from head_dim, but in the largest model from hidden_size / heads."""
    heads, width = published["num_attention_heads"], published["head_dim"]
    expected = published["hidden_size"] // heads if published["num_hidden_layers"] == largest else width
    scalar = published["query_pre_attn_scalar"]
    if scalar != expected:
        text = f"query_pre_attn_scalar = {scalar}, and llama.cpp supports only {expected}"
        yield Obstacle(text, {"query_pre_attn_scalar": expected})


def _windows(published: Fields, period: int) -> Iterator[Obstacle]:
    """Other windows than llama.cpp's: in all layers except the last of every period."""
    expected = [
        layers.LOCAL if (number + 1) % period else layers.FULL for number in range(published["num_hidden_layers"])
    ]
    if layers.FULL not in expected:
        text = f"it has {len(expected)} layers, all with a window, and llama.cpp needs one without, the {period}th"
        yield Obstacle(text, {}, f"decoder.depth to {period} or more")
    if published["layer_types"] != expected:
        text = f"llama.cpp has a window in all layers but every {period}th, and this model in others"
        yield Obstacle(text, {}, f"the window in decoder.overrides for all layers but every {period}th")


def gemma2_obstacles(published: Fields, config: TransformerConfig) -> Iterator[Obstacle]:
    """Those of Gemma 2."""
    yield from _gemma_scale(published, largest=46)
    yield from _windows(published, 2)
    for name, cap in CAPS.items():
        if published[name] is None:
            yield Obstacle(f"no {name}, and llama.cpp always has one", {name: cap})


def gemma3_obstacles(published: Fields, config: TransformerConfig) -> Iterator[Obstacle]:
    """Those of Gemma 3. Only the angles of global layers may be scaled."""
    yield from _gemma_scale(published, largest=62)
    yield from _windows(published, 6)
    for block in config.stacks()["decoder"].blocks:
        mixer: Any = block.mixer
        yield from rotary_obstacles(mixer.relative, published["head_dim"], () if mixer.window else (LinearScaling,))


def smollm3_obstacles(published: Fields, config: TransformerConfig) -> Iterator[Obstacle]:
    """Those of SmolLM 3, of which every fourth layer has no positions."""
    expected = [int((number + 1) % 4 > 0) for number in range(published["num_hidden_layers"])]
    if published["no_rope_layers"] != expected:
        text = "llama.cpp has rotary positions in all layers but every 4th, and this model in others"
        yield Obstacle(text, {"no_rope_layers": expected})
