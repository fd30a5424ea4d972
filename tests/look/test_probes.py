"""Probes find what is there and nothing where nothing is; the optimum is scikit-learn's."""

import numpy as np
import pytest
import torch

from heddle.errors import HeddleError
from heddle.look import probe, probe_vectors
from tests.models import VOCABULARY, awake, config_of, tokens_of


def test_a_probe_reads_the_token_from_the_entry() -> None:
    model = awake(config_of(depth=2), torch.float32)
    tokens = tokens_of(16, 12)
    result = probe(model, tokens, tokens, ["decoder.entry", "decoder.1.residual_after"])
    assert result["decoder.entry"].accuracy == 1
    assert result["decoder.entry"].control < 0.4
    assert result["decoder.entry"].held_out == 48
    vectors = torch.randn(3, 16)
    assert result["decoder.entry"](vectors).shape == (3,)
    assert "shuffled labels" in result["decoder.entry"]._repr_html_()


def test_noise_is_not_read() -> None:
    draw = torch.Generator().manual_seed(0)
    result = probe_vectors(torch.randn(400, 8, generator=draw), torch.randint(2, (400,), generator=draw))
    assert result.accuracy < 0.65


def test_the_optimum_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 5, generator=draw)
    y = (x @ torch.randn(5, 3, generator=draw) + torch.randn(300, 3, generator=draw)).argmax(-1)
    result = probe_vectors(x, y, penalty=0.01)
    train = torch.randperm(300, generator=torch.Generator().manual_seed(0))[75:]
    torch.testing.assert_close(result.mean, x[train].mean(0))
    torch.testing.assert_close(result.deviation, x[train].std(0, correction=0))
    scaled = ((x[train] - result.mean) / result.deviation).numpy()
    reference = LogisticRegression(C=1 / (0.01 * len(train)), tol=1e-8, max_iter=1000).fit(scaled, y[train].numpy())
    np.testing.assert_allclose(result.weight.numpy(), reference.coef_, atol=2e-3)


def test_labels_that_do_not_fit() -> None:
    model, tokens = awake(config_of()), tokens_of(2, 5)
    with pytest.raises(HeddleError, match="give one label per token"):
        probe(model, tokens, tokens[:, :3], "decoder.entry")
    with pytest.raises(HeddleError, match="has no vector per token"):
        probe(model, tokens, tokens, "decoder.0.mixer.heads")
    with pytest.raises(HeddleError, match="at least 2 classes"):
        probe(model, tokens, torch.zeros_like(tokens), "decoder.entry")
    left_out = torch.where(tokens < VOCABULARY // 2, tokens, -1)
    assert probe(model, tokens_of(8, 9), torch.where(tokens_of(8, 9) < 5, tokens_of(8, 9), -1), "decoder.entry")
    assert (left_out >= -1).all()
