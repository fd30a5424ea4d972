"""A report as rich tables. rich is imported only when a report is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from heddle.account.formulas import Line
from heddle.account.report import Accounts
from heddle.checks import checked

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
SHORT = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


@checked()
def render(report: Accounts, whole: bool = False) -> list[RenderableType]:
    """Tables and lines to print, in reading order.

    Args:
        whole: show every table and every layer, instead of the main tables with equal layers as one line.
    """
    tables: list[RenderableType] = [
        *_parameters(report, whole),
        *_flops(report, whole),
        *_memory(report, whole),
    ]
    return [*tables, *(f"Note: {note}" for note in report.notes)]


def amount(size: float) -> str:
    """Bytes in a readable unit: 48.0 MiB."""
    unit, name = next(((unit, name) for unit, name in UNITS if size >= unit), (1, "B"))
    return f"{size / unit:,.1f} {name}" if unit > 1 else f"{size:,.0f} B"


def short(number: float) -> str:
    """A count in a readable unit: 124.4M."""
    unit, name = next(((unit, name) for unit, name in SHORT if number >= unit), (1, ""))
    return f"{number / unit:.4g}{name}"


def _parameters(report: Accounts, whole: bool) -> Iterable[RenderableType]:
    known = report.parameters
    active = "" if known.active == known.total else f", {known.active:,} active for each token"
    yield f"{report.name or 'model'}, {report.family}: {known.total:,} parameters ({short(known.total)}){active}"
    yield _layout(report, whole)
    yield _table("By part", ("part", "parameters", "share"), _shares(known.parts, known.total))
    if whole:
        yield _table("By group", ("group", "parameters", "share"), _shares(known.groups, known.total))
        yield _table("One block", ("part", "parameters", "share"), _shares(known.block, sum(known.block.values())))
    if whole and known.deck:
        yield _deck("The lecture's sum", known.deck)
        items = [(item.name, item.formula, f"{item.count:+,}") for item in known.difference]
        deck = known.deck[-1].value
        items.append(("total", "", f"{known.total - deck:+,}"))
        yield _table(f"From {deck:,} to {known.total:,}", ("item", "formula", "count"), items)
    if known.rule is not None:
        yield f"12Ld² = {known.rule:,}, {known.rule_share:.2%} of all."
    if known.untied != known.total:
        yield f"With an untied head: {known.untied:,}."
    if report.printed is not None:
        yield f"The lectures print {short(report.printed)}; exact / printed = {known.total / report.printed:.4f}."


def _layout(report: Accounts, whole: bool) -> Table:
    total, rows = report.parameters.total, []
    for group in report.layout:
        share = f"{group.total / total:.2%}"
        if whole and group.layers:
            each, part = f"{group.each:,}", f"{group.each / total:.2%}"
            rows += [(f"{group.name}.{number}", "", "", each, part) for number in group.layers]
        elif len(group.layers) > 1:
            rows.append((group.label(), f"{group.each:,}", f"× {len(group.layers)}", f"{group.total:,}", share))
        else:
            rows.append((group.label(), "", "", f"{group.total:,}", share))
    rows.append(("all", "", "", f"{total:,}", ""))
    return _table("By layer", ("weights", "each", "", "parameters", "share"), rows)


def _flops(report: Accounts, whole: bool) -> Iterable[RenderableType]:
    cost = report.flops
    size = f"batch {cost.batch:,}, length {cost.length:,}"
    yield f"\nOne forward pass: {size}"
    yield _table("FLOPs", ("part", "FLOPs", "share"), _shares(cost.parts, cost.forward))
    if whole and cost.deck:
        yield _deck("The lectures' closed forms", cost.deck)
    seen = ", ".join(
        f"{kernel} {number:,}" if kernel != "none" else f"{number:,}" for kernel, number in cost.counted.items()
    )
    square = ", attention as the full square" if cost.crossover is not None else ""
    yield f"Matrix products only{square}; torch's counter: {seen}."
    yield f"Training is three forward passes: {cost.training:,} FLOPs, {short(cost.per_token)} for each token."
    if cost.crossover is not None:
        half = f"one half of its FLOPs at length {cost.crossover:,.0f}"
        yield f"The quadratic part of a layer is {cost.quadratic_share:.2%}; {half}."
    if cost.prefix_rows is not None:
        together, alone = cost.prefix_rows
        yield f"One pass predicts after all {together:,} prefixes; separate passes would take {alone:,} rows of tokens."
    if cost.path is not None:
        one = f"The last token has seen the first after {cost.path} layer{'s' if cost.path > 1 else ''}"
        yield f"{one}, {cost.steps:,} steps in sequence." if cost.steps != cost.path else f"{one}."
    elif not report.has_foreign_mixer():
        yield "The last token does not see the first: all layers together do not look back that far."


def _memory(report: Accounts, whole: bool) -> Iterable[RenderableType]:
    held = report.memory
    rows = [(f"weights, {name}", f"{value:,}", amount(value)) for name, value in held.weights.items()]
    for kept in held.activations:
        name = ", ".join(
            ["kept for the backward pass", kept.precision, *([] if kept.kernel == "none" else [kept.kernel])]
        )
        rows.append((name, f"{kept.bytes:,}", amount(kept.bytes)))
    rows += [(f"all logits at once, {name}", f"{value:,}", amount(value)) for name, value in held.logits.items()]
    for cache in held.cache:
        rows.append((f"cache, one token, {cache.precision}", f"{cache.per_token:,}", amount(cache.per_token)))
        for what, value in (("windows and states", cache.bounded), ("the source", cache.memory)):
            if value:
                rows.append((f"cache, {what}, {cache.precision}", f"{value:,}", amount(value)))
        rows.append((f"cache, filled, {cache.precision}", f"{cache.held:,}", amount(cache.held)))
    yield _table("Memory", ("what", "bytes", ""), rows)
    if not whole:
        return
    states: list[tuple[str, ...]] = [
        (s.optimizer, s.precision, *(amount(n) for n in (s.weights, s.copy, s.gradients, s.moments, s.total)))
        for s in held.training
    ]
    columns = ("optimizer", "precision", "weights", "bf16 copy", "gradients", "moments", "total")
    yield _table("Training, without what is kept for the backward pass", columns, states)
    square = [
        (f"{row.length:,}", amount(row.scores), amount(row.flash), amount(row.qkvo), f"{row.quadratic_share:.2%}")
        for row in held.attention
    ]
    if square:
        headings = ("length", "all scores, n²", "blockwise, n·d", "q, k, v, output", "quadratic FLOPs")
        yield _table("One layer's attention, fp32", headings, square)
    if held.deck:
        yield _deck("The lectures' closed forms", held.deck)


def _shares(parts: Mapping[str, int], total: int) -> list[tuple[str, ...]]:
    rows = [(name, f"{number:,}", f"{number / total:.2%}") for name, number in parts.items() if number]
    return [*rows, ("all", f"{total:,}", "")]


def _deck(title: str, lines: Sequence[Line]) -> Table:
    rows: list[tuple[str, ...]] = []
    for line in lines:
        difference = f"{line.difference:+,}" if line.difference else "="
        rows.append((line.name, line.formula, f"{line.value:,}", f"{line.walked:,}", difference))
    return _table(title, ("what", "formula", "lecture", "this model", "difference"), rows)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        text = number == 0 or column == "formula"
        table.add_column(column, justify="left" if text else "right")
    for row in rows:
        table.add_row(*row)
    return table
