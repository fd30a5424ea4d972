"""What differs between two configs as plain data, in words."""

from typing import Any


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, ours, theirs) for each difference of two plain configs; for tables of different kinds, only the kind."""
    if ours == theirs:
        return []
    kinds = [each.get("kind") if isinstance(each, dict) else None for each in (ours, theirs)]
    if kinds[0] != kinds[1]:
        both = isinstance(ours, dict) and isinstance(theirs, dict)
        return [(f"{path}.kind" if both else path, _plain(kinds[0] or ours), _plain(kinds[1] or theirs))]
    mine, other = ({} if each is None else each for each in (ours, theirs))
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return [(path, _plain(ours), _plain(theirs))]
    found = []
    for key in sorted(mine.keys() | other.keys()):
        if key != "layers":
            found += differences(mine.get(key), other.get(key), f"{path}.{key}" if path else key)
    return found + _of_layers(mine, other, path, found) if "layers" in mine else found


def _of_layers(
    ours: dict[str, Any], theirs: dict[str, Any], path: str, known: list[tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    """Differences in layers that differ from their stack's `block`, without those already known for the block."""
    found = []
    for number in sorted(ours["layers"].keys() | theirs["layers"].keys(), key=int):
        blocks = [stack["layers"].get(number, stack["block"]) for stack in (ours, theirs)]
        for place, mine, other in differences(*blocks):
            if (f"{path}.block.{place}", mine, other) not in known:
                found.append((f"{path}.layers.{number}.{place}", mine, other))
    return found


def _plain(value: Any) -> str:
    """A value in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)
