"""The lens at the last layer is the model's own prediction."""

import pytest
import torch

from heddle.config import TransformerConfig
from heddle.config.model import ClassifierHeadConfig
from heddle.errors import HeddleError
from heddle.look import ablate, lens, trace
from heddle.look.lens import _read_layer, read_out
from tests.look.inputs import inputs_of
from tests.models import EVERY, awake, config_of, name_of, tokens_of


@pytest.mark.lecture("L1-44")
@pytest.mark.parametrize("config", EVERY[::4], ids=name_of)
def test_the_last_layers_reading_is_the_prediction(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model, rows=1)
    readings = lens(model, tokens, top=3, **more)
    logs = trace(model, tokens, **more).logits[0].log_softmax(-1)
    assert readings.places == ("entry", *map(str, range(len(model.last_stack().blocks))))
    best, ids = logs.exp().topk(3)
    torch.testing.assert_close(readings.probabilities[-1], best)
    assert torch.equal(readings.tokens[-1][:, 0], ids[:, 0])
    torch.testing.assert_close(readings.entropy[-1], -(logs.exp() * logs.clamp(min=-1e9)).sum(-1))
    if model.decoder is not None:
        own = logs[:-1].gather(-1, tokens[0, 1:, None])[:, 0]
        torch.testing.assert_close(readings.losses()[-1], -own.mean())
        assert torch.equal(readings.target_ranks[-1], (logs[:-1] > own[:, None]).sum(-1))


def test_an_earlier_layer_is_a_model_that_ends_there() -> None:
    deep, flat = awake(config_of(depth=3)), awake(config_of(depth=3))
    flat.decoder.blocks = flat.decoder.blocks[:2]
    tokens = tokens_of(1, 7)
    stream = trace(deep, tokens, "decoder.1.residual_after")["decoder.1.residual_after"]
    flat.decoder.pattern_of = flat.decoder.pattern_of[:2]
    flat.decoder.source_of = flat.decoder.source_of[:2]
    torch.testing.assert_close(read_out(deep, stream), flat.logits(flat(tokens).hidden))


def test_many_positions_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = awake(config_of()), tokens_of(1, 30)
    whole = lens(model, tokens)
    monkeypatch.setitem(_read_layer.__globals__, "BLOCK_SCORES", 4 * 11)
    parts = lens(model, tokens)
    for name in ("tokens", "probabilities", "entropy", "target_probabilities", "target_ranks", "norms"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name))


def test_tables_and_edits() -> None:
    model, tokens = awake(config_of()), tokens_of(1, 4)
    readings = lens(model, tokens)
    assert readings.table()[0][0] == str(int(readings.tokens[0, 0, 0]))
    assert "<caption>most probable token after each layer</caption>" in readings._repr_html_()
    changed = lens(model, tokens, edits=[ablate("decoder.1.ffn.added")])
    torch.testing.assert_close(changed.probabilities[:2], readings.probabilities[:2])
    assert (changed.probabilities[2] - readings.probabilities[2]).abs().max() > 1e-3


def test_a_model_without_token_scores_is_refused() -> None:
    config = config_of(family="encoder").model_copy(update={"head": ClassifierHeadConfig(classes=2)})
    with pytest.raises(HeddleError, match="does not score tokens"):
        lens(awake(config), tokens_of(1, 4))
