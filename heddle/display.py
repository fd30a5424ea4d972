"""Readable `repr`s for results: the most important lines first, on one screen, and how to see the rest; the same as HTML."""

import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from html import escape
from itertools import islice
from typing import Any, TypeVar

ROWS, COLUMNS = 25, 100  # of a screen
FEW = 6  # maximum elements of a tensor to print
T = TypeVar("T")


def displayed(rest: str = "") -> Callable[[type[T]], type[T]]:
    """Give a dataclass or a named tuple a `repr` that fits on a screen.

    A class may define its lines as `_lines(self)`; otherwise its fields are printed.

    Args:
        rest: where to find lines that do not fit.
    """

    def decorate(cls: type[T]) -> type[T]:
        def display(self: Any) -> str:
            return screen(self._lines() if hasattr(cls, "_lines") else field_lines(self), rest)

        cls.__repr__ = display  # type: ignore[method-assign]
        return cls

    return decorate


class Listed(list[T]):
    """A list whose `repr` fits on a screen: numbers on one line, other items on a line each."""

    def __repr__(self) -> str:
        if all(isinstance(item, int | float) for item in self):
            return brief([*self], COLUMNS)
        return screen(["[", *(f"  {' '.join(repr(item).split()).replace('( ', '(')}," for item in self), "]"])


def screen(lines: Iterable[str], rest: str = "") -> str:
    """Lines cut to a screen; if some are cut, the last line tells where the rest is."""
    full = [line.rstrip() for line in lines]
    short = [cut(line) for line in full]
    if short == full and len(full) <= ROWS:
        return "\n".join(full)
    available = ROWS - 1 if rest or len(full) > ROWS else ROWS
    hidden = max(len(full) - available, 0)
    footer = " ".join(
        part
        for part in (
            f"… {hidden:,} more {'line' if hidden == 1 else 'lines'}." if hidden else "",
            rest and f"The rest: {rest}",
        )
        if part
    )
    return "\n".join([*short[:available], *([cut(footer)] if footer else [])])


def wrapped(text: str) -> list[str]:
    """A sentence below a heading, on as many lines as it takes."""
    return textwrap.wrap(text, COLUMNS, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def field_lines(value: Any) -> list[str]:
    """The fields of a dataclass or a named tuple: in one line if they fit, else a line each."""
    names = [field.name for field in fields(value) if field.repr] if is_dataclass(value) else list(value._fields)
    parts = [f"{name}={brief(getattr(value, name))}" for name in names]
    line = f"{type(value).__name__}({', '.join(parts)})"
    if len(line) <= COLUMNS:
        return [line]
    lines = [f"{type(value).__name__}("]
    for part in parts:
        if len(lines) > 1 and len(lines[-1]) + len(part) + 2 <= COLUMNS:
            lines[-1] += f" {part},"
        else:
            lines.append(f"  {part},")
    return [*lines, ")"]


def config_lines(config: Any, width: int = COLUMNS) -> list[str]:
    """The fields of a config that differ from their defaults: in one line if they fit, else a line each."""
    parts = {name: getattr(config, name) for name in type(config).model_fields if _differs(config, name)}
    line = f"{type(config).__name__}({', '.join(f'{name}={_in_line(value)}' for name, value in parts.items())})"
    if len(line) <= width:
        return [line]
    lines = [f"{type(config).__name__}("]
    for name, value in parts.items():
        available = width - 4 - len(name)
        first, *further = (
            config_lines(value, available) if hasattr(type(value), "model_fields") else [brief(value, available)]
        )
        lines += [f"  {name}={first}", *(f"  {line}" for line in further)]
        lines[-1] += ","
    return [*lines, ")"]


def html_table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table for notebooks, without colours of its own; the columns after the first are aligned to the right."""

    def line(cells: Iterable[str], tag: str) -> str:
        aligned = (f' style="text-align:{"right" if place else "left"}"' for place in range(sys.maxsize))
        return "".join(f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(cells, aligned, strict=False))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    title = f'<caption style="text-align:left;font-weight:bold">{escape(caption)}</caption>'
    return f"<table>{title}<thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def config_html(config: Any) -> str:
    """A config as a tree for notebooks: the fields that differ from their defaults, then the others, folded."""
    names = type(config).model_fields
    differing = [name for name in names if _differs(config, name)]
    others = [name for name in names if name not in differing]
    items = [_branch(name, getattr(config, name)) for name in differing]
    if others:
        folded = "".join(f"<li>{escape(name)} = {escape(_in_short(getattr(config, name)))}</li>" for name in others)
        count = f"{len(others)} {'default' if len(others) == 1 else 'defaults'}"
        items.append(f"<li><details><summary>{count}</summary><ul>{folded}</ul></details></li>")
    return f"<ul>{''.join(items)}</ul>"


def _differs(config: Any, name: str) -> bool:
    field = type(config).model_fields[name]
    return bool(field.is_required() or getattr(config, name) != field.get_default(call_default_factory=True))


def _branch(name: str, value: Any) -> str:
    """A field as an item of a list, with the fields of a config, or of several, below it."""
    configs = value if isinstance(value, tuple) else (value,)
    if not configs or not all(hasattr(type(each), "model_fields") for each in configs):
        return f"<li><b>{escape(name)}</b> = {escape(brief(value))}</li>"
    below = "".join(config_html(each) for each in configs[:FEW])
    more = f"<li>… {len(configs) - FEW:,} more</li>" if len(configs) > FEW else ""
    return f"<li><b>{escape(name)}</b> {type(configs[0]).__name__}{below}{more}</li>"


def _in_short(value: Any) -> str:
    return cut(_in_line(value), COLUMNS - 20)


def _in_line(value: Any) -> str:
    return " ".join(config_lines(value, sys.maxsize)) if hasattr(type(value), "model_fields") else repr(value)


def brief(value: Any, width: int = COLUMNS - 20) -> str:
    """A value in one line of at most `width` characters."""
    return cut(_brief(value, width), width)


def cut(line: str, width: int = COLUMNS) -> str:
    """A line, cut if it is too long."""
    return line if len(line) <= width else line[: width - 1] + "…"


def _brief(value: Any, width: int) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and hasattr(value, "dtype"):
        kind = f"{str(value.dtype).removeprefix('torch.')} {list(shape)}"
        size = value.size if isinstance(value.size, int) else value.numel()  # numpy, or torch
        usable = 0 < size <= FEW and not getattr(value, "is_meta", False)
        return f"{kind}: {_brief(value.tolist(), width)}" if usable else kind
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str | bytes):
        return repr(value) if len(value) < width else reprlib.repr(value[: 2 * width])
    if isinstance(value, Mapping):
        return _several(
            "{", (f"{_brief(k, width)}: {_brief(v, width)}" for k, v in value.items()), len(value), width, "}"
        )
    if type(value) in (list, tuple, set, frozenset):
        opened, closed = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        return _several(opened, (_brief(item, width) for item in value), len(value), width, closed)
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__).replace("<lambda>", "a function")
    lines = repr(value).splitlines() or [""]
    if " at 0x" in lines[0]:
        return f"a {type(value).__name__}"
    return lines[0] if len(lines) == 1 and len(lines[0]) <= width else f"{type(value).__name__}(…)"


def _several(opened: str, items: Iterable[str], count: int, width: int, closed: str) -> str:
    """The first items of a collection, and the number of the others."""
    first: list[str] = []
    used, available = 0, width - len(f"… {count:,} more") - 4
    for item in islice(items, count):
        if used + len(item) > available:
            return f"{opened}{''.join(f'{item}, ' for item in first)}… {count - len(first):,} more{closed}"
        first.append(item)
        used += len(item) + 2
    return f"{opened}{', '.join(first)}{closed}"


def largest(parts: Mapping[str, int], count: int = 8) -> list[tuple[str, int]]:
    """The largest parts of a sum, and the rest as one part; parts of 0 are left out."""
    order = sorted(((name, number) for name, number in parts.items() if number), key=lambda pair: -pair[1])
    remaining = order[count:]
    return [
        *order[:count],
        *([(f"{len(remaining)} more", sum(number for _, number in remaining))] if remaining else []),
    ]


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in a readable unit."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def memory(speed: Mapping[str, float], processes: int = 1) -> str:
    """What a step has held of the memory, as `Report.speed` has it; empty where that is not known. Of several, rank 0 reports."""
    held = speed.get("memory", 0.0)
    return f"{size(held)}{' in rank 0' if processes > 1 else ''}" if held else ""


def metrics(values: Mapping[str, float]) -> str:
    """A task's metrics on one line, without its integer counts."""
    floats = {name.replace("_", " "): value for name, value in values.items() if isinstance(value, float)}
    return ", ".join(f"{name} {value:.4f}" for name, value in floats.items())


def estimate(loss: float, error: float | None) -> str:
    """A loss with its standard error, if there is one."""
    return f"{loss:.4f} ± {error:.4f}" if error else f"{loss:.4f}"
