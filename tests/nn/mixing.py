"""The laws of a mixer, for one mixer by itself: what it says of a token depends on the tokens before it and on nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heddle.nn import Cache, Layout
from heddle.nn.layout import PADDING
from heddle.nn.state import BlockState

DIM = 6


def filled(mixer: nn.Module) -> Any:
    """In float64, every parameter random, also those that would start at zero."""
    mixer.double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer


def tokens(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, DIM, dtype=torch.float64)


def whole(mixer: Any, x: Tensor, at: Layout | None = None) -> Tensor:
    at = Layout.plain(x.shape[0], x.shape[1]) if at is None else at
    return mixer(x, mixer.pattern.scope(at))


def cache_for(mixer: Any, rows: int) -> Cache:
    return Cache([BlockState(mixer.new_state())], rows)


def keys_for(mixer: Any, cache: Cache) -> Layout:
    assert cache.keys is not None
    return cache.keys[mixer.pattern.reach]


def step(mixer: Any, cache: Cache, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    queries = cache.advance([x.shape[1]] * x.shape[0] if counts is None else counts)
    return mixer(x, mixer.pattern.scope(queries, keys_for(mixer, cache)), cache.states[0].mixer)


def fed(mixer: Any, cache: Cache, rows: Sequence[Tensor]) -> list[Tensor]:
    """One call with rows [t D] of any lengths, filled up with noise; each row's own outputs."""
    counts = [len(row) for row in rows]
    x = tokens(len(rows), max(counts))
    for row, own in enumerate(rows):
        x[row, : len(own)] = own
    y = step(mixer, cache, x, counts)
    return [y[row, :count] for row, count in enumerate(counts)]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def causal(mixer: Any) -> None:
    x = tokens(2, 12)
    before = whole(mixer, x)
    for place in (0, 5, 11):
        changed = x.clone()
        changed[:, place] += 1
        after = whole(mixer, changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert (after[:, place] != before[:, place]).any()


def chunks(mixer: Any) -> None:
    x = tokens(2, 20)
    expected = whole(mixer, x)
    for cuts in ([20], [1] * 20, [3, 1, 16], [1, 17, 2], [9, 8, 1, 1, 1]):
        cache = cache_for(mixer, 2)
        close(torch.cat([step(mixer, cache, piece) for piece in x.split(cuts, dim=1)], dim=1), expected)


def ragged(mixer: Any) -> None:
    calls = [[5, 2, 0], [1, 1, 1], [1, 0, 3], [2, 12, 1], [1, 1, 1], [14, 1, 9], [1, 1, 1]]
    rows = [tokens(1, sum(counts))[0] for counts in zip(*calls, strict=True)]
    cache, done = cache_for(mixer, 3), [0, 0, 0]
    found: list[list[Tensor]] = [[], [], []]
    for counts in calls:
        pieces = [row[start : start + count] for row, start, count in zip(rows, done, counts, strict=True)]
        for own, output in zip(found, fed(mixer, cache, pieces), strict=True):
            own.append(output)
        done = [start + count for start, count in zip(done, counts, strict=True)]
    for row, own in zip(rows, found, strict=True):
        close(torch.cat(own), whole(mixer, row[None])[0])


def padding(mixer: Any) -> None:
    """On both sides; nor does it change a gradient, or receive one."""
    rows = [tokens(1, length)[0] for length in (3, 9, 1)]
    for side in ("right", "left"):
        at = Layout.padded([len(row) for row in rows], 11, side)
        real = at.segment != PADDING
        x = tokens(3, 11)
        x[real] = torch.cat(rows)
        x.requires_grad_()
        weights = list(mixer.parameters())
        y = whole(mixer, x, at)[real]
        alone = torch.cat([whole(mixer, row[None])[0] for row in rows])
        close(y, alone)
        got, *of_weights = torch.autograd.grad(y.square().sum(), [x, *weights])
        assert (got[~real] == 0).all()
        for mine, expected in zip(of_weights, torch.autograd.grad(alone.square().sum(), weights), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)


def packed(mixer: Any) -> None:
    lengths = [[4, 1, 7], [12], [2, 2, 2, 3]]
    at, x = Layout.packed(lengths, 13), tokens(3, 13)
    y = whole(mixer, x, at)
    for row, documents in enumerate(lengths):
        start = 0
        for length in documents:
            own = slice(start, start + length)
            close(y[row, own], whole(mixer, x[row : row + 1, own])[0])
            start += length


def rows(mixer: Any) -> None:
    """Forked, reordered and joined rows go on as if each had been alone, and do not disturb those that they came from."""
    first, second, third = tokens(3, 20)
    cache, other = cache_for(mixer, 2), cache_for(mixer, 1)
    fed(mixer, cache, [first[:4], second[:9]])
    fed(mixer, other, [third[:2]])
    chosen = cache.select([1, 0, 1])
    detour = tokens(1, 3)[0]
    close(fed(mixer, chosen, [second[9:12], first[4:5], detour])[2], along(mixer, second[:9], detour))
    both = chosen.select([0, 1]).join(other)
    assert both.lengths == [12, 5, 2]
    y = fed(mixer, both, [second[12:], first[5:9], third[2:]])
    for own, row, start in zip(y, (second, first[:9], third), (12, 5, 2), strict=True):
        close(own, whole(mixer, row[None])[0, start:])
    y = fed(mixer, cache, [first[4:], second[9:]])
    for own, row, start in zip(y, (first, second), (4, 9), strict=True):
        close(own, whole(mixer, row[None])[0, start:])


def along(mixer: Any, prefix: Tensor, then: Tensor) -> Tensor:
    return whole(mixer, torch.cat((prefix, then))[None])[0, len(prefix) :]


LAWS: dict[str, Callable[[Any], None]] = {
    "causal": causal,
    "chunks": chunks,
    "ragged": ragged,
    "padding": padding,
    "packed": packed,
    "rows": rows,
}
