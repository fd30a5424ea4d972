"""A report as tables and lines of text, before they are rendered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heddle.account.formulas import Line

if TYPE_CHECKING:
    from heddle.account.report import Accounts

UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
SHORT = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


class Table(NamedTuple):
    """A table before it is rendered; texts are in the first column and in `formula`, numbers in the others."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]]


def contents(report: Accounts, full: bool = False) -> list[Table | str]:
    """Tables and lines in reading order.

    Args:
        full: every table and every layer, instead of the main tables with equal layers as one line.
    """
    parts = (*_parameters(report, full), *_flops(report, full), *_memory(report, full))
    return [*parts, *(f"Note: {note}" for note in report.notes)]


def amount(size: float) -> str:
    """Bytes in a readable unit: 48.0 MiB."""
    unit, name = next(((unit, name) for unit, name in UNITS if size >= unit), (1, "B"))
    return f"{size / unit:,.1f} {name}" if unit > 1 else f"{size:,.0f} B"


def short(number: float) -> str:
    """A count in a readable unit: 124.4M."""
    unit, name = next(((unit, name) for unit, name in SHORT if number >= unit), (1, ""))
    return f"{number / unit:.4g}{name}"


def _parameters(report: Accounts, full: bool) -> Iterable[Table | str]:
    counts = report.parameters
    active = "" if counts.active == counts.total else f", {counts.active:,} active for each token"
    yield f"{report.name or 'model'}, {report.family}: {counts.total:,} parameters ({short(counts.total)}){active}"
    yield _layout(report, full)
    yield _table("By part", ("part", "parameters", "share"), _shares(counts.parts, counts.total))
    if full:
        yield _table("By group", ("group", "parameters", "share"), _shares(counts.groups, counts.total))
        yield _table("One block", ("part", "parameters", "share"), _shares(counts.block, sum(counts.block.values())))
    if full and counts.deck:
        yield _deck("The lecture's sum", counts.deck)
        items = [(item.name, item.formula, f"{item.count:+,}") for item in counts.difference]
        deck = counts.deck[-1].value
        items.append(("total", "", f"{counts.total - deck:+,}"))
        yield _table(f"From {deck:,} to {counts.total:,}", ("item", "formula", "count"), items)
    if counts.rule is not None:
        yield f"12Ld² = {counts.rule:,}, {counts.rule_share:.2%} of all."
    if counts.untied != counts.total:
        yield f"With an untied head: {counts.untied:,}."
    if report.printed is not None:
        yield f"The lectures print {short(report.printed)}; exact / printed = {counts.total / report.printed:.4f}."


def _layout(report: Accounts, full: bool) -> Table:
    total, rows = report.parameters.total, []
    for group in report.layout:
        share = f"{group.total / total:.2%}"
        if full and group.layers:
            count, part = f"{group.each:,}", f"{group.each / total:.2%}"
            rows += [(f"{group.name}.{number}", "", "", count, part) for number in group.layers]
        elif len(group.layers) > 1:
            rows.append((group.label(), f"{group.each:,}", f"× {len(group.layers)}", f"{group.total:,}", share))
        else:
            rows.append((group.label(), "", "", f"{group.total:,}", share))
    rows.append(("all", "", "", f"{total:,}", ""))
    return _table("By layer", ("weights", "each", "", "parameters", "share"), rows)


def _flops(report: Accounts, full: bool) -> Iterable[Table | str]:
    cost = report.flops
    size = f"batch {cost.batch:,}, length {cost.length:,}"
    yield f"\nOne forward pass: {size}"
    yield _table("FLOPs", ("part", "FLOPs", "share"), _shares(cost.parts, cost.forward))
    if full and cost.deck:
        yield _deck("The lectures' closed forms", cost.deck)
    counter = ", ".join(
        f"{kernel} {number:,}" if kernel != "none" else f"{number:,}" for kernel, number in cost.counted.items()
    )
    square = ", attention as the full square" if cost.crossover is not None else ""
    yield f"Matrix products only{square}; torch's counter: {counter}."
    yield f"Training is three forward passes: {cost.training:,} FLOPs, {short(cost.per_token)} for each token."
    if cost.crossover is not None:
        half = f"one half of its FLOPs at length {cost.crossover:,.0f}"
        yield f"The quadratic part of a layer is {cost.quadratic_share:.2%}; {half}."
    if cost.prefix_rows is not None:
        together, separate = cost.prefix_rows
        yield f"One pass predicts after all {together:,} prefixes; separate passes would take {separate:,} rows of tokens."
    if cost.path is not None:
        sentence = f"The last token has seen the first after {cost.path} layer{'s' if cost.path > 1 else ''}"
        yield f"{sentence}, {cost.steps:,} steps in sequence." if cost.steps != cost.path else f"{sentence}."
    elif not report.has_foreign_mixer():
        yield "The last token does not see the first: all layers together do not look back that far."


def _memory(report: Accounts, full: bool) -> Iterable[Table | str]:
    memory = report.memory
    rows = [(f"weights, {name}", f"{value:,}", amount(value)) for name, value in memory.weights.items()]
    for saved in memory.activations:
        name = ", ".join(
            ["saved for the backward pass", saved.precision, *([] if saved.kernel == "none" else [saved.kernel])]
        )
        rows.append((name, f"{saved.bytes:,}", amount(saved.bytes)))
    rows += [(f"all logits at once, {name}", f"{value:,}", amount(value)) for name, value in memory.logits.items()]
    for cache in memory.cache:
        rows.append((f"cache, one token, {cache.precision}", f"{cache.per_token:,}", amount(cache.per_token)))
        for label, value in (("windows and states", cache.bounded), ("the source", cache.memory)):
            if value:
                rows.append((f"cache, {label}, {cache.precision}", f"{value:,}", amount(value)))
        rows.append((f"cache, filled, {cache.precision}", f"{cache.held:,}", amount(cache.held)))
    yield _table("Memory", ("part", "bytes", ""), rows)
    if not full:
        return
    states: list[tuple[str, ...]] = [
        (s.optimizer, s.precision, *(amount(n) for n in (s.weights, s.copy, s.gradients, s.moments, s.total)))
        for s in memory.training
    ]
    columns = ("optimizer", "precision", "weights", "bf16 copy", "gradients", "moments", "total")
    yield _table("Training, without saved activations", columns, states)
    square = [
        (f"{row.length:,}", amount(row.scores), amount(row.flash), amount(row.qkvo), f"{row.quadratic_share:.2%}")
        for row in memory.attention
    ]
    if square:
        headings = ("length", "all scores, n²", "blockwise, n·d", "q, k, v, output", "quadratic FLOPs")
        yield _table("One layer's attention, fp32", headings, square)
    if memory.deck:
        yield _deck("The lectures' closed forms", memory.deck)


def _shares(parts: Mapping[str, int], total: int) -> list[tuple[str, ...]]:
    rows = [(name, f"{number:,}", f"{number / total:.2%}") for name, number in parts.items() if number]
    return [*rows, ("all", f"{total:,}", "")]


def _deck(title: str, lines: Sequence[Line]) -> Table:
    rows: list[tuple[str, ...]] = []
    for line in lines:
        difference = f"{line.difference:+,}" if line.difference else "="
        rows.append((line.name, line.formula, f"{line.value:,}", f"{line.walked:,}", difference))
    return _table(title, ("part", "formula", "lecture", "this model", "difference"), rows)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    return Table(title, columns, list(rows))
