"""Activation patching, or causal tracing: which activations carry the difference between two prompts.

Vig et al. 2020; Meng et al. 2022, section 2.1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import checked, one_of
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.look.edits import AXES, Edit, axis_of, replace
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.model.transformer import Transformer

Metric = Callable[[Float[Tensor, "B T V"]], float]


@displayed(".values, .restored()")
@dataclass(frozen=True, eq=False)
class Patching:
    """The metric under each patch.

    Attributes:
        names: patched sites, by row.
        parts: patched parts, by column: positions, heads, or `all`.
        values: Float[R C], the metric with each patch; NaN where a site has no such part.
        clean: the metric of the clean prompt.
        corrupted: the metric of the corrupted prompt.
    """

    names: tuple[str, ...]
    parts: tuple[str, ...]
    values: Float[Tensor, "R C"]
    clean: float
    corrupted: float

    def restored(self) -> Float[Tensor, "R C"]:
        """The fraction of the difference that each patch restores: 0 means no change, 1 the metric of the clean prompt.

        Raises:
            HeddleError: both prompts have the same metric.
        """
        if self.clean == self.corrupted:
            raise HeddleError("both prompts have the same metric, so there is no difference to restore")
        return (self.values - self.corrupted) / (self.clean - self.corrupted)

    def _lines(self) -> Iterator[str]:
        yield f"Patching: {self.clean:.4f} clean, {self.corrupted:.4f} corrupted; the metric with each patch"
        yield f"  {'':<32}" + "".join(f"{part[:9]:>10}" for part in self.parts)
        for name, row in zip(self.names, self.values.tolist(), strict=True):
            yield f"  {name:<32}" + "".join(f"{value:>10.4f}" for value in row)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(part)}</th>" for part in self.parts)
        rows = "".join(
            f"<tr><th>{escape(name)}</th>{''.join(f'<td>{value:.3f}</td>' for value in row)}</tr>"
            for name, row in zip(self.names, self.values.tolist(), strict=True)
        )
        caption = f"clean {self.clean:.3f}, corrupted {self.corrupted:.3f}"
        return f"<table><caption>{caption}</caption><tr><th></th>{head}</tr>{rows}</table>"


@checked()
def difference_of_logits(first: int, second: int, position: int = -1) -> Metric:
    """A metric: the logit of `first` minus that of `second` at a position of the first row."""
    return lambda logits: float(logits[0, position, first] - logits[0, position, second])


@torch.no_grad()
@checked(by=one_of(("all", *AXES)))
def patch(
    model: Transformer,
    clean: Int[Tensor, "1 T"],
    corrupted: Int[Tensor, "1 T"],
    metric: Callable[[Tensor], float],
    names: str | Sequence[str],
    by: str = "positions",
    done: Callable[[int, int], None] | None = None,
    **more: Any,
) -> Patching:
    """Patch activations of the clean prompt into the pass of the corrupted one, one part of a site at a time.

    Args:
        model: any model whose head scores tokens.
        clean: the prompt to take activations from.
        corrupted: the prompt to patch, of the same length.
        metric: from logits [1 T V] to a number, such as `difference_of_logits(first, second)`.
        names: which sites, such as `decoder.*.residual_after` by positions, or `decoder.*.mixer.heads` by heads.
        by: the part to patch at a time: `positions`, `heads`, `neurons`, `experts`, or `all` for the full tensor.
        done: progress callback (done, total).
        more: further model arguments for both passes: source, layout, …

    Raises:
        HeddleError: the prompts differ in length, or a site has no such parts.
    """
    if clean.shape != corrupted.shape:
        raise HeddleError(
            f"the clean prompt has {clean.shape[1]} tokens and the corrupted one {corrupted.shape[1]}: "
            "patching needs prompts of equal length"
        )
    clean_trace = trace(model, clean, names, **more)
    if not clean_trace:
        raise HeddleError("patch: names = []: give at least one site, such as decoder.*.residual_after")
    corrupted_trace = trace(model, corrupted, **more)
    columns = 1 if by == "all" else max(_count(model, name, tensor, by) for name, tensor in clean_trace.items())
    values = torch.full((len(clean_trace), columns), torch.nan)
    total = sum(1 if by == "all" else _count(model, name, tensor, by) for name, tensor in clean_trace.items())
    for number, (row, column, edit) in enumerate(_edits(model, clean_trace.items(), by)):
        values[row, column] = metric(trace(model, corrupted, edits=[edit], **more).logits)
        if done is not None:
            done(number + 1, total)
    parts = ("all",) if by == "all" else tuple(map(str, range(columns)))
    return Patching(tuple(clean_trace), parts, values, metric(clean_trace.logits), metric(corrupted_trace.logits))


def _edits(model: Transformer, tensors: Iterable[tuple[str, Tensor]], by: str) -> Iterator[tuple[int, int, Edit]]:
    for row, (name, tensor) in enumerate(tensors):
        if by == "all":
            yield row, 0, replace(name, tensor)
            continue
        for column in range(_count(model, name, tensor, by)):
            yield row, column, replace(name, tensor, **{by: [column]})


def _count(model: Transformer, name: str, tensor: Tensor, by: str) -> int:
    """The number of parts of a site."""
    return tensor.shape[axis_of(sites(model)[name], by)]
