"""Hugging Face transformers with eager attention as the outside witness: its maps and its hidden states are those seen here."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from heddle.look import trace
from heddle.look.lens import read_out
from tests.weights.conftest import KINDS, VARIANTS, make
from tests.weights.test_parity import SOURCE, TOKENS, taken_over

EACH = [next(name for name in VARIANTS if name.split("-")[0] == kind) for kind in sorted(KINDS)]


def theirs(published: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Their maps by heddle's names of layers."""
    if published.config.is_encoder_decoder:
        answer = published(SOURCE, decoder_input_ids=TOKENS, output_attentions=True)
        parts = {
            "encoder.{}.mixer": answer.encoder_attentions,
            "decoder.{}.mixer": answer.decoder_attentions,
            "decoder.{}.cross": answer.cross_attentions,
        }
    else:
        stack = "encoder" if "Bert" in type(published).__name__ else "decoder"
        parts = {f"{stack}.{{}}.mixer": published(TOKENS, output_attentions=True).attentions}
    return {name.format(number): each for name, maps in parts.items() for number, each in enumerate(maps)}


@pytest.mark.parametrize("variant", EACH)
def test_maps_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    published = make(variant)
    model = taken_over(published, tmp_path)
    with torch.no_grad():
        wanted = theirs(published)
    more = {"source": SOURCE} if published.config.is_encoder_decoder else {}
    found = trace(model, TOKENS, attention="*", **more).attention
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        torch.testing.assert_close(
            each.weights(), wanted[name], rtol=1e-4, atol=2e-6, msg=lambda said, name=name: f"{name} {said}"
        )


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen3"])
def test_residual_streams_are_their_hidden_states(variant: str, tmp_path: Path) -> None:
    published = make(next(name for name in EACH if name.split("-")[0] == variant))
    model = taken_over(published, tmp_path)
    with torch.no_grad():
        answer = published(TOKENS, output_hidden_states=True)
    found = trace(model, TOKENS, ["decoder.entry", "decoder.*.residual_after"])
    for ours, wanted in zip(list(found.values())[:-1], answer.hidden_states[:-1], strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read_out(model, list(found.values())[-1]), answer.logits, rtol=1e-4, atol=1e-4)
