"""Patching one part at a time, compared with the same edit made by hand."""

import pytest
import torch

from heddle.errors import HeddleError
from heddle.look import difference_of_logits, edited, patch, replace, trace
from tests.models import awake, config_of, tokens_of


def test_each_cell_is_a_patch() -> None:
    model = awake(config_of())
    one, two = tokens_of(1, 5), tokens_of(1, 5, seed=9)
    metric = difference_of_logits(3, 4)
    progress: list[tuple[int, int]] = []
    patched = patch(model, one, two, metric, "decoder.*.residual_after", done=lambda *at: progress.append(at))
    assert patched.names == ("decoder.0.residual_after", "decoder.1.residual_after")
    assert patched.values.shape == (2, 5)
    assert progress[-1] == (10, 10)
    assert patched.clean == metric(trace(model, one).logits)
    clean = trace(model, one, patched.names)
    with torch.no_grad(), edited(model, [replace(patched.names[0], clean[patched.names[0]], positions=[2])]):
        assert patched.values[0, 2] == pytest.approx(metric(model.logits(model(two).hidden)))
    # The score of the last position is read from its own stream, so after the last layer nothing else counts.
    restored = patched.restored()
    torch.testing.assert_close(restored[1], torch.tensor([0.0, 0, 0, 0, 1]), rtol=0, atol=1e-6)
    assert "corrupted" in patched._repr_html_()


def test_heads_and_whole_sites() -> None:
    model = awake(config_of())
    one, two = tokens_of(1, 5), tokens_of(1, 5, seed=9)
    patched = patch(model, one, two, difference_of_logits(3, 4), "decoder.*.mixer.heads", by="heads")
    assert patched.values.shape == (2, 4)
    everything = patch(model, one, two, difference_of_logits(3, 4), ["decoder.entry"], by="all")
    assert everything.restored().tolist() == [[pytest.approx(1)]]


def test_prompts_that_cannot_be_compared() -> None:
    model = awake(config_of())
    with pytest.raises(HeddleError, match="the clean prompt has 5 tokens and the corrupted one 4"):
        patch(model, tokens_of(1, 5), tokens_of(1, 4), difference_of_logits(0, 1), "decoder.entry")
    with pytest.raises(HeddleError, match="has no heads"):
        patch(model, tokens_of(1, 5), tokens_of(1, 5), difference_of_logits(0, 1), "decoder.entry", by="heads")
    same = patch(model, tokens_of(1, 5), tokens_of(1, 5), difference_of_logits(0, 1), "decoder.entry")
    with pytest.raises(HeddleError, match="no difference to restore"):
        same.restored()
