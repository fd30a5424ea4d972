"""Recomputed attention is the kernel's: every family, kernel, mask, layout and cached step; numbers of the worked examples."""

from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from torch import Tensor

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.look import AttentionPass, trace
from heddle.look import attention as module_of_attention
from heddle.look.picture import attention_figure, write_figure
from heddle.look.texts import Text
from heddle.model import Transformer
from heddle.nn import Causal, Everything, Layout
from tests.lectures.golden import Case, Rule, attention, same, scope
from tests.look.inputs import inputs_of
from tests.models import BOTH, EVERY, FEW, awake, config_of, name_of, tokens_of

WITH_KERNELS = [each for each in EVERY if any(block.mixer.kind == "attention" for block in each.last()[1].blocks)]


def attended(model: Transformer, tokens: Tensor, **more: Any) -> dict[str, AttentionPass]:
    return trace(model, tokens, attention="*", **more).attention


def check(maps: dict[str, AttentionPass]) -> None:
    assert maps
    for each in maps.values():
        assert each.error() < 1e-12
        weights, allowed = each.weights(), each.allowed()
        assert (weights[~allowed.expand_as(weights)] == 0).all()
        sums, alive = weights.sum(-1), allowed.any(-1).expand(weights.shape[:-1])
        sinks, shares = each.lowered.sinks, alive.double()
        if sinks is not None:  # e^score of all keys, beside e^sink
            shares = shares * (each.scores().logsumexp(-1) - sinks.detach()[:, None]).sigmoid()
        torch.testing.assert_close(sums, shares)
        parts = torch.cat([part for _, _, part in each.blocks()], dim=2)
        torch.testing.assert_close(parts, weights)


@pytest.mark.parametrize("config", WITH_KERNELS, ids=name_of)
def test_weights_times_values_are_what_the_kernel_gave(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model)
    check(attended(model, tokens, **more))
    if not more:
        check(attended(model, tokens, layout=Layout.padded([9, 4], 9)))
        check(attended(model, tokens, layout=Layout.padded([9, 4], 9, "left")))
        check(attended(model, tokens, layout=Layout.packed([[4, 3], [9]], 9)))


@pytest.mark.parametrize("config", [each for each in WITH_KERNELS if each.decoder is not None][::4], ids=name_of)
def test_cached_steps(config: TransformerConfig) -> None:
    model = awake(config)
    tokens, more = inputs_of(model)
    cache = model.new_cache(2)
    whole = attended(model, tokens, **more)
    for start, stop in ((0, 4), (4, 7), (7, 8), (8, 9)):
        maps = attended(model, tokens[:, start:stop], cache=cache, **(more if start == 0 else {}))
        check(maps)
        for name, each in maps.items():
            slots = each.keys >= stop and each.lowered.mask.keys.form == "whole"  # not those of a window
            if (
                name.startswith("decoder") and ".mixer" in name and slots and not config.last()[1].prefix
            ):  # there, a cache's first call is a prefix
                expected = whole[name].weights(slice(start, stop))[..., :stop]
                torch.testing.assert_close(each.weights()[..., :stop], expected)


def test_rows_of_different_lengths() -> None:
    model = awake(config_of(window=3, kv_heads=2, kernel="auto"))
    cache = model.new_cache(2)
    check(attended(model, tokens_of(2, 5), cache=cache, layout=cache.advance([5, 3])))
    check(attended(model, tokens_of(2, 2, seed=3), cache=cache, layout=cache.advance([1, 2])))


@pytest.mark.parametrize("config", BOTH[::3], ids=name_of)
def test_rows_that_share_a_source(config: TransformerConfig) -> None:
    model = awake(config)
    source = tokens_of(2, 6, seed=2)
    layout = Layout.padded([6, 4], 6)
    cache = model.new_cache(2)
    attended(model, tokens_of(2, 3), cache=cache, source=source, source_layout=layout)
    forked = cache.select([0, 0, 0, 1, 1, 1])
    assert forked.share == 3
    check(attended(model, tokens_of(6, 2, seed=4), cache=forked))


@pytest.mark.parametrize("kernel", ["reference", "blockwise", "plain", "sdpa", "auto"])
def test_bf16_differs_by_rounding(kernel: str) -> None:
    model = awake(config_of(kernel=kernel), torch.float32).bfloat16()
    for each in attended(model, tokens_of(2, 30)).values():
        assert 1e-5 < each.error() < 2e-2


ATTENTION: dict[str, tuple[int, str, Rule]] = {
    "attention_single_head": (1, "head_dim", Everything()),
    "attention_single_head_causal": (1, "head_dim", Causal()),
    "multihead_dk": (2, "head_dim", Everything()),
    "multihead_causal_dk": (2, "head_dim", Causal()),
    "multihead_sqrt_d_literal": (2, "dim", Everything()),
}


def golden(name: str, kernel: str = "sdpa") -> AttentionPass:
    """A worked example's call, by a kernel that holds no weights."""
    heads, scale, rule = ATTENTION[name]
    case, maps = Case(name), []
    module = attention(case.weights, kernel, heads=heads, scale=scale)
    handle = module.kernel.register_forward_hook(
        lambda kernel, inputs, output: maps.append(AttentionPass(*inputs[:3], output, inputs[3], kernel.scale))  # type: ignore[call-arg]
    )
    with torch.no_grad():
        module(case.inputs["Z"][None], scope(rule, kernel, Layout.whole(1, 3)))
    handle.remove()
    (one,) = maps
    return one


@pytest.mark.lecture("L0-39", "L2-04", "L1-28", "L1-36")
@pytest.mark.parametrize("name", ATTENTION)
def test_numbers_of_the_worked_examples(name: str) -> None:
    """Each token's row says which tokens feed it: the weights of the example, which sum to 1."""
    case, attention = Case(name), golden(name)
    same(attention.weights()[0].view_as(case.outputs["weights"]), case.outputs["weights"])
    if "scores" in case.outputs:
        same(attention.scores()[0, 0], case.outputs["scores"])


@pytest.mark.lecture("L1-28")
def test_a_darker_cell_of_the_picture_has_the_larger_weight(tmp_path: Path) -> None:
    """All nine cells of a written PNG, by luminance: from white for 0 to black for 1."""
    attention, words = golden("multihead_dk"), ("man", "eats", "fish")
    figure = attention_figure({"decoder.0.mixer": attention}, Text(torch.zeros(1, 3, dtype=torch.long), words), [0])
    write_figure(figure, tmp_path / "map.png")
    pixels = torch.from_numpy(imread(tmp_path / "map.png"))[..., :3] @ torch.tensor([0.2126, 0.7152, 0.0722])
    cells = [(column, row) for row in range(3) for column in range(3)]
    places = figure.axes[0].transData.transform(cells) * (150 / figure.dpi)  # from the lower left corner
    luminances = [float(pixels[len(pixels) - 1 - int(y), int(x)]) for x, y in places]
    weights = attention.weights()[0, 0].flatten()
    assert sorted(range(9), key=luminances.__getitem__) == weights.argsort(descending=True).tolist()
    assert max(luminances) - min(luminances) > 0.4


@pytest.mark.lecture("L3-18", "L0-93", "L1-29")
@pytest.mark.parametrize("name", ATTENTION)
def test_a_query_is_followed_step_by_step(name: str) -> None:
    """Products, scale, mask, softmax, weighted sum, with the example's numbers; the future is missing, -inf, then 0."""
    case, attention = Case(name), golden(name)
    weights = case.outputs["weights"].view(attention.heads, 3, 3)
    heads = case.outputs.get("heads", case.outputs["output"][None])  # W_O is the identity where there is one head
    for head in range(attention.heads):
        for row in range(3):
            steps = attention.steps(row, head)
            torch.testing.assert_close(steps.products * attention.scale, steps.scaled)
            same(steps.weights, weights[head, row])
            same(steps.output, heads[head, row])
            if "scores" in case.outputs:
                same(steps.masked, case.outputs["scores"][row])
            blocked = ~steps.allowed
            assert blocked.tolist() == [isinstance(ATTENTION[name][2], Causal) and key > row for key in range(3)]
            assert (steps.masked[blocked] == -torch.inf).all()
            assert (steps.weights[blocked] == 0).all()
            assert steps.biased.isfinite().all()


@pytest.mark.lecture("L1-29", "L1-40")
def test_without_its_mask_a_decoder_sees_the_future() -> None:
    """The last row is not affected by the mask; the others have weights where the mask had none."""
    attention = golden("multihead_causal_dk")
    masked, open_ = attention.weights(), attention.weights(masked=False)
    torch.testing.assert_close(masked[:, :, -1], open_[:, :, -1])
    same(open_[0], Case("multihead_dk").outputs["weights"])
    future = torch.ones(3, 3).triu(1).bool()
    assert (masked[:, :, future] == 0).all()
    assert (open_[:, :, future] > 0).all()


@pytest.mark.lecture("L1-41")
def test_every_layer_and_head_has_a_map() -> None:
    model = awake(FEW[0])
    maps = attended(model, tokens_of(1, 5))
    blocks = [block for block in model.config.decoder.blocks if block.mixer.kind == "attention"]
    assert list(maps) == [f"decoder.{n}.mixer" for n in range(len(blocks))]
    assert all(tuple(each.weights().shape) == (1, 4, 5, 5) for each in maps.values())


def test_some_rows_and_heads() -> None:
    (attention,) = (
        each for name, each in attended(awake(config_of(kv_heads=2)), tokens_of(2, 8)).items() if ".0." in name
    )
    whole = attention.weights()
    torch.testing.assert_close(attention.weights([3, -1], 2), whole[:, 2:3][:, :, [3, -1]])
    torch.testing.assert_close(attention.weights(slice(2, 5), [0, 3]), whole[:, [0, 3]][:, :, 2:5])
    assert (attention.allowed([3])[..., 4:] == 0).all()


def test_a_text_of_many_tokens_is_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_attention, "BLOCK_WEIGHTS", 40)
    monkeypatch.setattr(module_of_attention, "MAX_WEIGHTS", 100)
    attention = attended(awake(config_of(kernel="blockwise")), tokens_of(1, 12))["decoder.0.mixer"]
    assert attention.error() < 1e-12
    assert max(part.numel() for _, _, part in attention.blocks(0)) <= 40
    with pytest.raises(HeddleError, match="are too many for one tensor: select rows or heads"):
        attention.weights()
    assert attention.weights(rows=[11], heads=[0]).shape == (1, 1, 1, 12)


def test_what_is_not_there_is_said() -> None:
    model = awake(config_of())
    attention = attended(model, tokens_of(1, 5))["decoder.0.mixer"]
    with pytest.raises(HeddleError, match="head 4 is out of range"):
        attention.weights(heads=4)
    with pytest.raises(HeddleError, match="query 5 is out of range"):
        attention.weights(rows=[5])
    with pytest.raises(HeddleError, match=r"no attention layer of this model matches 'decoder\.7\.mixer'"):
        trace(model, tokens_of(1, 5), attention="decoder.7.mixer")
