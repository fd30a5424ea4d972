"""Layers that differ within a stack, in published configs and in heddle's overrides."""

from collections.abc import Callable, Mapping
from typing import Any

from heddle.config.base import merge
from heddle.config.layers import GatedConfig, MoEConfig
from heddle.config.model import StackConfig, TransformerConfig
from heddle.config.positions import LinearScaling, RotaryConfig
from heddle.convert.families import rotary
from heddle.convert.fields import Data, Fields, Part, published_activation
from heddle.errors import HeddleError
from heddle.nn.position import SCALINGS

LONGEST_PERIOD = 12  # of repeating layers
LOCAL, FULL = "sliding_attention", "full_attention"


def numbers(depth: Any) -> list[int]:
    """The numbers of a stack's layers; empty if the depth is invalid, for which the config raises an error later."""
    return list(range(depth)) if isinstance(depth, int) and 0 < depth <= 10_000 else []


def local_layers(types: Any, depth: Any, default: list[int]) -> list[int]:
    """The layers with a window, from `layer_types` or by default.

    Raises:
        HeddleError: `layer_types` does not have one of the two kinds for each layer.
    """
    if types is None or not numbers(depth):
        return default
    kinds = (LOCAL, FULL)
    if not isinstance(types, list) or len(types) != depth or any(each not in kinds for each in types):
        raise HeddleError(f"layer_types in config.json: must be {' or '.join(kinds)} for each of {depth} layers")
    return [number for number, each in enumerate(types) if each == LOCAL]


def overrides(layers: list[int], depth: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """Overrides that change `layers`: all layers, a range, the same layers of a repeating period, or single layers."""
    every = list(range(depth))
    short: list[list[str]] = [[":"]] if layers == every else []
    if layers and layers == every[layers[0] : layers[-1] + 1]:
        short.append([f"{layers[0]}:{layers[-1] + 1}"])
    for step in range(2, min(depth, LONGEST_PERIOD) + 1):
        places = sorted({number % step for number in layers})
        if layers == [number for number in every if number % step in places]:
            short.append([f"{place or ''}::{step}" for place in places])
    selections = min([*short, list(map(str, layers))], key=len)
    return [{"layers": name, "block": block} for name in selections]


def changed(stack: dict[str, Any], layers: list[int], change: dict[str, Any]) -> None:
    """Change some layers of a stack's config data. If these are all layers, change its block."""
    if layers and layers == numbers(stack["depth"]):
        stack["block"] = merge(stack["block"], change)
    elif layers:
        stack.setdefault("overrides", []).extend(overrides(layers, stack["depth"], change))


def set_window(stack: dict[str, Any], local: list[int], window: Any) -> None:
    """Give some layers of a stack's config data a window."""
    if window is not None:
        changed(stack, local, {"mixer": {"window": window}})


def windows_and_types(stack: StackConfig) -> tuple[int | None, list[str]]:
    """The first window among a stack's layers, and the kind of each layer for `layer_types`."""
    windows = [getattr(block.mixer, "window", None) for block in stack.blocks]
    return (
        next((window for window in windows if window is not None), None),
        [FULL if window is None else LOCAL for window in windows],
    )


def qwen_windows(is_local: Callable[[int, Any], bool]) -> Part:
    """The fields of a Qwen model's windows.

    Args:
        is_local: whether a layer has a window if there is no `layer_types`, given its number and `max_window_layers`.
    """

    def read(f: Fields, data: Data) -> None:
        stack, count = data["decoder"], f["max_window_layers"]
        if not f["use_sliding_window"]:
            # Only checks the field: no layer has a window, even if the field calls it local.
            local_layers(f["layer_types"], stack["depth"], [])
            return
        if not isinstance(count, int):
            raise HeddleError(f"max_window_layers = {count!r} in config.json: must be a whole number")
        default_local = [number for number in numbers(stack["depth"]) if is_local(number, count)]
        set_window(stack, local_layers(f["layer_types"], stack["depth"], default_local), f["sliding_window"])

    def write(config: TransformerConfig) -> Data:
        window, types = windows_and_types(config.stacks()["decoder"])
        if window is None:
            return {"use_sliding_window": False}
        full = types.count(FULL)  # older versions read so many layers from the first on
        return {
            "use_sliding_window": True,
            "sliding_window": window,
            "max_window_layers": full,
            "layer_types": types,
        }

    defaults = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "layer_types": None}
    return Part(defaults, read, write)


def alternating_windows(default: int) -> Part:
    """The fields of windows in every second layer from the first on, with the default width.

    Hugging Face transformers needs a width even if no layer has a window.
    """

    def read(f: Fields, data: Data) -> None:
        stack = data["decoder"]
        local = local_layers(f["layer_types"], stack["depth"], numbers(stack["depth"])[::2])
        set_window(stack, local, f["sliding_window"])

    def write(config: TransformerConfig) -> Data:
        window, types = windows_and_types(config.stacks()["decoder"])
        return {"sliding_window": window or default, "layer_types": types}

    return Part({"sliding_window": default, "layer_types": None}, read, write)


def set_experts(stack: Data, dense: list[int], moe: Fields) -> None:
    """Put experts into the layers of a stack's config data, except for `dense`, which keep its feed-forward."""
    block = stack["block"]
    if dense and dense == numbers(stack["depth"]):
        return
    if dense:
        stack["overrides"] = overrides(dense, stack["depth"], {"ffn": block["ffn"]})
    block["ffn"] = moe


def expert_fields(config: TransformerConfig, default: MoEConfig) -> tuple[MoEConfig, Data]:
    """The first experts of a decoder, or the default ones, and their fields, with those of the layers without experts."""
    feeds = [block.ffn for block in config.stacks()["decoder"].blocks]
    moe = next((ffn for ffn in feeds if isinstance(ffn, MoEConfig)), default)
    dense = next((ffn for ffn in feeds if isinstance(ffn, GatedConfig)), None)
    return moe, {
        **({} if dense is None else {"intermediate_size": dense.width(config.dim)}),
        "hidden_act": published_activation(moe.expert.activation if dense is None else dense.activation),
        "moe_intermediate_size": moe.width(config.dim),
        "num_experts_per_tok": moe.active,
    }


def without_experts(config: TransformerConfig) -> list[int]:
    """The layers of a decoder without experts."""
    blocks = config.stacks()["decoder"].blocks
    return [number for number, block in enumerate(blocks) if not isinstance(block.ffn, MoEConfig)]


def period(value: Any, name: str) -> int:
    """The period after which the kinds of layers repeat: a field that must be a whole number above 0."""
    if not isinstance(value, int) or value < 1:
        raise HeddleError(f"{name} = {value!r} in config.json: must be a whole number above 0")
    return value


def read_rotaries(
    f: Mapping[str, Any], global_default: tuple[str, float], local_default: tuple[str, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotary positions of global and of local layers, as config data.

    `rope_parameters` has a table for each kind of layer. Older files have the bases in two fields, with the names and default
    values in `global_default` and `local_default`, and one `rope_scaling` for the global layers.

    Raises:
        HeddleError: there is not one table for each kind of layer, or heddle does not support a scaling of the angles.
    """
    tables = f["rope_parameters"] or {}
    if not isinstance(tables, Mapping) or tables.keys() - {LOCAL, FULL}:
        raise HeddleError(
            f"rope_parameters = {tables!r} in config.json: must have a table for {LOCAL} and one for {FULL}"
        )
    rotaries = []
    for kind, (name, default_base), scaling in (
        (FULL, global_default, f["rope_scaling"]),
        (LOCAL, local_default, None),
    ):
        table = tables.get(kind)
        if isinstance(table, Mapping) and table.get("truncate") is False:
            raise HeddleError(
                f"rope_parameters.{kind}.truncate = False in config.json: Hugging Face transformers does not read it there"
            )
        fields = {"rope_theta": f[name], "rope_parameters": table, "rope_scaling": scaling}
        rotaries.append(rotary.heddle_rotary({**f, **fields}, default_base))
    return rotaries[0], rotaries[1]


def set_local_and_global(
    stack: dict[str, Any], local: list[int], window: Any, global_rotary: dict[str, Any], local_rotary: dict[str, Any]
) -> None:
    """Set the window and rotary positions of the local layers in a stack's config data, and the rotary positions of the others.

    Raises:
        HeddleError: there are local layers, but no window.
    """
    if local and window is None:
        raise HeddleError(f"layer_types in config.json has {LOCAL}, but there is no window")
    change: dict[str, Any] = {"window": window}
    if local_rotary != global_rotary:
        change["relative"] = {"base": local_rotary["base"]}
        if global_rotary["scaling"] or local_rotary["scaling"]:
            change["relative"]["scaling"] = _complete_override(local_rotary)
    stack["block"]["mixer"]["relative"] = global_rotary
    changed(stack, local, {"mixer": change})


def _complete_override(relative: dict[str, Any]) -> dict[str, Any]:
    """A scaling as an override that replaces every field of another scaling. No scaling is linear with factor 1."""
    scaling = RotaryConfig.of(relative).scaling or LinearScaling(factor=1)
    magnitude = {"magnitude": SCALINGS[type(scaling)](scaling).magnitude} if hasattr(scaling, "magnitude") else {}
    return {**scaling.to_dict(), **magnitude}


def rotary_fields(stack: StackConfig, width: int, global_base: float, local_base: float) -> dict[str, dict[str, Any]]:
    """The fields of rotary positions for each kind of layer.

    Args:
        stack: the stack, whose layers with a window are local.
        width: d.
        global_base: the base to write if there are no global layers.
        local_base: the base to write if there are no local layers.
    """
    relatives = {FULL: RotaryConfig(base=global_base), LOCAL: RotaryConfig(base=local_base)}
    for block in reversed(stack.blocks):
        relative = getattr(block.mixer, "relative", None)
        if isinstance(relative, RotaryConfig):
            relatives[FULL if getattr(block.mixer, "window", None) is None else LOCAL] = relative
    return {kind: rotary.published_rotary(relative, width) for kind, relative in relatives.items()}
