"""Every law, of every combination that can be built."""

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config import AttentionConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Stack, build
from heddle.nn import Layout
from heddle.prove.checks import CHECKS, gradient
from tests.laws.laws import Test, close, holds, of, subject_of
from tests.models import (
    AXES,
    BOTH,
    COMBINATIONS,
    CONTEXT,
    ENCODERS,
    EVERY,
    FEW,
    HEADS,
    PREFIXED,
    REFUSED,
    awake,
    config_of,
    name_of,
    pairwise,
    tokens_of,
)

DECODERS = [*COMBINATIONS, *BOTH]


def those(condition: Callable[[TransformerConfig], bool]) -> list[TransformerConfig]:
    """The combinations that are meant."""
    return [config for config in COMBINATIONS if condition(config)]


def chosen(condition: Callable[[TransformerConfig], bool]) -> Callable[[Test], Test]:
    """Run with the config of each combination that is meant."""
    assert len(those(condition)) > 1
    return pytest.mark.parametrize("config", those(condition), ids=name_of)


def attention_of(config: TransformerConfig) -> AttentionConfig:
    """The first layer's attention, or one with no options where it has none."""
    mixer = config.decoder.block.mixer
    return mixer if isinstance(mixer, AttentionConfig) else AttentionConfig(heads=HEADS)


def ends(mixer: Any) -> bool:
    """Whether a layer keeps less than all."""
    return getattr(mixer, "window", None) is not None or mixer.kind in ("convolution", "linear")


FORGETFUL = those(lambda config: any(ends(block.mixer) for block in config.decoder.blocks))
SHORT = those(lambda config: all(ends(block.mixer) for block in config.decoder.blocks))
PADDED = those(lambda config: config.pad_vocab_to > 1)
EXPERTS = those(lambda config: config.decoder.block.ffn.kind == "moe")
FREE = those(lambda config: getattr(config.decoder.block.mixer, "kernel", "") == "auto")
OPEN = [config for config in ENCODERS if not all(ends(block.mixer) for block in config.encoder.blocks)]


def test_every_pair_of_choices_is_built() -> None:
    """All, except those that the config refuses together."""
    met = set()
    for row in pairwise(AXES):
        cells = [(name, options.index(row[name])) for name, options in AXES.items()]
        met |= set(combinations(cells, 2))
    everything = {
        ((one, first), (two, second))
        for one, two in combinations(AXES, 2)
        for first in range(len(AXES[one]))
        for second in range(len(AXES[two]))
    }
    apart = {
        tuple(
            sorted(
                ((one, AXES[one].index(first)), (two, AXES[two].index(second))),
                key=lambda cell: list(AXES).index(cell[0]),
            )
        )
        for pair in REFUSED
        for (one, firsts), (two, seconds) in [pair.items()]
        for first in firsts
        for second in seconds
    }
    assert met == everything - apart


@pytest.mark.parametrize(
    "row", [dict(zip(pair, options, strict=True)) for pair in REFUSED for options in product(*pair.values())], ids=str
)
def test_what_is_left_out_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(HeddleError):
        build(config_of(**{"ffn": "moe", **row}), device="meta")


@of("causality", "gradient to the future", models=DECODERS)
@pytest.mark.lecture("L0-30", "L0-87", "L1-77", "L1-82")
def test_later_tokens_change_nothing(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("reach", models=SHORT)
def test_what_is_out_of_reach_changes_nothing(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@chosen(lambda config: True)
def test_what_is_within_reach_is_told(config: TransformerConfig) -> None:
    """d hidden[s] / d embedding[t] is not 0 wherever the layers together reach from s to t.

    In one of two texts: without a residual, a token at which all ReLUs are 0 is told nothing.
    """
    subject = subject_of(config)
    x, hidden = subject.differentiable(tokens_of(2, 7))
    direction = torch.randn(hidden.shape[-1], dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    for s in range(7):
        reached = gradient(hidden[:, s] @ direction, x).abs().amax(-1) > 0
        for distance in subject.reachable_distances(7) & set(range(s + 1)):
            assert reached[:, s - distance].any(), f"position {s} is told nothing of token {s - distance}"


@of("prefix", models=DECODERS)
@pytest.mark.lecture("L0-01")
def test_prefixes_are_prefixes(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("prefix both ways", models=PREFIXED)
def test_a_prefix_sees_itself_both_ways(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("cached one by one", "cached in chunks", models=DECODERS)
@pytest.mark.lecture("L2-08", "D-57")
def test_cached_is_uncached(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("rolling window", models=FORGETFUL)
def test_a_layer_forgets_what_it_does_not_see(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("growing cache", models=[config_of(kernel=kernel, kv_heads=2, positions="both") for kernel in AXES["kernel"]])
def test_a_cache_may_grow(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("rows alone", "forked rows", "joined rows", models=DECODERS)
def test_rows_of_a_cache_are_rows_alone(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("drawn tokens", models=COMBINATIONS)
def test_the_token_loop_writes_what_one_pass_predicts(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("decoding settings", models=FEW)
def test_every_setting_of_decoding_acts_by_its_formula(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("training loss", models=COMBINATIONS)
def test_what_is_trained_is_what_predicts(config: TransformerConfig, law: str) -> None:
    """The check computes in float64 whatever the model's precision, and the parameters' gradients have no bounds of their own."""
    assert holds(subject_of(config, torch.float32), law).error < 1e-8


@of("padding on the right", "padding on the left", models=EVERY)
@pytest.mark.lecture("L0-20")
def test_padding_changes_nothing(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("gradient of padding", models=EVERY)
@pytest.mark.lecture("L2-07")
def test_padding_sees_nothing(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("packing", models=[*COMBINATIONS, *ENCODERS])
def test_packed_is_separate(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("cross-attention", models=BOTH)
@pytest.mark.lecture("L1-78", "L1-79", "L2-08")
def test_a_source_serves_every_step(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("seeing both ways", models=OPEN)
@pytest.mark.lecture("L1-76")
def test_an_encoder_sees_its_end(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("repeats", "training", models=EVERY)
@pytest.mark.lecture("L0-66")
def test_evaluation_repeats(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("layers alone", models=EVERY)
@pytest.mark.lecture("L0-24", "L0-25", "L2-25", "L2-44", "L3-26")
def test_a_stack_is_its_blocks(config: TransformerConfig, law: str) -> None:
    """All states have the shape [B T D], and every block changes something."""
    subject = subject_of(config)
    holds(subject, law)
    if not subject.is_encoder_decoder:
        states = subject.model.states(tokens_of(2, 6))
        assert [state.shape for state in states] == [(2, 6, config.dim)] * (config.last()[1].depth + 1)
        assert not any(torch.equal(*pair) for pair in zip(states[1:], states[:-1], strict=True))


@of("kernels", models=[*FREE, *BOTH])
def test_kernels_agree(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("gradients of kernels", models=[*FREE, *BOTH])
def test_kernels_teach_the_same(config: TransformerConfig, law: str) -> None:
    assert holds(subject_of(config, torch.float32), law).error < 1e-8


@of("routing", models=EXPERTS)
def test_experts_look_at_one_token(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


@of("extra entries", models=PADDED)
@pytest.mark.lecture("L0-86", "D-13")
def test_extra_entries_do_not_exist(config: TransformerConfig, law: str) -> None:
    holds(subject_of(config), law)


def test_every_check_is_run() -> None:
    source = Path(__file__).read_text()
    assert [law for law in CHECKS if f'"{law}"' not in source] == []


@chosen(lambda config: attention_of(config).key_heads() < HEADS)
@torch.no_grad()
def test_grouped_is_copied(config: TransformerConfig) -> None:
    """Grouped-query attention is multi-head attention whose key and value heads are copies (Ainslie et al. 2023)."""
    grouped = awake(config)
    mixer = config.decoder.block.mixer
    full = awake(config.override({"decoder.block.mixer.kv_heads": None}))
    weights = grouped.state_dict()
    for name, weight in weights.items():
        # A norm over all keys of a token has a gain for each of their channels, so it is copied as they are.
        for part in ("k", "v", *(["k_norm"] if mixer.qk_norm_over == "all" else [])):
            if f".mixer.{part}." in name:
                heads = weight.unflatten(0, (mixer.key_heads(), -1))
                weights[name] = heads.repeat_interleave(mixer.heads // mixer.key_heads(), dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens = tokens_of(2, 6)
    close(grouped(tokens).hidden, full(tokens).hidden, what="copied heads")


@chosen(lambda config: config.decoder.entry.positions == "none" and attention_of(config).relative is not None)
@torch.no_grad()
def test_only_distances_count(config: TransformerConfig) -> None:
    """Without absolute positions, moving a whole text along changes nothing."""
    model, tokens = awake(config), tokens_of(2, 8)
    here = Layout.whole(2, 8)
    there = Layout(here.position + 13, here.segment, "packed")
    close(model(tokens, there).hidden, model(tokens).hidden, 1e-3, "moved by 13")  # angles are fp32


def open_stack(config: TransformerConfig) -> Stack:
    """The decoder of a config as if it were an encoder, which sees everything, awake."""
    stack = Stack(config.decoder, config.dim, CONTEXT, causal=False).double()
    stack.load_state_dict(awake(config).decoder.state_dict())
    return stack.eval()


@pytest.mark.lecture("L1-05", "L2-54")
@pytest.mark.parametrize("positions", ["learned", "rotary", "both"])
@torch.no_grad()
def test_order_matters(positions: str) -> None:
    """Positions alone tell 'dog bites man' from 'man bites dog'.

    Every token sees every other, so no mask says what came first; yet no vector of the one text is among those of the other.
    """
    config = config_of(positions=positions)
    stack, table, layout = open_stack(config), awake(config).embedding, Layout.whole(1, 4)
    first, second = (stack(table(torch.tensor([ids])), layout).hidden[0] for ids in ([1, 2, 3, 4], [3, 2, 1, 4]))
    assert (first[:, None] - second).abs().amax(-1).min() > 1e-3


@pytest.mark.lecture("L1-05")
def test_without_positions_and_mask_order_does_not_matter() -> None:
    stack = open_stack(config_of(positions="none"))
    table = awake(config_of(positions="none")).embedding
    layout = Layout.whole(1, 4)
    first, second = (stack(table(torch.tensor([ids])), layout).hidden for ids in ([1, 2, 3, 4], [3, 2, 1, 4]))
    close(first[:, [2, 1, 0, 3]], second)


@chosen(lambda config: config.decoder.entry.positions == "learned")
@pytest.mark.lecture("L0-15")
def test_more_tokens_than_positions_are_refused(config: TransformerConfig) -> None:
    model = awake(config)
    full, cache = tokens_of(1, CONTEXT), model.new_cache(1)
    model(full)
    with pytest.raises(HeddleError, match=rf"^{CONTEXT + 1} tokens exceed the {CONTEXT} learned positions"):
        model(tokens_of(1, CONTEXT + 1))
    model(full, cache=cache)
    with pytest.raises(HeddleError, match=f"^{CONTEXT + 1} tokens exceed the {CONTEXT} learned positions"):
        model(tokens_of(1, 1), cache=cache)
    assert cache.lengths == [CONTEXT], "a refused step leaves the cache as it was"


@chosen(lambda config: config.decoder.entry.positions == "none")
def test_without_learned_positions_there_is_no_limit(config: TransformerConfig) -> None:
    assert awake(config)(tokens_of(1, CONTEXT + 1)).hidden.isfinite().all()
