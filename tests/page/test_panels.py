"""What the panels show is what the library computes: losses, probabilities, maps, tensors; for every family."""

import base64
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.generate import translate
from heddle.look import costs, lens, strongest, trace
from heddle.model import build
from heddle.page import PageModel
from heddle.page.panels import DEMO, PANELS, answer
from heddle.predict import classify, fill
from heddle.text import train_tokenizer
from tests.page.subjects import KINDS, TEXT, make_subject, subject

WORDS = "the warp is held"


def ask(page_model: PageModel, panel: str, **fields: Any) -> Any:
    return answer(page_model, panel, PANELS[panel].query.of(fields, where=panel))


def unpacked(document: dict[str, Any]) -> Tensor:
    data = base64.b64decode(document["data"])
    if document["kind"] == "bits":
        rows, columns = document["shape"]
        bits = np.unpackbits(np.frombuffer(data, np.uint8).reshape(rows, -1), axis=-1)[:, :columns]
        return torch.from_numpy(bits.copy()).bool()
    kind = "<f4" if document["kind"] == "f32" else "u1"
    return torch.from_numpy(np.frombuffer(data, kind).reshape(document["shape"]).copy())


@pytest.mark.parametrize("kind", KINDS)
def test_every_panel_answers_or_says_why_not(kind: str) -> None:
    """For every family; an answer is a document, and a refusal one line."""
    page_model = subject(kind)
    text = "3 14 15 3" if kind == "ids" else WORDS
    layer = f"{page_model.stack}.1.mixer"
    more = {
        "map": {"layer": layer},
        "query": {"layer": layer},
        "running": {"layer": layer},
        "tensor": {"name": f"{page_model.stack}.0.ffn.added"},
    }
    more |= {"exchanged": {"other": text[::-1]}}
    refused, lines = set[str](), list[str]()
    for panel in PANELS:
        fields = {} if panel in ("about", "model", "training") else {"text": text} | more.get(panel, {})
        try:
            assert ask(page_model, panel, **fields)
        except HeddleError as error:
            refused.add(panel)
            lines.append(str(error))
    assert not any("\n" in line for line in lines)
    speechless = {"next", "beams", "layers", "divided", "exchanged"}
    expected = {
        "recurrent": {"map", "query", "running"},
        "translation": {"exchanged"},
        "masked": {"beams", "exchanged"},
        "classes": speechless,
        **dict.fromkeys(("words", "number", "vector"), speechless | {"prefixes"}),
        "prefix": {"prefixes"},
    }
    assert refused - {"exchanged"} == {"training"} | expected.get(kind, set()) - {"exchanged"}
    shown = ask(page_model, "about")["predicts"]
    named = {"translation", "masked", "classes", "vector", "words", "number"}
    assert shown == (kind if kind in named else "next")


@pytest.mark.lecture("L0-02", "L0-98")
def test_the_mean_of_the_rows_is_the_loss() -> None:
    """n tokens have n - 1 rows whose next token is known, and one that is open; for the lectures' sentence, too."""
    page_model = subject("decoder")
    assert page_model.tokenizer is not None
    for text in (WORDS, DEMO[0]):
        answer = ask(page_model, "prefixes", text=text)
        ids = torch.tensor([page_model.tokenizer.encode(text)])
        rows = answer["rows"]
        assert [("next" in row) for row in rows] == [True] * (len(ids[0]) - 1) + [False]
        logits = page_model.model.logits(page_model.model(ids).hidden)[0].detach()
        assert answer["loss"] == pytest.approx(float(F.cross_entropy(logits[:-1], ids[0, 1:])), rel=1e-6)
        assert answer["loss"] == pytest.approx(float(lens(page_model.model, ids).losses()[-1]), rel=1e-6)
        for row, scores, target in zip(rows, logits, ids[0, 1:].tolist(), strict=False):
            assert row["probability"] == pytest.approx(float(scores.softmax(-1)[target]), rel=1e-4)
            assert row["rank"] == 1 + int((scores > scores[target]).sum())
            assert row["next"] == page_model.piece(target)
            assert row["top"][0][0] == page_model.piece(int(scores.argmax()))
        for length, row in enumerate(rows[:-1], start=1):  # each from a pass of its prefix alone
            prefix = page_model.model(ids[:, :length]).hidden[:, -1:]
            probability = page_model.model.logits(prefix)[0, 0].detach().softmax(-1)[ids[0, length]]
            assert row["probability"] == pytest.approx(float(probability), rel=1e-4)
    one = ask(page_model, "prefixes", text="w")
    assert (one["loss"], len(one["rows"])) == (None, 1)
    assert DEMO[0] == "I am a researcher"


def test_each_hidden_token_is_predicted_as_by_fill() -> None:
    page_model = subject("masked")
    assert page_model.tokenizer is not None
    answer = ask(page_model, "prefixes", text="warp is")
    assert [row["next"] for row in answer["rows"]] == list("warp is")
    filled = fill(page_model.model, page_model.tokenizer, ["wa[MASK]p is"], top=1)[0].masks[0][0]
    assert answer["rows"][2]["top"][0] == [filled.token, pytest.approx(filled.probability, rel=1e-4)]


def test_classes_of_prefixes_are_those_of_classify() -> None:
    page_model = subject("classes")
    assert page_model.tokenizer is not None
    answer = ask(page_model, "prefixes", text="the warp is")
    one = classify(page_model.model, page_model.tokenizer, ["the warp"])[0]
    assert answer["rows"][1]["prefix"] == "the warp"
    assert dict(answer["rows"][1]["top"]) == pytest.approx(dict(one.probabilities))  # type: ignore[union-attr]


@pytest.mark.lecture("L1-80")
def test_a_translation_has_a_step_for_each_token_that_is_written() -> None:
    """The end included; each step's row of cross-attention sums to 1, and free running is what `translate` writes."""
    page_model = subject("translation")
    assert page_model.tokenizer is not None
    answer = ask(page_model, "prefixes", text=WORDS, target="the weft")
    own = translate(page_model.model, page_model.tokenizer, [WORDS], beams=1, max_tokens=63)[0][0]
    assert len(answer["free"]) == own.tokens
    written = [step["token"] for step in answer["free"]]
    assert "".join(piece for piece in written if piece != "<|endoftext|>") == own.text
    for step in answer["free"]:
        assert set(step["looks"]) == {"decoder.0.cross", "decoder.1.cross"}
        for row in step["looks"].values():
            assert len(row) == len(answer["source"])
            assert sum(row) == pytest.approx(1.0, abs=1e-5)
    end = page_model.tokenizer.special["<|endoftext|>"]
    source = torch.tensor([[*page_model.tokenizer.encode(WORDS), end]])
    target = torch.tensor([[end, *page_model.tokenizer.encode("the weft")]])
    logits = page_model.model.logits(page_model.model(target, source=source).hidden)[0, :-1].detach()
    assert answer["loss"] == pytest.approx(float(F.cross_entropy(logits, target[0, 1:])), rel=1e-5)


@pytest.mark.lecture("L1-87")
@pytest.mark.parametrize("kind", ["decoder", "translation", "masked"])
def test_the_next_token_has_the_scores_of_the_model(kind: str) -> None:
    """All of them, so that their softmax sums to 1; the best ones in order; after any position; with what was appended."""
    page_model = subject(kind)
    at = 4 if kind == "translation" else 2
    more = {"target": "the weft"} if kind == "translation" else {}
    answer = ask(page_model, "next", text=WORDS, at=at, **more)
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS} | more, where="test"))
    logits = page_model.model.logits(page_model.model(text.tokens, **text.more).hidden)[0, at].detach()
    shown = unpacked(answer["logits"])
    torch.testing.assert_close(shown, logits)
    assert [id for id, _ in answer["best"]] == logits.topk(50).indices.tolist()
    if kind != "masked":
        longer = ask(page_model, "next", text=WORDS, added=[7, 9], **more)
        assert longer["pieces"][-2:] == (page_model.piece(7), page_model.piece(9))
        assert longer["room"] == answer["room"] - 2
    with pytest.raises(HeddleError, match="there is no position 900"):
        ask(page_model, "next", text=WORDS, at=900, **more)


@pytest.mark.parametrize("kind", ["decoder", "translation", "ids"])
def test_beams_are_those_of_the_search(kind: str) -> None:
    page_model = subject(kind)
    text = "3 14 15" if kind == "ids" else "the warp"
    answer = ask(page_model, "beams", text=text, beams=3, tokens=5)
    assert [beam["score"] for beam in answer["beams"]] == sorted((b["score"] for b in answer["beams"]), reverse=True)
    for beam in answer["beams"]:
        product = float(np.prod([share for _, _, share in beam["tokens"]]))
        assert float(np.log(product)) == pytest.approx(beam["logprob"], rel=1e-3)


def test_what_is_written_with_a_cache_needs_the_mask() -> None:
    """A cache has keys of passes in which no token saw a later one."""
    with pytest.raises(HeddleError, match="beam search needs the mask"):
        ask(subject("decoder"), "beams", text="the warp", beams=3, tokens=5, off=["decoder.*.mixer.mask"])
    assert ask(subject("decoder"), "beams", text="the warp", beams=3, tokens=5, off=["decoder.positions"])["beams"]
    pair = {"text": WORDS, "target": "the weft"}
    assert ask(subject("translation"), "prefixes", **pair)["free"]
    unmasked = ask(subject("translation"), "prefixes", **pair, off=["decoder.*.mixer.mask"])
    assert "needs the mask" in unmasked["unwritten"]
    assert "free" not in unmasked


@pytest.mark.parametrize("kind", ["decoder", "translation", "masked"])
def test_a_map_is_that_of_the_library(kind: str) -> None:
    """Scores and mask give the weights; thumbnails show their largest cells; one query's steps are the row."""
    page_model = subject(kind)
    more = {"target": "the weft"} if kind == "translation" else {}
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS} | more, where="test"))
    attention = trace(page_model.model, text.tokens, attention="*", **text.more).attention
    every = ask(page_model, "heads", text=WORDS, **more)
    assert [each["layer"] for each in every["layers"]] == list(attention)
    for name, shown in zip(attention, every["layers"], strict=True):
        layer = attention[name]
        answer = ask(page_model, "map", text=WORDS, layer=name, head=1, **more)
        allowed = unpacked(answer["allowed"])
        scores = unpacked(answer["scores"]).masked_fill(~allowed, -torch.inf)
        weights = layer.weights(heads=1)[0, 0]
        torch.testing.assert_close(scores.softmax(-1), weights)
        assert (len(answer["rows"]), len(answer["columns"])) == tuple(weights.shape)
        assert answer["strongest"] == strongest(layer, 1, 10)
        small = unpacked(shown["thumbnails"])
        assert small.shape == (2, *weights.shape)
        blocked = ~layer.allowed()[0, 0].expand(weights.shape)
        assert ((small[1] == 255) == blocked).all()
        torch.testing.assert_close(small[1][~blocked].float() / 254, weights[~blocked].float(), atol=0.01, rtol=0)
        steps = ask(page_model, "query", text=WORDS, layer=name, head=1, query=3, **more)
        torch.testing.assert_close(unpacked(steps["weights"]), weights[3].float())
        torch.testing.assert_close(unpacked(steps["output"]), layer.output[0, 1, 3].float())
        torch.testing.assert_close(unpacked(steps["k"])[2] @ unpacked(steps["q"]), unpacked(steps["products"])[2])


def test_large_maps_have_small_thumbnails() -> None:
    page_model = make_subject("decoder", context=256)
    shown = ask(page_model, "heads", text="warp " * 40)["layers"][0]
    assert shown["thumbnails"]["shape"] == [2, 40, 40]
    small = unpacked(shown["thumbnails"])
    assert (small[:, 0, 1:] == 255).all()
    assert (small[:, 39] < 255).all()


def test_layers_show_the_lens_and_the_sum_of_the_parts() -> None:
    page_model = subject("decoder")
    assert page_model.tokenizer is not None
    answer = ask(page_model, "layers", text=WORDS)
    tokens = torch.tensor([page_model.tokenizer.encode(WORDS)])
    library = lens(page_model.model, tokens)
    assert answer["losses"] == pytest.approx(library.losses().tolist())
    assert answer["ranks"] == (1 + library.target_ranks).tolist()
    parts = ask(page_model, "divided", text=WORDS)
    assert sum(value for _, value in parts["parts"]) == pytest.approx(parts["score"], rel=1e-4)
    assert sum(value for _, value in parts["layers"]) == pytest.approx(parts["score"], rel=1e-4)
    chosen = ask(page_model, "divided", text=WORDS, at=3, token=9)
    logits = trace(page_model.model, tokens).logits
    assert chosen["score"] == pytest.approx(float(logits[0, 3, 9]), rel=1e-4)


def test_a_part_that_is_switched_off_adds_nothing() -> None:
    """As if its output matrix were 0, in every panel; experts, too."""
    page_model = subject("decoder")
    before = unpacked(ask(page_model, "next", text=WORDS)["logits"])
    after = unpacked(ask(page_model, "next", text=WORDS, off=["decoder.1.mixer.heads.0"])["logits"])
    copy = make_subject("decoder")
    mixer: Any = copy.model.get_submodule("decoder.blocks.1.mixer")
    with torch.no_grad():
        mixer.o.weight[:, :8] = 0
    torch.testing.assert_close(after, unpacked(ask(copy, "next", text=WORDS)["logits"]))
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(unpacked(ask(page_model, "next", text=WORDS)["logits"]), before)
    mixed = subject("experts")
    parts = {part["part"]: part for part in ask(mixed, "about")["parts"]}
    assert parts["decoder.0.mixer"]["heads"] == 2
    assert parts["decoder.1.ffn"]["experts"] == 4
    loads = ask(mixed, "layers", text=WORDS)["loads"]
    assert [sum(load["tokens"]) for load in loads] == [2 * len(WORDS)] * 2
    less = ask(mixed, "layers", text=WORDS, off=["decoder.0.ffn.experts.1"])["loads"]
    assert less[0]["tokens"][1] == 0
    for kind, panel in (
        ("masked", "prefixes"),
        ("classes", "prefixes"),
        ("translation", "prefixes"),
        ("decoder", "beams"),
    ):
        other = subject(kind)
        more = {"target": "the weft"} if kind == "translation" else {}
        off = [f"{other.stack}.{layer}.{part}" for layer in (0, 1) for part in ("mixer", "ffn")]
        whole, less = (ask(other, panel, text=WORDS, off=each, **more) for each in ([], off))
        assert whole != less, kind
        if kind == "decoder":  # what is written is what the model without these parts would write
            product = float(np.prod([share for _, _, share in less["beams"][0]["tokens"]]))
            assert float(np.log(product)) == pytest.approx(less["beams"][0]["logprob"], rel=1e-3)
    for name in ("decoder.9.ffn", "decoder.0.mixer.heads.7", "nothing"):
        with pytest.raises(HeddleError):
            ask(page_model, "next", text=WORDS, off=[name])


def test_exchanged_activations_restore_the_difference() -> None:
    page_model = subject("decoder")
    assert page_model.tokenizer is not None
    best = {}
    for end in "abcdefghijklmnop":
        tokens = torch.tensor([page_model.tokenizer.encode(f"the warp {end}")])
        best.setdefault(int(trace(page_model.model, tokens).logits[0, -1].argmax()), f"the warp {end}")
    text, other = list(best.values())[:2]
    answer = ask(page_model, "exchanged", text=text, other=other)
    assert answer["restored"][-1][-1] == pytest.approx(1.0, abs=1e-4)
    last = page_model.tokenizer.encode(text)[-1]
    assert ask(page_model, "exchanged", text=text[:-1], added=(last,), other=other) == answer
    heads = ask(page_model, "exchanged", text=text, other=other, by="heads")
    assert len(heads["restored"]) == len(heads["restored"][0]) == 2
    with pytest.raises(HeddleError, match="both texts are continued by"):
        ask(page_model, "exchanged", text=text, other=text)
    with pytest.raises(HeddleError, match="of the same length"):
        ask(page_model, "exchanged", text="the warp", other="the")


@pytest.mark.lecture("L2-19")
@pytest.mark.parametrize("kind", ["decoder", "translation"])
@pytest.mark.parametrize("tile", [1, 3, 8])
def test_the_running_softmax_is_that_of_the_keys_so_far(kind: str, tile: int) -> None:
    """After each tile: the largest score, the sum and the weighted mean over the keys up to there; the last is the whole."""
    page_model = subject(kind)
    more = {"target": "the weft"} if kind == "translation" else {}
    layer = "decoder.1.cross" if kind == "translation" else "decoder.1.mixer"
    answer = ask(page_model, "running", text=WORDS, layer=layer, head=1, query=4, tile=tile, **more)
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS} | more, where="test"))
    steps = trace(page_model.model, text.tokens, attention=layer, **text.more).attention[layer].steps(4, 1)
    total, largest = 0.0, -math.inf
    for part in answer["tiles"]:
        scores = steps.masked[: part["last"]]
        new = float(scores.max())
        assert part["maximum"] == pytest.approx(new, rel=1e-5)
        assert part["rescale"] == pytest.approx(math.exp(largest - new), rel=1e-5)
        own = float((steps.masked[part["first"] : part["last"]] - new).exp().sum())
        assert part["total"] == pytest.approx(total * part["rescale"] + own, rel=1e-5)
        assert part["total"] == pytest.approx(float((scores - new).exp().sum()), rel=1e-5)
        output = scores.softmax(-1) @ steps.values[: part["last"]]
        torch.testing.assert_close(torch.tensor(part["output"]), output[:3], rtol=1e-4, atol=1e-6)
        total, largest = part["total"], new
    assert answer["tiles"][-1]["last"] == len(steps.scaled)
    assert answer["difference"] < 1e-5
    assert (kind == "translation") == all(part["seen"] for part in answer["tiles"])


@pytest.mark.lecture("L1-06", "L3-25")
def test_a_walk_has_the_lectures_shapes() -> None:
    """As many vectors out as in; 8 heads of 64 numbers for "Thinking Machines" and a width of 512."""
    tokenizer = train_tokenizer("bytes", [TEXT], None, ("<|endoftext|>",))
    stack = {"depth": 1, "entry": {"positions": "sinusoidal"}, "block": {"mixer": {"heads": 8}}}
    config = {"vocab_size": tokenizer.vocab_size, "dim": 512, "context": 32, "encoder": stack}
    page_model = PageModel("lecture", build(TransformerConfig.of(config)).eval(), tokenizer)
    assert DEMO[2] == "Thinking Machines"
    boxes = {box["name"]: box["shape"] for box in ask(page_model, "walk", text=DEMO[2])["boxes"]}
    count = len(DEMO[2])
    assert boxes["encoder.entry"] == boxes["encoder.output"] == [1, count, 512]
    assert boxes["encoder.0.mixer.heads"] == [1, 8, count, 64]
    assert boxes["encoder.0.mixer.weights"] == [1, 8, count, count]
    order = [name for name in boxes if name.startswith("encoder.0.mixer")]
    steps = ["input", "q", "k", "v", "scores", "weights", "heads", "output"]
    assert [name.rpartition(".")[2] for name in order][: len(steps)] == steps


@pytest.mark.lecture("L3-39")
@pytest.mark.parametrize("kind", ["decoder", "translation", "recurrent", "experts", "masked", "classes"])
def test_plates_are_the_tensors_of_the_pass(kind: str) -> None:
    """The first numbers of each, within half a step of a byte, in the order of the pass; queries, keys and values on one level."""
    page_model = subject(kind)
    more = {"target": "the weft"} if kind == "translation" else {}
    levels = ask(page_model, "plates", text=WORDS, **more)["levels"]
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS} | more, where="test"))
    names = [plate["name"] for level in levels for plate in level["plates"]]
    assert names[0] == f"{'encoder' if kind == 'translation' else page_model.stack}.entry"
    real = [name for name in names if name != "probabilities"]
    traced = trace(page_model.model, text.tokens, real, **text.more)
    assert real == list(traced)
    for level in levels:
        ends = [plate["name"].rpartition(".")[2] for plate in level["plates"]]
        assert len(ends) == 1 or ends == ["q", "k", "v"]
        for plate in level["plates"]:
            if plate["name"] in traced:
                whole = traced[plate["name"]].float()
                assert plate["shape"] == list(whole.shape)
                first = whole[0] if whole.dim() == 4 else whole[:1]
                drawn = unpacked(plate["numbers"])
                part = first[tuple(slice(size) for size in drawn.shape)]
                assert plate["most"] == pytest.approx(float(part.abs().max()))
                shown = (drawn.float() - 128) / 127 * plate["most"]
                torch.testing.assert_close(shown, part, rtol=0, atol=plate["most"] / 253)


def test_a_decoder_alone_that_translates_shows_the_pair() -> None:
    """Source, boundary and its own translation, or a target; what it writes starts after the boundary."""
    tokenizer = train_tokenizer("bytes", [TEXT], None, ("<|endoftext|>", "<start_translation>"))
    stack = {"depth": 1, "entry": {"positions": "learned"}, "block": {"mixer": {"heads": 2}}}
    config = {"vocab_size": tokenizer.vocab_size, "dim": 16, "context": 40, "decoder": stack}
    page_model = PageModel("joined", build(TransformerConfig.of(config), seed=1).eval(), tokenizer)
    boundary = tokenizer.special["<start_translation>"]
    assert ask(page_model, "about")["translates"]
    read = page_model.read(PANELS["heads"].query.of({"text": "warp", "target": "weft"}, where="test"))
    assert read.tokens[0].tolist() == [*tokenizer.encode("warp"), boundary, *tokenizer.encode("weft")]
    own = page_model.read(PANELS["heads"].query.of({"text": "warp"}, where="test")).tokens[0].tolist()
    best = translate(page_model.model, tokenizer, ["warp"], beams=1)[0][0].text
    assert own == [*tokenizer.encode("warp"), boundary, *tokenizer.encode(best)][:40]
    assert len(ask(page_model, "next", text="warp")["pieces"]) == 5
    assert not ask(subject("decoder"), "about")["translates"]


@pytest.mark.parametrize("kind", ["decoder", "translation", "recurrent", "experts"])
def test_every_box_shows_its_tensor(kind: str) -> None:
    page_model = subject(kind)
    more = {"target": "the weft"} if kind == "translation" else {}
    boxes = ask(page_model, "walk", text=WORDS, **more)["boxes"]
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS} | more, where="test"))
    traced = trace(page_model.model, text.tokens, [box["name"] for box in boxes], **text.more)
    assert [box["name"] for box in boxes] == list(traced)
    for box in boxes:
        answer = ask(page_model, "tensor", text=WORDS, name=box["name"], **more)
        whole = traced[box["name"]]
        assert box["shape"] == list(whole.shape) == answer["shape"]
        matrix = whole[0, 0] if whole.dim() == 4 else whole[0]
        torch.testing.assert_close(unpacked(answer["matrix"]), matrix.float())
        assert len(answer["rows"]) == len(matrix)
    with pytest.raises(HeddleError, match="this model has no tensor"):
        ask(page_model, "tensor", text=WORDS, name="decoder.0.nothing")


def test_a_wide_tensor_keeps_its_last_column() -> None:
    """Of more than 256 columns the first 255 and the last are sent, and the page names their numbers."""
    page_model = make_subject("decoder", dim=260)
    name = "decoder.0.residual_after"
    answer = ask(page_model, "tensor", text=WORDS, name=name)
    text = page_model.read(PANELS["heads"].query.of({"text": WORDS}, where="test"))
    whole = trace(page_model.model, text.tokens, [name])[name][0].float()
    assert answer["shape"] == [1, len(WORDS), 260]
    assert answer["columns"] == [*range(255), 259]
    torch.testing.assert_close(unpacked(answer["matrix"]), whole[:, answer["columns"]])


def test_a_head_that_pools_costs_the_same_for_every_length() -> None:
    """A classifier over one vector is computed once; without it, the same model costs the same at every length."""
    with_head, without = subject("classes").model.config, make_subject("classes", head={"kind": "none"}).model.config
    for one, other in zip(costs(with_head, [1, 8, 64]), costs(without, [1, 8, 64]), strict=True):
        assert (one.linear, one.quadratic) == (other.linear, other.quadratic)
        assert (one.once, other.once) == (2 * 16 * 3, 0)
    assert [cost.once for cost in costs(subject("words").model.config, [1, 8])] == [0, 0]


def test_texts_that_do_not_fit_are_refused() -> None:
    page_model = subject("decoder")
    for text, message in (("w" * 65, "64 learned positions"), ("a" * 70, "64 learned positions")):
        with pytest.raises(HeddleError, match=message):
            ask(page_model, "heads", text=text)
    assert ask(page_model, "heads", text="")["pieces"] == ("<|endoftext|>",)
    with pytest.raises(HeddleError, match="the text is empty"):
        ask(subject("ids"), "heads", text="")
    with pytest.raises(HeddleError, match="the text is full"):
        ask(page_model, "next", text="w" * 64, added=[3])
    with pytest.raises(HeddleError, match="there is no token 9999"):
        ask(page_model, "next", text="w", added=[9999])
