"""The laws can fail: each of these bugs, planted by one changed line, breaks the law that watches for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import AlibiConfig, ConvolutionConfig, RecurrentConfig
from heddle.model import head as head_module
from heddle.model.stack import Entry
from heddle.nn import (
    MLP,
    Cache,
    Causal,
    Dropout,
    Layout,
    Mask,
    Residual,
    Rotary,
    attention,
    state,
)
from heddle.nn import recurrent as recurrent_module
from heddle.nn.convolution import Convolution
from heddle.nn.kernels import BLOCK, Blockwise, Kernel, Lowered, Plain, fused, plain, reference
from heddle.nn.mask import Window
from heddle.nn.moe import Router
from heddle.nn.position import Alibi
from heddle.nn.state import Carry
from tests.laws import laws
from tests.laws.models import awake, config_of

Patch = pytest.MonkeyPatch


def mask_one_to_the_right(patch: Patch) -> None:
    patch.setattr(Causal, "__call__", lambda self, query, key: key <= query + 1)


def mask_without_its_diagonal(patch: Patch) -> None:
    patch.setattr(Causal, "__call__", lambda self, query, key: (key < query) | (key == 0))


def mask_inverted(patch: Patch) -> None:
    right = reference.masked_softmax
    patch.setattr(reference, "masked_softmax", lambda scores, allowed, dead=None: right(scores, ~allowed))


def mask_multiplied_after_the_softmax(patch: Patch) -> None:
    def wrong(scores: Tensor, allowed: Tensor, dead: Tensor | None = None) -> Tensor:
        return scores.nan_to_num(neginf=0.0).softmax(-1) * allowed

    patch.setattr(reference, "masked_softmax", wrong)


def plain_one_key_to_the_right(patch: Patch) -> None:
    def wrong(mask: Mask, *more: Any) -> Lowered:
        return Lowered("plain", mask, allowed=mask.dense().roll(1, -1))

    patch.setattr(Plain, "lower", staticmethod(wrong))


def plain_forgets_what_block_it_is_in(patch: Patch) -> None:
    def wrong(mask: Mask, *more: Any) -> Lowered:
        rows = torch.arange(mask.queries.width) % BLOCK
        return Lowered("plain", mask, allowed=mask.dense()[:, :, rows])

    patch.setattr(Plain, "lower", staticmethod(wrong))


def dead_rows_are_left_alone(patch: Patch) -> None:
    for module in (plain, fused):
        patch.setattr(module, "dead_queries", lambda mask, allowed: None)


def scale_by_the_root_of_the_model_width(patch: Patch) -> None:
    right = Kernel.__init__
    width = 12  # of the attention that the law makes
    patch.setattr(Kernel, "__init__", lambda self, scale, *more: right(self, 1 / sqrt(width), *more))


def no_scale(patch: Patch) -> None:
    right = Kernel.__init__
    patch.setattr(Kernel, "__init__", lambda self, scale, *more: right(self, 1.0, *more))


def query_heads_grouped_by_turns(patch: Patch) -> None:
    patch.setattr(
        Tensor,
        "repeat_interleave",
        lambda self, repeats, dim: self.repeat(*(repeats if a == dim else 1 for a in range(4))),
    )


def heads_cut_the_other_way(patch: Patch) -> None:
    patch.setattr(attention, "split_heads", lambda x, width: x.unflatten(-1, (width, -1)).permute(0, 3, 1, 2))


def keys_are_not_rotated(patch: Patch) -> None:
    right = attention.rotate

    def wrong(x: Tensor, rotation: Any) -> Tensor:
        wrong.calls += 1
        return x if wrong.calls % 2 == 0 else right(x, rotation)  # queries come first, then keys

    wrong.calls = 0  # type: ignore[attr-defined]
    patch.setattr(attention, "rotate", wrong)


def rotation_starts_anew_with_each_call(patch: Patch) -> None:
    right = Rotary.forward
    patch.setattr(Rotary, "forward", lambda self, layout: right(self, Layout.plain(layout.rows, layout.width)))


def rotation_of_the_first_row_for_all(patch: Patch) -> None:
    right = Rotary.forward

    def wrong(self: Rotary, layout: Layout) -> Any:
        return right(self, Layout(layout.position, layout.segment, "uniform"))

    patch.setattr(Rotary, "forward", wrong)


def learned_positions_start_anew_with_each_call(patch: Patch) -> None:
    right = Entry.forward

    def wrong(self: Entry, x: Tensor, layout: Layout, types: Tensor | None = None) -> Tensor:
        return right(self, x, replace(layout, position=layout.position - layout.position[:, :1]), types)

    patch.setattr(Entry, "forward", wrong)


def cache_one_place_late(patch: Patch) -> None:
    right = Cache.advance

    def wrong(self: Cache, counts: Any, device: Any = None) -> Layout:
        late = any(self.lengths)
        queries = right(self, counts, device)
        self.queries = Layout(queries.position + late, queries.segment, queries.form)
        return self.queries

    patch.setattr(Cache, "advance", wrong)


def cache_shows_slots_that_are_not_written(patch: Patch) -> None:
    right = Mask.is_open
    patch.setattr(Mask, "is_open", lambda self: right(self) or self.queries.form == "uniform")


def forks_share_their_memory(patch: Patch) -> None:
    def wrong(self: Cache, rows: Any) -> Cache:
        self.lengths = [self.lengths[row] for row in rows]
        return self

    patch.setattr(Cache, "select", wrong)


def growing_forgets(patch: Patch) -> None:
    def wrong(buffer: Tensor, capacity: int) -> Tensor:
        return buffer.new_zeros(*buffer.shape[:2], capacity, buffer.shape[3])

    patch.setattr(state, "_grown", wrong)


def padding_is_seen(patch: Patch) -> None:
    def wrong(self: Mask, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.rule(self.queries.position[row, query], self.keys.position[row, key])

    patch.setattr(Mask, "__call__", wrong)


def padding_in_front_counts_as_places(patch: Patch) -> None:
    right = Layout.padded.__func__  # type: ignore[attr-defined]

    def wrong(cls: type[Layout], lengths: Any, width: int, side: str = "right") -> Layout:
        layout = right(cls, lengths, width, side)
        return Layout(torch.arange(width).expand(len(lengths), width), layout.segment, "padded")

    patch.setattr(Layout, "padded", classmethod(wrong))


def dropout_in_evaluation(patch: Patch) -> None:
    def wrong(self: Dropout, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, self.rate)

    patch.setattr(Dropout, "forward", wrong)


def norm_is_skipped(patch: Patch) -> None:
    patch.setattr(Residual, "enter", lambda self, x: x)


def skip_starts_from_the_norm(patch: Patch) -> None:
    right = Residual.leave
    patch.setattr(Residual, "leave", lambda self, x, entered, change: right(self, entered, entered, change))


def feed_forward_mixes_tokens(patch: Patch) -> None:
    right = MLP.forward
    patch.setattr(MLP, "forward", lambda self, x, queries: right(self, x - x.mean(1, keepdim=True), queries))


def extra_entries_are_likely(patch: Patch) -> None:
    patch.setattr(head_module, "mask_padding", lambda logits, vocab_size: logits)


def one_real_entry_is_masked(patch: Patch) -> None:
    right = head_module.mask_padding
    patch.setattr(head_module, "mask_padding", lambda logits, vocab_size: right(logits, vocab_size - 1))


def window_one_wider(patch: Patch) -> None:
    patch.setattr(Window, "__call__", lambda self, query, key: (query - key).abs() <= self.size)


def ring_one_place_late(patch: Patch) -> None:
    right = state._ring
    patch.setattr(state, "_ring", lambda start, window, queries: right(start + 1, window, queries))


def distances_start_anew_with_each_call(patch: Patch) -> None:
    right = Alibi.forward

    def wrong(self: Alibi, queries: Layout, keys: Layout) -> Tensor:
        return right(self, Layout.plain(queries.rows, queries.width), keys)

    patch.setattr(Alibi, "forward", wrong)


def blockwise_forgets_distances(patch: Patch) -> None:
    right = Blockwise.lower
    patch.setattr(Blockwise, "lower", staticmethod(lambda mask, bias=None: right(mask)))


def plain_forgets_its_cap(patch: Patch) -> None:
    patch.setattr(plain, "capped", lambda scores, cap: scores)


def convolution_looks_ahead(patch: Patch) -> None:
    right = Convolution._shifted
    patch.setattr(Convolution, "_shifted", lambda self, x, at: right(self, x.roll(-1, 1), at))


def recurrence_starts_anew_with_each_call(patch: Patch) -> None:
    patch.setattr(Carry, "read", lambda self: None)


def recurrence_runs_through_documents(patch: Patch) -> None:
    patch.setattr(recurrent_module, "first_of_segment", lambda at: torch.zeros_like(at.segment, dtype=torch.bool))


def router_compares_tokens(patch: Patch) -> None:
    right = Router.forward
    patch.setattr(Router, "forward", lambda self, x: right(self, x - x.mean(1, keepdim=True)))


@dataclass(frozen=True)
class Planted:
    """A bug, and a law that must notice it."""

    bug: Callable[[Patch], None]
    law: Callable[[], None]


def on(law: Callable[..., None], *arguments: Any, **options: Any) -> Callable[[], None]:
    """A law of a model with these options."""

    def run() -> None:
        law(awake(config_of(**options)), *arguments)

    return run


RIGHT = Layout.padded((3, 6), 6)
ALIBI: dict[str, Any] = {"positions": "none", "relative": AlibiConfig()}
CASES = [
    Planted(mask_one_to_the_right, on(laws.later_tokens_change_nothing, kernel="reference")),
    Planted(mask_one_to_the_right, on(laws.gradients_stay_in_the_past, kernel="reference")),
    Planted(mask_one_to_the_right, on(laws.prefixes_are_prefixes, kernel="reference")),
    Planted(mask_without_its_diagonal, lambda: laws.attention_is_torchs(Causal(), "reference")),
    Planted(mask_without_its_diagonal, lambda: laws.kernels_agree(config_of(), RIGHT)),
    Planted(mask_inverted, on(laws.later_tokens_change_nothing, kernel="reference")),
    Planted(mask_multiplied_after_the_softmax, lambda: laws.attention_is_torchs(Causal(), "reference")),
    Planted(plain_one_key_to_the_right, on(laws.later_tokens_change_nothing, kernel="plain")),
    Planted(plain_one_key_to_the_right, lambda: laws.kernels_agree(config_of(), Layout.plain(2, 6))),
    Planted(plain_forgets_what_block_it_is_in, lambda: laws.kernels_agree(config_of(), Layout.plain(1, 150))),
    Planted(dead_rows_are_left_alone, on(laws.padding_sees_nothing, RIGHT, kernel="plain")),
    Planted(dead_rows_are_left_alone, on(laws.padding_sees_nothing, RIGHT, kernel="sdpa")),
    Planted(scale_by_the_root_of_the_model_width, lambda: laws.attention_is_torchs(Causal(), "plain")),
    Planted(no_scale, lambda: laws.attention_is_torchs(Causal(), "sdpa")),
    Planted(heads_cut_the_other_way, lambda: laws.attention_is_torchs(Causal(), "sdpa")),
    Planted(query_heads_grouped_by_turns, lambda: laws.kernels_agree(config_of(kv_heads=2), RIGHT)),
    Planted(keys_are_not_rotated, on(laws.only_distances_count)),
    Planted(rotation_starts_anew_with_each_call, on(laws.cached_is_uncached, 9, (4,))),
    Planted(rotation_of_the_first_row_for_all, on(laws.rows_together_are_rows_alone, [(2, 4), (1, 1)])),
    Planted(rotation_of_the_first_row_for_all, on(laws.packed_is_separate)),
    Planted(learned_positions_start_anew_with_each_call, on(laws.cached_is_uncached, 9, (4,), positions="learned")),
    Planted(cache_one_place_late, on(laws.cached_is_uncached, 9, (4,))),
    Planted(cache_shows_slots_that_are_not_written, on(laws.cached_is_uncached, 9, (4,))),
    Planted(forks_share_their_memory, on(laws.forks_are_independent)),
    Planted(growing_forgets, on(laws.cached_is_uncached, 70, (60,))),
    Planted(padding_is_seen, on(laws.padding_changes_nothing, "left", kernel="reference")),
    Planted(padding_is_seen, on(laws.gradients_pass_padding_by, "left", kernel="reference")),
    Planted(padding_is_seen, on(laws.packed_is_separate)),
    Planted(padding_in_front_counts_as_places, on(laws.padding_changes_nothing, "left", positions="learned")),
    Planted(dropout_in_evaluation, on(laws.evaluation_repeats, dropout=0.5)),
    Planted(norm_is_skipped, lambda: laws.block_is_torchs("pre", "gelu", Causal())),
    Planted(skip_starts_from_the_norm, lambda: laws.block_is_torchs("pre", "gelu", Causal())),
    Planted(feed_forward_mixes_tokens, on(laws.later_tokens_change_nothing)),
    Planted(window_one_wider, on(laws.later_tokens_change_nothing, kernel="reference", window=3)),
    Planted(window_one_wider, lambda: laws.kernels_agree(config_of(window=3), Layout.plain(1, 9))),
    Planted(ring_one_place_late, on(laws.cached_is_uncached, 9, (4,), window=3)),
    Planted(distances_start_anew_with_each_call, on(laws.cached_is_uncached, 9, (4,), **ALIBI)),
    Planted(blockwise_forgets_distances, lambda: laws.kernels_agree(config_of(**ALIBI), RIGHT)),
    Planted(plain_forgets_its_cap, lambda: laws.kernels_agree(config_of(cap=2.0), RIGHT)),
    Planted(convolution_looks_ahead, on(laws.later_tokens_change_nothing, first=ConvolutionConfig())),
    Planted(recurrence_starts_anew_with_each_call, on(laws.cached_is_uncached, 9, (4,), first=RecurrentConfig())),
    Planted(recurrence_runs_through_documents, on(laws.packed_is_separate, first=RecurrentConfig())),
    Planted(router_compares_tokens, on(laws.prefixes_are_prefixes, ffn="moe")),
    Planted(extra_entries_are_likely, lambda: laws.extra_entries_do_not_exist(config_of(pad_vocab_to=8))),
    Planted(one_real_entry_is_masked, lambda: laws.extra_entries_do_not_exist(config_of(pad_vocab_to=8))),
]


@pytest.mark.parametrize("planted", CASES, ids=lambda planted: planted.bug.__name__)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.law()
    planted.bug(monkeypatch)
    with pytest.raises(AssertionError):
        planted.law()
