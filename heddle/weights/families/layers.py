"""Layers that differ within a stack, in published configs and as heddle's overrides."""

from collections.abc import Callable, Mapping
from typing import Any

from heddle.config.model import StackConfig
from heddle.errors import HeddleError

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
    """Overrides that change `layers`: all, every second one, a range, or single layers."""
    every = list(range(depth))
    short = {":": every, "::2": every[::2], "1::2": every[1::2]}
    if layers:
        short[f"{layers[0]}:{layers[-1] + 1}"] = every[layers[0] : layers[-1] + 1]
    found = next((name for name, meant in short.items() if meant == layers), None)
    return [{"layers": name, "block": block} for name in (map(str, layers) if found is None else [found])]


def windowed(stack: dict[str, Any], local: list[int], window: Any) -> None:
    """Give some layers of a stack, as data, a window; if all have it, it goes into the block."""
    if window is None or not local:
        return
    if local == numbers(stack["depth"]):
        stack["block"]["mixer"]["window"] = window
    else:
        stack.setdefault("overrides", []).extend(overrides(local, stack["depth"], {"mixer": {"window": window}}))


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
