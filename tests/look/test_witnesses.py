"""Hugging Face transformers with eager attention as the outside witness: its maps and its hidden states are those seen here."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from heddle.look import trace
from heddle.look.lens import read_out
from tests.convert.conftest import KINDS, VARIANTS, make
from tests.convert.test_parity import SOURCE, TOKENS, taken_over
from tests.thorough import first

EACH = [next(name for name in VARIANTS if name.split("-")[0] == kind) for kind in sorted(KINDS)]


def published_maps(published: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Their maps by heddle's names of layers."""
    if published.config.is_encoder_decoder:
        answer = published(SOURCE, decoder_input_ids=TOKENS, output_attentions=True)
        parts = {
            "encoder.{}.mixer": answer.encoder_attentions,
            "decoder.{}.mixer": answer.decoder_attentions,
            "decoder.{}.cross": answer.cross_attentions,
        }
    else:
        encodes = any(each in type(published).__name__.lower() for each in ("bert", "electra", "mpnet"))
        stack = "encoder" if encodes else "decoder"
        parts = {f"{stack}.{{}}.mixer": published(TOKENS, output_attentions=True).attentions}
    return {name.format(number): each for name, maps in parts.items() for number, each in enumerate(maps)}


@pytest.mark.parametrize("variant", first(12, EACH))
def test_maps_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    published = make(variant)
    model = taken_over(published, tmp_path)
    with torch.no_grad():
        expected = published_maps(published)
    more = {"source": SOURCE} if published.config.is_encoder_decoder else {}
    attention = trace(model, TOKENS, attention="*", **more).attention
    assert attention.keys() == expected.keys()
    for name, each in attention.items():
        torch.testing.assert_close(
            each.weights(), expected[name], rtol=1e-4, atol=2e-6, msg=lambda detail, name=name: f"{name} {detail}"
        )


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen3"])
def test_residual_streams_are_their_hidden_states(variant: str, tmp_path: Path) -> None:
    published = make(next(name for name in EACH if name.split("-")[0] == variant))
    model = taken_over(published, tmp_path)
    with torch.no_grad():
        answer = published(TOKENS, output_hidden_states=True)
    traced = trace(model, TOKENS, ["decoder.entry", "decoder.*.residual_after"])
    for ours, expected in zip(list(traced.values())[:-1], answer.hidden_states[:-1], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read_out(model, list(traced.values())[-1]), answer.logits, rtol=1e-4, atol=1e-4)


def test_gpt2_is_seen_as_transformer_lens_sees_it(tmp_path: Path) -> None:
    """Maps, heads' outputs, residual streams, hidden units and scores, of the same weights."""
    # Version 4 has neither the class nor the conversion.
    lens = pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")
    conversions = pytest.importorskip(
        "transformer_lens.pretrained.weight_conversions", reason="transformer_lens is not of version 2"
    )

    published = make(next(name for name in EACH if name.split("-")[0] == "gpt2"))
    config, model = published.config, taken_over(published, tmp_path)
    reference = lens.HookedTransformer(
        lens.HookedTransformerConfig(
            n_layers=config.n_layer,
            d_model=config.n_embd,
            n_ctx=config.n_positions,
            n_heads=config.n_head,
            d_head=config.n_embd // config.n_head,
            d_mlp=published.transformer.h[0].mlp.c_fc.nf,
            d_vocab=config.vocab_size,
            act_fn={"gelu_new": "gelu_new", "gelu": "gelu", "relu": "relu"}[config.activation_function],
            normalization_type="LN",
            eps=config.layer_norm_epsilon,
            device="cpu",
        )
    )
    reference.load_state_dict(conversions.convert_gpt2_weights(published, reference.cfg), strict=False)
    scores, cache = reference.run_with_cache(TOKENS)
    traced = trace(model, TOKENS, ["*.heads", "*.residual_after", "*.hidden", "*.residual_middle"], attention="*")
    close = {"rtol": 1e-4, "atol": 1e-5}
    for number in range(config.n_layer):
        name, hook = f"decoder.{number}", f"blocks.{number}"
        torch.testing.assert_close(
            traced.attention[f"{name}.mixer"].weights(), cache[f"{hook}.attn.hook_pattern"], **close
        )
        torch.testing.assert_close(traced[f"{name}.mixer.heads"].transpose(1, 2), cache[f"{hook}.attn.hook_z"], **close)
        torch.testing.assert_close(traced[f"{name}.residual_middle"], cache[f"{hook}.hook_resid_mid"], **close)
        torch.testing.assert_close(traced[f"{name}.ffn.hidden"], cache[f"{hook}.mlp.hook_post"], **close)
        torch.testing.assert_close(traced[f"{name}.residual_after"], cache[f"{hook}.hook_resid_post"], **close)
    torch.testing.assert_close(traced.logits, scores, rtol=1e-4, atol=1e-4)
