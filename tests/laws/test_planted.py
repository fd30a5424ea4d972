"""The laws can fail: each of these bugs, planted by one changed line, breaks the law that watches for it."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.model import transformer as transformer_module
from heddle.nn import (
    MLP,
    Attention,
    Cache,
    Causal,
    Dropout,
    Layout,
    LearnedPositions,
    Mask,
    Residual,
    Rotary,
    attention,
    kernels,
    state,
)
from tests.laws import laws
from tests.laws.models import awake, config_of

Patch = pytest.MonkeyPatch


def mask_one_to_the_right(patch: Patch) -> None:
    patch.setattr(Causal, "__call__", lambda self, query, key: key <= query + 1)


def mask_without_its_diagonal(patch: Patch) -> None:
    patch.setattr(Causal, "__call__", lambda self, query, key: (key < query) | (key == 0))


def mask_inverted(patch: Patch) -> None:
    right = kernels.masked_softmax
    patch.setattr(kernels, "masked_softmax", lambda scores, allowed, dead=None: right(scores, ~allowed))


def mask_multiplied_after_the_softmax(patch: Patch) -> None:
    patch.setattr(kernels, "masked_softmax", lambda scores, allowed, dead=None: scores.softmax(-1) * allowed)


def plain_one_key_to_the_right(patch: Patch) -> None:
    def wrong(mask: Mask) -> kernels.Lowered:
        return kernels.Lowered("plain", False, mask.dense().roll(1, -1), None)

    patch.setattr(kernels.Plain, "lower", staticmethod(wrong))


def plain_forgets_what_block_it_is_in(patch: Patch) -> None:
    def wrong(mask: Mask) -> kernels.Lowered:
        rows = torch.arange(mask.queries.width) % kernels.BLOCK
        return kernels.Lowered("plain", False, mask.dense()[:, :, rows], None)

    patch.setattr(kernels.Plain, "lower", staticmethod(wrong))


def dead_rows_are_left_alone(patch: Patch) -> None:
    patch.setattr(kernels, "_dead", lambda mask, allowed: None)


def scale_by_the_root_of_the_model_width(patch: Patch) -> None:
    right = kernels.Kernel.__init__
    width = 12  # of the attention that the law makes
    patch.setattr(kernels.Kernel, "__init__", lambda self, scale, dropout=0.0: right(self, 1 / sqrt(width), dropout))


def no_scale(patch: Patch) -> None:
    right = kernels.Kernel.__init__
    patch.setattr(kernels.Kernel, "__init__", lambda self, scale, dropout=0.0: right(self, 1.0, dropout))


def query_heads_grouped_by_turns(patch: Patch) -> None:
    patch.setattr(
        Tensor,
        "repeat_interleave",
        lambda self, repeats, dim: self.repeat(*(repeats if a == dim else 1 for a in range(4))),
    )


def heads_cut_the_other_way(patch: Patch) -> None:
    patch.setattr(attention, "split_heads", lambda x, width: x.unflatten(-1, (width, -1)).permute(0, 3, 1, 2))


def keys_are_not_rotated(patch: Patch) -> None:
    right = Attention._place

    def wrong(x: Tensor, norm: Any, view: Any) -> Tensor:
        wrong.calls += 1
        return x if wrong.calls % 2 == 0 else right(x, norm, view)  # queries come first, then keys

    wrong.calls = 0  # type: ignore[attr-defined]
    patch.setattr(Attention, "_place", staticmethod(wrong))


def rotation_starts_anew_with_each_call(patch: Patch) -> None:
    right = Rotary.forward
    patch.setattr(Rotary, "forward", lambda self, layout: right(self, Layout.plain(layout.rows, layout.width)))


def rotation_of_the_first_row_for_all(patch: Patch) -> None:
    right = Rotary.forward

    def wrong(self: Rotary, layout: Layout) -> Any:
        return right(self, Layout(layout.position, layout.segment, "uniform"))

    patch.setattr(Rotary, "forward", wrong)


def learned_positions_start_anew_with_each_call(patch: Patch) -> None:
    right = LearnedPositions.forward
    patch.setattr(LearnedPositions, "forward", lambda self, position: right(self, position - position[:, :1]))


def cache_one_place_late(patch: Patch) -> None:
    right = Cache.advance

    def wrong(self: Cache, counts: Any, device: Any = None) -> tuple[Layout, Layout]:
        late = any(self.lengths)
        queries, keys = right(self, counts, device)
        return Layout(queries.position + late, queries.segment, queries.form), keys

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
    patch.setattr(Residual, "forward", lambda self, x, branch: self.outside(x + self.dropout(self.after(branch(x)))))


def skip_starts_from_the_norm(patch: Patch) -> None:
    def wrong(self: Residual, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        x = self.before(x)
        return self.outside(x + self.dropout(self.after(branch(x))))

    patch.setattr(Residual, "forward", wrong)


def feed_forward_mixes_tokens(patch: Patch) -> None:
    right = MLP.forward
    patch.setattr(MLP, "forward", lambda self, x: right(self, x - x.mean(1, keepdim=True)))


def extra_entries_are_likely(patch: Patch) -> None:
    patch.setattr(transformer_module, "mask_padding", lambda logits, vocab_size: logits)


def one_real_entry_is_masked(patch: Patch) -> None:
    right = transformer_module.mask_padding
    patch.setattr(transformer_module, "mask_padding", lambda logits, vocab_size: right(logits, vocab_size - 1))


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
    Planted(extra_entries_are_likely, lambda: laws.extra_entries_do_not_exist(config_of(pad_vocab_to=8))),
    Planted(one_real_entry_is_masked, lambda: laws.extra_entries_do_not_exist(config_of(pad_vocab_to=8))),
]


@pytest.mark.parametrize("planted", CASES, ids=lambda planted: planted.bug.__name__)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.law()
    planted.bug(monkeypatch)
    with pytest.raises(AssertionError):
        planted.law()
