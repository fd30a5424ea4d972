"""The transformer: tables, head, sizes, and what it refuses."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from heddle.config import TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import Attention, Layout
from tests import programs
from tests.models import CONTEXT, VOCABULARY, awake, config_of, others_than, tokens_of


def meta(config: TransformerConfig) -> Transformer:
    return build(config, device="meta")


def count(config: TransformerConfig) -> int:
    return sum(parameter.numel() for parameter in meta(config).parameters())


@pytest.mark.lecture("L0-08")
def test_every_block_weighs_the_same() -> None:
    gpt2 = preset("gpt2-small")
    counts = {depth: count(gpt2.override({"decoder.depth": depth})) for depth in (1, 2, 12)}
    assert counts[2] - counts[1] == 12 * 768**2 + 13 * 768 == 7_087_872
    assert counts[12] - counts[1] == 11 * 7_087_872


@pytest.mark.lecture("L0-83", "L1-83", "D-62")
def test_gpt2_small() -> None:
    config = preset("gpt2-small")
    assert (config.decoder.depth, config.dim, config.vocab_size, config.context) == (12, 768, 50_257, 1_024)
    assert config.decoder.block.mixer.heads == 12
    model = meta(config)
    d, length, vocabulary, depth = 768, 1_024, 50_257, 12
    assert count(config) == vocabulary * d + length * d + depth * (12 * d**2 + 13 * d) + 2 * d == 124_439_808
    assert count(config.override({"decoder.block.mixer.heads": 6})) == 124_439_808
    names = [name for name, _ in model.named_parameters()]
    assert not [name for name in names if "cross" in name or "encoder" in name]
    assert sum(isinstance(module, Attention) for module in model.modules()) == depth


@pytest.mark.lecture("L0-10")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("nanogpt", 124_475_904),
    ],
)
def test_presets_have_their_published_sizes(name: str, size: int) -> None:
    assert count(preset(name)) == size


@pytest.mark.lecture("L0-11")
def test_nanogpt_counts_in_three_ways() -> None:
    """With biases, without, and as its own printout has GPT-2: without positions."""
    assert count(preset("nanogpt")) == 124_475_904
    assert count(preset("gpt2-small").override({"decoder.entry.positions": "none"})) == 123_653_376
    bare = {"mixer.bias": False, "ffn.bias": False, "norm.bias": False}
    assert count(preset("nanogpt").override({f"decoder.block.{key}": off for key, off in bare.items()})) == 124_373_760


@pytest.mark.lecture("L2-32")
def test_gpt2_small_with_rms_norms_and_no_biases() -> None:
    bare = {"mixer.bias": False, "ffn.bias": False, "norm": {"kind": "rms"}}
    config = preset("gpt2-small").override({f"decoder.block.{key}": value for key, value in bare.items()})
    assert count(config) == 124_318_464 + 25 * 768 == 124_337_664


@pytest.mark.lecture("L0-14", "L0-15", "L0-21")
def test_the_two_tables() -> None:
    model = meta(preset("gpt2-small"))
    positions = model.decoder.entry.positions
    assert positions is not None
    assert model.embedding.weight.shape == (50_257, 768)
    assert model.embedding.weight.numel() == 38_597_376
    assert positions.weight.shape == (1_024, 768)
    assert positions.weight.numel() == 786_432
    assert 50_257 + 1_024 == 51_281
    assert model.embedding.weight.numel() + positions.weight.numel() == 39_383_808


@pytest.mark.lecture("L0-17", "L0-22", "L2-51", "L2-52")
def test_looking_up_is_a_product_with_one_hot_rows() -> None:
    model = awake(config_of(positions="learned"))
    tokens = tokens_of(2, 6)
    tokens[0, 1] = tokens[0, 4]
    vectors = model.embedding(tokens)
    assert vectors.shape == (2, 6, model.config.dim)
    assert torch.equal(vectors, F.one_hot(tokens, VOCABULARY).double() @ model.embedding.weight)
    assert torch.equal(vectors[0, 1], vectors[0, 4]), "one table for all positions"
    entered = model.decoder.entry(vectors, Layout.whole(2, 6))
    positions = model.decoder.entry.positions
    assert torch.equal(entered, vectors + positions.weight[:6]), "the same positions for every text"


@pytest.mark.lecture("L0-20", "D-48")
def test_any_length_up_to_the_context() -> None:
    model = awake(config_of(positions="learned"))
    for length in (1, 2, CONTEXT - 1, CONTEXT):
        assert model(tokens_of(1, length)).hidden.shape == (1, length, model.config.dim)


@pytest.mark.lecture("L0-23", "L2-53")
def test_tables_are_trained() -> None:
    model = awake(config_of(positions="learned", tied=False))
    tokens = torch.tensor([[1, 4, 4, 7]])
    positions = model.decoder.entry.positions.weight
    before, places = model.embedding.weight.detach().clone(), positions.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model.logits(model(tokens).hidden)[0], torch.tensor([4, 4, 7, 2])).backward()
    optimizer.step()
    changed = (model.embedding.weight != before).any(-1)
    assert changed.nonzero()[:, 0].tolist() == [1, 4, 7]
    assert (positions != places).any(-1).nonzero()[:, 0].tolist() == [0, 1, 2, 3]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.lecture("L2-49", "D-23")
def test_an_id_beyond_the_table_is_an_error() -> None:
    model = awake(config_of())
    model(torch.tensor([[0, VOCABULARY - 1]]))
    for wrong in (VOCABULARY, -1):
        with pytest.raises(HeddleError, match=f"tokens contain the id {wrong}; ids must be from 0 to {VOCABULARY - 1}"):
            model(torch.tensor([[wrong]]))


@pytest.mark.lecture("L0-75")
def test_a_tied_head_is_the_table() -> None:
    model = awake(config_of(tied=True))
    assert model.language_head().weight is None
    assert model.head_weight().data_ptr() == model.embedding.weight.data_ptr()
    assert [name for name in model.state_dict() if "head" in name] == [], "saved once"
    tokens, targets = tokens_of(2, 6), tokens_of(2, 6, seed=2)
    F.cross_entropy(model.logits(model(tokens).hidden).flatten(0, 1), targets.flatten()).backward()
    untied = awake(config_of(tied=False))
    untied.load_state_dict({**model.state_dict(), "head.weight": model.embedding.weight.detach()})
    F.cross_entropy(untied.logits(untied(tokens).hidden).flatten(0, 1), targets.flatten()).backward()
    both = untied.embedding.weight.grad + untied.head.weight.grad
    torch.testing.assert_close(model.embedding.weight.grad, both, rtol=0, atol=1e-13)


@pytest.mark.lecture("L0-76", "L2-58")
def test_an_untied_head_weighs_as_much_as_the_table() -> None:
    config = preset("gpt2-small").override({"head.tied": False})
    assert count(config) == 163_037_184
    head = meta(config).head
    assert head is not None
    assert sum(parameter.numel() for parameter in head.parameters()) == 50_257 * 768 == 38_597_376


@pytest.mark.lecture("L0-73", "L1-85", "L2-61", "L2-62", "D-25")
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_a_product_with_the_table_row_by_row(tied: bool) -> None:
    model = awake(config_of(tied=tied))
    hidden = model(tokens_of(2, 6)).hidden
    logits = model.logits(hidden)
    assert logits.shape == (2, 6, VOCABULARY)
    table = model.embedding.weight if tied else model.head.weight
    torch.testing.assert_close(logits, hidden @ table.T, rtol=0, atol=1e-13)
    torch.testing.assert_close(model.logits(hidden[:, -1]), logits[:, -1], rtol=0, atol=1e-13)


@pytest.mark.lecture("L0-86", "L2-57", "D-13")
def test_a_padded_table_is_rounded_up() -> None:
    config = preset("nanogpt")
    assert config.table_rows() == 50_304 == -(-50_257 // 64) * 64
    assert count(config) == 124_475_904
    model = awake(config_of(pad_vocab_to=8))
    hidden = model(tokens_of(50, 6)).hidden
    scores = model.head(hidden, None, model.embedding.weight)
    assert scores.shape[-1] == 16
    assert (scores[..., VOCABULARY:] == -torch.inf).all()
    drawn = torch.multinomial(scores.flatten(0, 1).softmax(-1), 1000, replacement=True)
    assert drawn.max() == VOCABULARY - 1


def test_logits_of_a_padded_table_suit_any_loss() -> None:
    """Label smoothing, entropy and KL multiply every score: with a column of -inf they would be infinite or NaN."""
    padded, plain = awake(config_of(pad_vocab_to=8)), awake(config_of(pad_vocab_to=1))
    state = padded.state_dict()
    plain.load_state_dict({name: state[name][: len(tensor)] for name, tensor in plain.state_dict().items()})
    tokens, targets = tokens_of(3, 6), tokens_of(3, 6, seed=2).flatten()
    scores, expected = (model.logits(model(tokens).hidden).flatten(0, 1) for model in (padded, plain))
    assert scores.shape == (18, VOCABULARY)
    for loss in (
        lambda s: F.cross_entropy(s, targets, label_smoothing=0.1),
        lambda s: torch.distributions.Categorical(logits=s).entropy().mean(),
        lambda s: F.kl_div(s.log_softmax(-1), expected.detach().roll(1, 0).softmax(-1), reduction="batchmean"),
    ):
        torch.testing.assert_close(loss(scores), loss(expected), rtol=0, atol=1e-12)
        gradients = torch.autograd.grad(loss(scores), list(padded.parameters()), retain_graph=True, allow_unused=True)
        assert all(each is None or each.isfinite().all() for each in gradients)


@pytest.mark.lecture("L0-19")
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_vector_of_the_padding_id_does_not_matter(side: str) -> None:
    model, padding = awake(config_of(tied=False, positions="both")), 0
    lengths = (6, 3, 1)
    layout = Layout.padded(lengths, 6, side)
    real = layout.segment >= 0
    tokens = torch.where(real, tokens_of(3, 6).clamp(min=1), padding)
    targets = tokens_of(3, 6, seed=2)
    before = model.logits(model(tokens, layout).hidden)[real]
    padded = F.cross_entropy(before, targets[real])
    alone = [
        F.cross_entropy(
            model.logits(model(tokens[row, real[row]][None]).hidden)[0], targets[row, real[row]], reduction="sum"
        )
        for row in range(3)
    ]
    torch.testing.assert_close(padded, sum(alone) / sum(lengths), rtol=0, atol=1e-12)
    with torch.no_grad():
        model.embedding.weight[padding] = 1e6
    assert torch.equal(model.logits(model(tokens, layout).hidden)[real], before)


def test_gradients_do_not_depend_on_padding() -> None:
    model = awake(config_of(tied=False))
    layout = Layout.padded((5, 2), 5)
    real = layout.segment >= 0

    def gradients(tokens: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        model(tokens, layout).hidden[real].square().sum().backward()
        return [parameter.grad.clone() for name, parameter in model.decoder.named_parameters()]

    tokens = tokens_of(2, 5)
    other = torch.where(real, tokens, others_than(tokens))
    assert all(torch.equal(first, second) for first, second in zip(gradients(tokens), gradients(other), strict=True))


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}], ids=["fp32", "bf16"])
def test_a_model_computes_in_its_own_precision(options: dict[str, Any]) -> None:
    model = build(config_of(), **options)
    dtype = options.get("dtype", torch.float32)
    assert model.working_dtype() == dtype
    hidden = model(tokens_of(2, 4)).hidden
    assert hidden.dtype == model.logits(hidden).dtype == dtype
    assert model.device == torch.device("cpu")


@pytest.mark.lecture("L1-15")
def test_shapes_are_named_by_their_letters() -> None:
    """As users see it, without the shape checks that tests add: rows of ids, and a layout of the same batch."""
    output = programs.run("model.refusals")
    assert output.splitlines() == [
        "model: tokens = a tensor of int64 and shape [3]: must be a tensor of whole numbers of shape [B T]",
        "the layout is for [B T] = [1, 3], but the tokens are [2, 3]",
        "Stack: x = a tensor of float32 and shape [2, 3, 15]: must be a tensor of floating-point numbers of shape [B T 16]",
        "the layout is for [B T] = [1, 3], but the tokens are [2, 3]",
        *["1 rows of source for 2 rows of tokens: pass one source per row"] * 2,
    ]


BOTH = TransformerConfig.of(
    {
        "vocab_size": VOCABULARY,
        "dim": 16,
        "context": CONTEXT,
        "encoder": {"depth": 1, "block": {"mixer": {"heads": 2}}, "entry": {"types": 3}},
        "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}, "cross": {"heads": 2}}, "entry": {"types": 2}},
    }
)


@torch.no_grad()
def test_types_are_heard_wherever_tokens_are() -> None:
    """The tokens' and the source's, in one pass and through a cache."""
    model = awake(BOTH)
    tokens, source = tokens_of(2, 6), tokens_of(2, 5, seed=2)
    types, source_types = tokens_of(2, 6, seed=3) % 2, tokens_of(2, 5, seed=4) % 3
    whole = model(tokens, source=source, types=types, source_types=source_types).hidden
    for fewer in ({"types": types}, {"source_types": source_types}):
        assert not torch.allclose(model(tokens, source=source, **fewer).hidden, whole)
    cache, pieces = model.new_cache(2), []
    for start in (0, 2, 4):
        part, read = slice(start, start + 2), {} if start else {"source": source, "source_types": source_types}
        pieces.append(model(tokens[:, part], types=types[:, part], cache=cache, **read).hidden)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


def test_nothing_that_is_said_goes_unheard() -> None:
    tokens = tokens_of(1, 4)
    layout, types = Layout.whole(1, 4), torch.zeros_like(tokens)
    decoder = awake(config_of())
    encoder = awake(TransformerConfig.of({**BOTH.to_dict(), "decoder": None}))
    for model in (decoder, encoder):
        for inputs in ({"source": tokens}, {"source_layout": layout}, {"source_types": types}):
            with pytest.raises(HeddleError, match="this model has no source"):
                model(tokens, **inputs)
    plain = {"encoder.entry.types": 0, "decoder.entry.types": 0}
    both, no_types = awake(BOTH.override(plain)), "this stack has no table of token types"
    for refused in (
        lambda: decoder(tokens, types=types),
        lambda: decoder(tokens, cache=decoder.new_cache(1), types=types),
        lambda: both(tokens, source=tokens, types=types),
        lambda: both(tokens, source=tokens, source_types=types),
        lambda: both(tokens, source=tokens, source_types=types, cache=both.new_cache(1)),
    ):
        with pytest.raises(HeddleError, match=no_types):
            refused()


MIXERS = {
    "attention": {"heads": 2},
    "window": {"heads": 2, "window": 3},
    "convolution": {"kind": "convolution"},
    "recurrent": {"kind": "recurrent"},
    "custom": {"kind": "custom", "target": "tests.lectures.own:Averaging"},
}


def decoder_of(mixer: dict[str, Any], **entry: Any) -> Transformer:
    stack = {"depth": 2, "block": {"mixer": mixer}, "entry": entry}
    return awake(TransformerConfig.of({"vocab_size": VOCABULARY, "dim": 16, "context": 12, "decoder": stack}))


@torch.no_grad()
@pytest.mark.parametrize("counts", [(3, 2), (3, 3), (0, 1), (0, 0)], ids=str)
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_step_takes_the_tokens_that_count(mixer: str, counts: tuple[int, int]) -> None:
    """What is remembered of a row is its real tokens, not what pads it."""
    model, tokens = decoder_of(MIXERS[mixer], positions="learned"), tokens_of(2, 6)
    cache = model.new_cache(2)
    output = model(tokens[:, : max(counts)], cache.advance(counts), cache=cache).hidden
    assert output.shape == (2, max(counts), 16)
    assert cache.lengths == list(counts)
    later = model(tokens[:, :1], cache=cache).hidden
    for row, count in enumerate(counts):
        text = torch.cat((tokens[row, :count], tokens[row, :1]))[None]
        whole = model(text).hidden[0]
        torch.testing.assert_close(output[row, :count], whole[:count])
        torch.testing.assert_close(later[row], whole[count:])


def test_counts_and_rows_that_cannot_be() -> None:
    model, tokens = decoder_of(MIXERS["recurrent"]), tokens_of(2, 6)
    for counts, message in (
        ((-1, 2), "cache.advance: counts = -1: must be whole numbers of at least 0"),
        ([1, 1, 1], "3 rows of new tokens for a cache of 2 rows; give one count per row"),
    ):
        cache = model.new_cache(2)
        with pytest.raises(HeddleError, match=message):
            cache.advance(counts)  # type: ignore[arg-type]
        assert cache.lengths == [0, 0]
    with pytest.raises(HeddleError, match="2 rows of new tokens for a cache of 3 rows"):
        model(tokens, cache=model.new_cache(3))
    cache = model.new_cache(2)
    layout = cache.advance([3, 1])
    with pytest.raises(HeddleError, match=r"the layout is for \[B T\] = \[2, 3\], but the tokens are \[2, 6\]"):
        model(tokens, layout, cache=cache)
    with pytest.raises(HeddleError, match=r"the layout that the last cache\.advance returned"):
        model(tokens, Layout.whole(2, 6), cache=model.new_cache(2))


def test_a_cache_reads_its_source_once() -> None:
    model, tokens = awake(BOTH), tokens_of(2, 4)
    cache = model.new_cache(2)
    with pytest.raises(HeddleError, match="pass source in the first call with a cache"):
        model(tokens, cache=cache)
    cache = model.new_cache(2)
    model(tokens, source=tokens, cache=cache)
    with pytest.raises(HeddleError, match="has already read its source"):
        model(tokens, source=tokens, cache=cache)
    with pytest.raises(HeddleError, match="cannot use a cache"):
        awake(TransformerConfig.of({**BOTH.to_dict(), "decoder": None})).new_cache(2)


@torch.no_grad()
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_rows_without_a_token_join(mixer: str, first: bool) -> None:
    model, tokens = decoder_of(MIXERS[mixer]), tokens_of(3, 6)
    used, fresh = model.new_cache(2), model.new_cache(1)
    model(tokens[:2, :4], cache=used)
    both, rows = (fresh.join(used), [2, 0, 1]) if first else (used.join(fresh), [0, 1, 2])
    output = model(tokens[rows, 4:], cache=both).hidden
    for place, row in enumerate(rows):
        text = tokens[row, 4:] if row == 2 else tokens[row]
        torch.testing.assert_close(output[place], model(text[None]).hidden[0, -2:])


def test_rows_that_never_looked_at_their_source_do_not_join_those_that_did() -> None:
    model, tokens = awake(BOTH), tokens_of(1, 4)
    used, fresh = model.new_cache(1), model.new_cache(1)
    model(tokens, source=tokens, cache=used)
    with pytest.raises(HeddleError, match="run a step of the new rows before they join"):
        used.join(fresh)


def test_every_position_that_was_learned_can_be_used_and_no_other() -> None:
    """Packed texts count one by one; a token beyond the table is an error even where only tensors know of it."""
    model = decoder_of(MIXERS["attention"], positions="learned")
    tokens = tokens_of(1, 24)
    packed = model(tokens, Layout.packed([[12, 12]], 24)).hidden
    torch.testing.assert_close(packed[:, 12:], model(tokens[:, 12:]).hidden)
    for layout in (Layout.packed([[13]], 24), Layout.whole(1, 24)):
        with pytest.raises(HeddleError, match="tokens exceed the 12 learned positions"):
            model(tokens, layout)
    ragged, rows = model.new_cache(2), tokens[:, :12].expand(2, -1)
    model(rows[:, :11], ragged.advance([11, 1]), cache=ragged)
    # The padding of the first row is beyond the table.
    output = model(rows[:, 9:], ragged.advance([1, 3]), cache=ragged).hidden
    torch.testing.assert_close(output[0, 0], model(torch.cat((rows[:1, :11], rows[:1, 9:10]), dim=1)).hidden[0, -1])
    cache = model.new_cache(1)
    model(tokens[:, :12], cache=cache)
    with pytest.raises(HeddleError, match="13 tokens exceed the 12 learned positions"):
        model(tokens[:, :1], cache=cache)
    cache.longest = None
    with pytest.raises(HeddleError, match="the layout's positions contain the id 12; ids must be from 0 to 11"):
        model(tokens[:, :1], cache=cache)


def test_a_block_without_matrices_works_in_the_tables_precision() -> None:
    block = {"mixer": {"kind": "custom", "target": "tests.lectures.own:Averaging"}, "ffn": {"kind": "none"}}
    config = {
        "vocab_size": 9,
        "dim": 16,
        "context": 8,
        "decoder": {"depth": 1, "block": {**block, "norm": {"kind": "none"}}},
    }
    model = build(TransformerConfig.of(config))
    assert model.working_dtype() == torch.float32
    assert model(torch.ones(2, 3, dtype=torch.long)).hidden.shape == (2, 3, 16)


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    """Wrong types, a source of a model that reads none, and a source that the cache has read already."""
    decoder, both = awake(config_of()), awake(BOTH.override({"encoder.entry.types": 0, "decoder.entry.types": 0}))
    tokens, source = tokens_of(2, 3), tokens_of(2, 4)
    for model, first, wrong in (
        (decoder, {}, [{"types": tokens}, {"source": source}]),
        (both, {"source": source}, [{"types": tokens}, {"source": source}]),
    ):
        cache = model.new_cache(2)
        model(tokens, cache=cache, **first)
        for arguments in wrong:
            with pytest.raises(HeddleError):
                model(tokens, cache=cache, **arguments)
            assert cache.lengths == [3, 3]
        again = model.new_cache(2)
        model(tokens, cache=again, **first)
        assert torch.equal(model(tokens, cache=cache).hidden, model(tokens, cache=again).hidden)
