"""A user's own attention scores: what they compute, that every pass computes the same, and that a proof finds those that do not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import heddle
from heddle.config import TransformerConfig
from heddle.convert import export_model
from heddle.errors import HeddleError
from heddle.look import trace
from heddle.model import build
from heddle.nn import Layout
from heddle.prove import prove
from tests.refusing import refusal
from tests.thorough import thorough

ROTARY = {"kind": "rotary"}


def own(name: str, **options: Any) -> dict[str, Any]:
    return {"target": f"tests.model.scores:{name}", "options": options}


def config(context: int = 24, **mixer: Any) -> TransformerConfig:
    block = {"mixer": {"heads": 4, "kv_heads": 2, **mixer}}
    return TransformerConfig.of(
        {
            "vocab_size": 19,
            "dim": 16,
            "context": context,
            "decoder": {"depth": 2, "block": block},
            "initial": {"std": 0.5},
        }
    )


def tokens(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(19, (rows, length), generator=torch.Generator().manual_seed(3))


# What a module of the user's computes, beside heddle's own choice that computes the same.
SAME = {
    "soft cap": ({"scores": own("SoftCap", cap=0.7), "relative": ROTARY}, {"cap": 0.7, "relative": ROTARY}),
    "slopes": ({"scores": own("Slopes")}, {"relative": {"kind": "alibi"}}),
    "near": ({"scores": own("Near", size=3), "relative": ROTARY}, {"window": 3, "relative": ROTARY}),
}


@pytest.mark.parametrize("name", SAME)
def test_it_equals_heddles_own_choice_in_every_pass(name: str) -> None:
    """Whole texts, packed and padded ones, gradients, and a cache one by one."""
    own, builtin = (build(config(**mixer), seed=1).eval() for mixer in SAME[name])
    ids, tight = tokens(), {"rtol": 1e-5, "atol": 1e-5}
    packed = Layout.packed([[4, 5], [2, 7]], 9)
    for layout in (None, packed, Layout.padded([9, 4], 9)):
        one, other = own(ids, layout).hidden, builtin(ids, layout).hidden
        torch.testing.assert_close(one, other, **tight)
        assert not torch.allclose(
            one, build(config(relative=SAME[name][0].get("relative")), seed=1)(ids, layout).hidden
        )
    for model in (own, builtin):
        model.logits(model(ids).hidden).logsumexp(-1).sum().backward()
    expected = {each: parameter.grad for each, parameter in builtin.named_parameters()}
    for each, parameter in own.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[each], rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        cache = own.new_cache(2)
        steps = torch.cat([own(ids[:, t : t + 1], cache=cache).hidden for t in range(9)], dim=1)
        torch.testing.assert_close(steps, builtin(ids).hidden, **tight)


@pytest.mark.parametrize("name", ["Near", *thorough("Learned")])
def test_a_proof_of_it_holds(name: str) -> None:
    model = build(config(16, scores=own(name), relative=ROTARY), seed=1)
    for module in model.modules():
        if hasattr(module, "even"):
            torch.nn.init.normal_(module.even), torch.nn.init.normal_(module.factor)
    proof = prove(model)
    assert proof.holds, proof
    words = {verdict.check: verdict.word for verdict in proof.verdicts}
    for check in ("causality", "cached one by one", "packing", "padding on the left", "drawn tokens", "training"):
        assert words[check] in ("EXACT", "ROUNDING"), proof


PLANTED = {"Ahead": "causality", "Counting": "cached one by one", "Places": "packing"}


@pytest.mark.parametrize("name", ["Ahead", *thorough(*(name for name in PLANTED if name != "Ahead"))])
def test_a_proof_finds_one_that_breaks_it(name: str) -> None:
    proof = prove(build(config(16, scores=own(name), relative=ROTARY), seed=1))
    assert not proof.holds
    words = {verdict.check: verdict.word for verdict in proof.verdicts}
    assert words[PLANTED[name]] == "DIFFERENT", proof


def test_its_weights_are_trained_saved_and_read_again(tmp_path: Path) -> None:
    text = "the warp is held, the weft is thrown. " * 20
    tokenizer = heddle.train_tokenizer("characters", [text])
    settings = config(scores=own("Learned"), relative=ROTARY).override({"vocab_size": tokenizer.vocab_size})
    model = build(settings)
    heddle.fit(model, tokenizer, text, steps=4, progress=False)
    inner = model.decoder.blocks[0].mixer.scores.inner
    assert (inner.factor != 1).all()
    heddle.save(model, tmp_path / "run", tokenizer)
    loaded, _ = heddle.load(tmp_path / "run")
    assert torch.equal(loaded.decoder.blocks[0].mixer.scores.inner.factor, inner.factor)
    plain, again = (
        heddle.generate_text(each, tokenizer, "the warp", max_tokens=8, temperature=0) for each in (model, loaded)
    )
    assert plain == again
    line = refusal(lambda: export_model(tmp_path / "run", tmp_path / "out"))
    assert "scores" in line
    assert not (tmp_path / "out").exists()
    assert heddle.account.count(settings).parameters.total == sum(each.numel() for each in model.parameters())


def test_beams_that_share_a_source_are_scored_as_heddles_own() -> None:
    """Beams are more queries of one row in cross-attention."""
    tokenizer = heddle.train_tokenizer("characters", ["the warp is held"])
    stack: dict[str, Any] = {"depth": 1, "block": {"mixer": {"heads": 2}, "cross": {"heads": 2}}}
    results = []
    for change in ({"scores": own("SoftCap", cap=0.6)}, {"cap": 0.6}, {}):
        parts = {kind: {**part, **change} for kind, part in stack["block"].items()}
        both = {"encoder": {"depth": 1, "block": {"mixer": parts["mixer"]}}, "decoder": {"depth": 1, "block": parts}}
        sizes = {"vocab_size": tokenizer.vocab_size, "dim": 16, "context": 24, "initial": {"std": 1.0}}
        model = build(TransformerConfig.of({**sizes, **both}), seed=2)
        results.append(heddle.translate(model, tokenizer, ["held", "the warp"], beams=3, best=3, max_tokens=6))
    actual, builtin, plain = ([[(each.text, round(each.score, 4)) for each in best] for best in one] for one in results)
    assert actual == builtin
    assert actual != plain


def test_what_is_looked_at_is_what_the_kernel_computed() -> None:
    model = build(config(scores=own("Slopes")), seed=1)
    layer = trace(model, tokens(), attention="*").attention["decoder.1.mixer"]
    assert layer.error() < 1e-5
    torch.testing.assert_close(layer.weights([3], [2]), layer.weights()[:, 2:3, 3:4])


def test_only_the_reference_kernel_has_a_place_for_it() -> None:
    for kernel in ("plain", "blockwise", "sdpa", "flex"):
        line = refusal(lambda kernel=kernel: config(scores=own("SoftCap"), kernel=kernel))
        assert f"kernel = {kernel!r} does not support custom scores: set kernel = 'auto' or 'reference'" in line
    with pytest.raises(HeddleError, match=r"got x \[2, 4, 9, 9\], returned \[2, 4, 9, 1\]"):
        build(config(scores=own("Narrow")))(tokens())
    with pytest.raises(HeddleError, match=r"callable as SoftCap\(heads, \*\*options\)"):
        build(config(scores=own("SoftCap", width=3)))
    with pytest.raises(HeddleError, match=r"callable as Missing\(heads, \*\*options\)"):
        build(config(scores=own("Missing")))
    with pytest.raises(HeddleError, match=r"is not a subclass of torch\.nn\.Module"):
        build(config(scores={"target": "builtins:print"}))
