"""Layers that differ within a stack, in published configs and as heddle's overrides."""

from collections.abc import Callable, Mapping
from typing import Any

from heddle.config.base import merge
from heddle.config.model import StackConfig
from heddle.config.positions import LinearScaling, RotaryConfig
from heddle.convert.families import rotary
from heddle.errors import HeddleError
from heddle.nn.position import SCALINGS

LONGEST_PERIOD = 12  # of layers that repeat
LOCAL, WHOLE = "sliding_attention", "full_attention"


def numbers(depth: Any) -> list[int]:
    """The layers of a stack; empty if the depth is impossible, which raises an error where the depth is read."""
    return list(range(depth)) if isinstance(depth, int) and 0 < depth <= 10_000 else []


def said_local(types: Any, depth: Any, usual: list[int]) -> list[int]:
    """The layers with a window: those that `layer_types` names, or the `usual` ones.

    Raises:
        HeddleError: it does not name one of the two kinds for each layer.
    """
    if types is None or not numbers(depth):
        return usual
    known = (LOCAL, WHOLE)
    if not isinstance(types, list) or len(types) != depth or any(each not in known for each in types):
        raise HeddleError(f"layer_types in config.json: must be {' or '.join(known)} for each of {depth} layers")
    return [number for number, each in enumerate(types) if each == LOCAL]


def overrides(layers: list[int], depth: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """Overrides that change `layers`: all, a range, those at the same places of every few layers, or single layers."""
    every = list(range(depth))
    short: list[list[str]] = [[":"]] if layers == every else []
    if layers and layers == every[layers[0] : layers[-1] + 1]:
        short.append([f"{layers[0]}:{layers[-1] + 1}"])
    for step in range(2, min(depth, LONGEST_PERIOD) + 1):
        places = sorted({number % step for number in layers})
        if layers == [number for number in every if number % step in places]:
            short.append([f"{place or ''}::{step}" for place in places])
    found = min([*short, list(map(str, layers))], key=len)
    return [{"layers": name, "block": block} for name in found]


def changed(stack: dict[str, Any], layers: list[int], change: dict[str, Any]) -> None:
    """Change some layers of a stack, as data; if these are all of its layers, change its block."""
    if layers and layers == numbers(stack["depth"]):
        stack["block"] = merge(stack["block"], change)
    elif layers:
        stack.setdefault("overrides", []).extend(overrides(layers, stack["depth"], change))


def windowed(stack: dict[str, Any], local: list[int], window: Any) -> None:
    """Give some layers of a stack, as data, a window."""
    if window is not None:
        changed(stack, local, {"mixer": {"window": window}})


def written_windows(stack: StackConfig) -> tuple[int | None, list[str]]:
    """The first window of a stack's layers, and the kind of each layer for `layer_types`."""
    windows = [getattr(block.mixer, "window", None) for block in stack.blocks]
    return (
        next((window for window in windows if window is not None), None),
        [WHOLE if window is None else LOCAL for window in windows],
    )


def windowed_from(stack: dict[str, Any], f: Mapping[str, Any], usual: Callable[[int], bool]) -> None:
    """Set the windows of a Qwen model: without `layer_types`, `usual` says which layers have one.

    Raises:
        HeddleError: a field about windows is impossible.
    """
    depth, count = stack["depth"], f["max_window_layers"]
    if not f["use_sliding_window"]:
        said_local(
            f["layer_types"], depth, []
        )  # only checks the field: no layer has a window, even if the field calls it local
        return
    if not isinstance(count, int):
        raise HeddleError(f"max_window_layers = {count!r} in config.json: must be a whole number")
    local = said_local(f["layer_types"], depth, [number for number in numbers(depth) if usual(number)])
    windowed(stack, local, f["sliding_window"])


def windows_of(stack: StackConfig) -> dict[str, Any]:
    """The fields that `windowed_from` reads."""
    window, types = written_windows(stack)
    if window is None:
        return {"use_sliding_window": False}
    whole = types.count(WHOLE)  # older versions take this many from the first layer on
    return {"use_sliding_window": True, "sliding_window": window, "max_window_layers": whole, "layer_types": types}


def period(said: Any, name: str) -> int:
    """After how many layers the kinds of layers repeat.

    Raises:
        HeddleError: it is not a whole number above 0.
    """
    if not isinstance(said, int) or said < 1:
        raise HeddleError(f"{name} = {said!r} in config.json: must be a whole number above 0")
    return said


def two_rotaries(
    f: Mapping[str, Any], whole: tuple[str, float], local: tuple[str, float]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rotary positions of global and of local layers, as data.

    `rope_parameters` has a table for each kind of layer. Older files have the bases in two fields, whose names and usual values
    are `whole` and `local`, and one `rope_scaling`, of the global layers.

    Raises:
        HeddleError: the tables are not by kinds of layers, or the angles are scaled in a way that heddle does not support.
    """
    tables = f["rope_parameters"] or {}
    if not isinstance(tables, Mapping) or tables.keys() - {LOCAL, WHOLE}:
        raise HeddleError(
            f"rope_parameters = {tables!r} in config.json: must have a table for {LOCAL} and one for {WHOLE}"
        )
    found = []
    for kind, (name, usual), scaling in ((WHOLE, whole, f["rope_scaling"]), (LOCAL, local, None)):
        table = tables.get(kind)
        if isinstance(table, Mapping) and table.get("truncate") is False:
            raise HeddleError(
                f"rope_parameters.{kind}.truncate = False in config.json: Hugging Face transformers does not read it there"
            )
        fields = {"rope_theta": f[name], "rope_parameters": table, "rope_scaling": scaling}
        found.append(rotary.our_rotary({**f, **fields}, usual))
    return found[0], found[1]


def local_and_global(
    stack: dict[str, Any], local: list[int], window: Any, whole_rotary: dict[str, Any], local_rotary: dict[str, Any]
) -> None:
    """Give the local layers of a stack, as data, a window and their rotary positions, and all others theirs.

    Raises:
        HeddleError: there are local layers, but no window.
    """
    if local and window is None:
        raise HeddleError(f"layer_types in config.json has {LOCAL}, but there is no window")
    change: dict[str, Any] = {"window": window}
    if local_rotary != whole_rotary:
        change["relative"] = {"base": local_rotary["base"]}
        if whole_rotary["scaling"] or local_rotary["scaling"]:
            change["relative"]["scaling"] = _spelt_out(local_rotary)
    stack["block"]["mixer"]["relative"] = whole_rotary
    changed(stack, local, {"mixer": change})


def _spelt_out(relative: dict[str, Any]) -> dict[str, Any]:
    """A scaling as an override that leaves nothing of another scaling: with every field, and divided by 1 for none at all."""
    scaling = RotaryConfig.of(relative).scaling or LinearScaling(factor=1)
    magnitude = {"magnitude": SCALINGS[type(scaling)](scaling).magnitude} if hasattr(scaling, "magnitude") else {}
    return {**scaling.to_dict(), **magnitude}


def written_rotaries(stack: StackConfig, width: int, whole: float, local: float) -> dict[str, dict[str, Any]]:
    """The fields of rotary positions for each kind of layer; `whole` and `local` are the bases where there are no such layers.

    Args:
        stack: its layers with a window are local.
        width: d.
    """
    found = {WHOLE: RotaryConfig(base=whole), LOCAL: RotaryConfig(base=local)}
    for block in reversed(stack.blocks):
        relative = getattr(block.mixer, "relative", None)
        if isinstance(relative, RotaryConfig):
            found[WHOLE if getattr(block.mixer, "window", None) is None else LOCAL] = relative
    return {kind: rotary.their_rotary(relative, width) for kind, relative in found.items()}
