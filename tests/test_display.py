"""Results in a Python session: each fits on a screen, with its key figure, and says where the rest is."""

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import heddle
from heddle import account, config, data, generate, look, prove, train
from heddle.display import COLUMNS, ROWS, Listed, brief, displayed, largest, screen

PACKAGES = (
    "account",
    "bench",
    "config",
    "data",
    "generate",
    "look",
    "model",
    "predict",
    "prove",
    "text",
    "train",
    "vectors",
    "weights",
)
# Parts of a model or of a training that are read in code, never handed to a user as an answer.
INNER = {
    "Needs",
    "Pattern",
    "Scope",
    "Setting",
    "Ranks",
    "Hold",
    "Heap",
    "Lowered",
    "Relative",
    "Rotation",
    "Steps",
    "SourceFile",
}

TEXT = "the warp is held, the weft is thrown, and the heddle lifts the threads it owns. " * 20
REVIEWS = [(f"{word} {number}", label) for number in range(12) for word, label in (("held", "good"), ("torn", "bad"))]


def fits(value: Any) -> str:
    """The display of a value, which fits on a screen and shows no address."""
    for text in (repr(value), str(value)):
        lines = text.splitlines()
        assert 0 < len(lines) <= ROWS, f"{len(lines)} lines: {text[:300]}"
        assert max(map(len, lines)) <= COLUMNS, max(lines, key=len)
        assert " at 0x" not in text
    return repr(value)


def classes_in(annotation: Any) -> Iterator[type]:
    if inspect.isclass(annotation) and annotation.__module__.startswith("heddle."):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from classes_in(inner)


def results() -> dict[type, str]:
    """Each class that a public function returns, that is public itself, or that is inside one of those; and where it is from."""
    by_class: dict[type, str] = {}
    for package in PACKAGES:
        home = importlib.import_module(f"heddle.{package}")
        for name in home.__all__:
            public = getattr(home, name)
            if inspect.isclass(public):
                by_class.setdefault(public, f"{package}.{name}")
            elif callable(public):
                try:
                    returned = typing.get_type_hints(inspect.unwrap(public)).get("return")
                except NameError:  # of a class of rich, which is imported only when something is shown
                    continue
                by_class |= {each: f"{package}.{name}" for each in classes_in(returned) if each not in by_class}
    waiting = list(by_class)
    while waiting:
        outer = waiting.pop()
        if dataclasses.is_dataclass(outer) or issubclass(outer, tuple):
            for annotation in typing.get_type_hints(outer).values():
                for inner in classes_in(annotation):
                    if inner not in by_class:
                        by_class[inner] = f"a field of {outer.__name__}"
                        waiting.append(inner)
    return by_class


def test_every_public_result_is_displayed_by_the_one_function_that_cuts_to_a_screen():
    result = {
        each: place for each, place in results().items() if dataclasses.is_dataclass(each) or issubclass(each, tuple)
    }
    assert len(result) > 60
    plain = [
        f"{each.__module__}.{each.__name__} ({place})"
        for each, place in result.items()
        if each.__name__ not in INNER
        and not each.__module__.startswith("heddle.nn.mask")
        and each.__repr__.__module__ != "heddle.display"
    ]
    assert not plain, "\n".join(plain)


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    tokenizer = heddle.train_tokenizer("characters", [TEXT])
    model = heddle.build(heddle.sized(depth=9, vocab_size=tokenizer.vocab_size, context=64, dim=32))
    history = heddle.fit(model, tokenizer, TEXT, steps=8, validation=0.1)
    readers = heddle.tokenizer_for("classification", REVIEWS, kind="bytes")
    judge = heddle.model_for("classification", readers, REVIEWS, depth=1, context=32, dim=16)
    judged = heddle.fit(judge, readers, REVIEWS, steps=2, task="classification", validation=0.2)
    ids = torch.tensor([tokenizer.encode(TEXT)[:60]])
    traced = look.trace(model, ids, "*", attention="*")
    return locals()


# A result, what makes it, and what its display must contain besides fitting on a screen.
SHOWN: dict[str, tuple[Callable[[dict[str, Any]], Any], Callable[[dict[str, Any], Any], list[str]]]] = {
    "tokenizer": (lambda t: t["tokenizer"], lambda t, v: [f"{v.vocab_size} ids", "<|endoftext|>"]),
    "model": (
        lambda t: t["model"],
        lambda t, v: [f"{sum(p.numel() for p in v.parameters()):,} parameters", "9 layers", "float32 on cpu"],
    ),
    "history": (
        lambda t: t["history"],
        lambda t, v: ["8 steps", f"{v.losses[-1]:.4f}", f"{v.evaluation.loss:.4g}", "step 8"],
    ),
    "labelled": (lambda t: t["judged"], lambda t, v: [f"accuracy {v.evaluation.metrics['accuracy']:.4g}"]),
    "reports": (
        lambda t: t["history"].reports,
        lambda t, v: ["[", f"Report(step=1, steps=8, values={{'loss': {v[0].values['loss']:.6g}"],
    ),
    "losses": (lambda t: t["history"].losses, lambda t, v: [f"[{v[0]:.6g}, {v[1]:.6g}"]),
    "evaluation": (lambda t: t["history"].evaluation, lambda t, v: [f"{v.loss:.4f}", "perplexity"]),
    "report": (lambda t: t["history"].reports[0], lambda t, v: ["step=1", f"{v.values['loss']:.6g}"]),
    "config": (lambda t: t["model"].config, lambda t, v: ["depth=9", "dim=32"]),
    "mixtral": (lambda t: heddle.preset("mixtral-8x7b"), lambda t, v: ["dim=4096", "depth=32"]),
    "t5": (lambda t: heddle.preset("t5-small"), lambda t, v: ["encoder", "decoder"]),
    "overrides": (
        lambda t: heddle.preset("gpt2-small").override(
            {"decoder.overrides": [{"layers": str(n), "block": {"mixer": {"heads": 6}}} for n in range(10)]}
        ),
        lambda t, v: ["depth=12", "overrides="],
    ),
    "run": (
        lambda t: config.RunConfig.of(
            {"data": {"sources": [f"text-{n}.txt" for n in range(200)]}, "train": {"steps": 3}}
        ),
        lambda t, v: ["text-0.txt", "more", "steps=3"],
    ),
    "settings": (lambda t: config.SamplingConfig(top_k=3), lambda t, v: ["SamplingConfig(top_k=3)"]),
    "account": (lambda t: account.count(heddle.preset("gpt2-small")), lambda t, v: ["124,439,808", "render"]),
    "flops": (lambda t: account.flops(heddle.preset("gpt2-small")), lambda t, v: [f"{v.forward:,}"]),
    "memory": (lambda t: account.memory(heddle.preset("gpt2-small")), lambda t, v: [f"{v.weights['fp32']:,}"]),
    "walk": (lambda t: account.walk(t["model"].config, 1, 4), lambda t, v: ["batch=1", "more"]),
    "proof": (
        lambda t: prove.prove_config(heddle.sized(1, vocab_size=40, context=8, dim=16), name="small"),
        lambda t, v: ["Proof of small: every check passed", "causality"],
    ),
    "lens": (lambda t: look.lens(t["model"], t["ids"]), lambda t, v: [f"loss {v.losses()[-1]:5.3f}", "60 tokens"]),
    "trace": (lambda t: t["traced"], lambda t, v: [f"{len(v)} tensors", "9 attention layers", "more lines"]),
    "attention": (lambda t: t["traced"].attention["decoder.3.mixer"], lambda t, v: ["[1, 1, 60, 32]"]),
    "heads": (
        lambda t: look.score_heads(t["traced"].attention["decoder.3.mixer"], t["ids"]),
        lambda t, v: [f"{v.entropy[0]:.3f}"],
    ),
    "gradients": (
        lambda t: look.input_gradients(t["model"], t["ids"], 3, 5),
        lambda t, v: [f"{v.score:.4f}", f"position {int(v.values.abs().argmax())} "],
    ),
    "attribution": (
        lambda t: look.attribute(t["model"], t["ids"]),
        lambda t, v: [f"{float(v.score.mean()):.4f}", "token"],
    ),
    "drawing": (lambda t: look.draw(heddle.preset("t5-small")), lambda t, v: [f"{v.parameters:,}"]),
    "steer": (
        lambda t: look.steer("decoder.0.residual_after", torch.ones(32)),
        lambda t, v: ["decoder.0.residual_after"],
    ),
    "output": (lambda t: t["model"](t["ids"]), lambda t, v: ["[1, 60, 32]"]),
    "cache": (lambda t: t["model"].new_cache(300), lambda t, v: ["layers=9", "rows=300"]),
    "vectors": (
        lambda t: heddle.embed(t["model"], t["tokenizer"], ["warp"] * 90),
        lambda t, v: ["[90, 32]", "81 more"],
    ),
    "class": (
        lambda t: heddle.classify(t["judge"], t["readers"], ["held 3"])[0],
        lambda t, v: [v.label, f"{v.probability:.6g}"],
    ),
    "piece": (
        lambda t: list(generate.complete(t["model"], t["tokenizer"], ["the"], config.SamplingConfig(max_tokens=2)))[-1],
        lambda t, v: ["finish='length'"],
    ),
    "batch": (lambda t: data.next_token_batch(np.zeros((4, 9), int)), lambda t, v: ["int64 [4, 8]"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_result_fits_on_a_screen_and_shows_its_key_figure(name, trained):
    make, needed = SHOWN[name]
    value = make(trained)
    text = fits(value)
    missing = [each for each in needed(trained, value) if each not in text]
    assert not missing, f"{missing} not in\n{text}"


def test_a_list_of_results_fits_on_a_screen_however_long_it_is():
    numbers = Listed([0.5] * 5000)
    assert repr(numbers).startswith("[0.5, 0.5, ")
    assert repr(numbers).endswith(" more]")
    reports = repr(Listed([train.Report(step, 900, {"loss": 1.0}, {}) for step in range(900)]))
    for shown in (repr(numbers), reports):
        assert len(shown.splitlines()) <= ROWS
        assert max(map(len, shown.splitlines())) <= COLUMNS
    assert "Report(step=0, steps=900" in reports
    assert reports.endswith("more lines.")
    assert Listed([1, 2]) == [1, 2]
    assert repr(Listed()) == "[]"


def test_a_proof_starts_with_what_failed():
    verdicts = [prove.Verdict(f"check {number}", "EXACT") for number in range(40)]
    verdicts += [
        prove.Verdict("cache", "DIFFERENT", 0.5, 1e-6, "layer 3"),
        prove.Verdict("export", "NOT CHECKED", detail="why"),
    ]
    text = fits(prove.Proof("planted", heddle.preset("gpt2-small"), False, 1e-7, tuple(verdicts)))
    first, second, *_, last = text.splitlines()
    assert first == "Proof of planted: 1 of 42 checks FAILED"
    assert second.split()[:3] == ["cache", "DIFFERENT", "5.0e-01"]
    assert "layer 3" in second
    assert last == "… 19 more lines. The rest: .verdicts, .to_dict()"


def test_a_config_shows_what_differs_from_the_defaults_and_is_python_if_it_is_short():
    assert repr(config.SamplingConfig()) == "SamplingConfig()"
    changed = config.SamplingConfig(temperature=0.5, top_k=9)
    assert eval(repr(changed), {"SamplingConfig": config.SamplingConfig}) == changed


def test_long_values_are_cut_and_short_ones_are_whole():
    @displayed(".numbers")
    @dataclass
    class Result:
        name: str
        numbers: list[int]
        array: np.ndarray

    short = Result("a", [1, 2], np.arange(3))
    assert repr(short) == "Result(name='a', numbers=[1, 2], array=int64 [3]: [0, 1, 2])"
    whole = repr(Result("a" * 500, list(range(500)), np.zeros((300, 2))))
    assert all(each in whole for each in ("more]", "float64 [300, 2]", "'a"))
    fits(Result("a\n" * 500, list(range(500)), np.zeros((300, 2))))
    assert screen(["a"] * 30, "b").splitlines()[-1] == "… 6 more lines. The rest: b"
    assert screen(["a"] * 25, "b") == "\n".join(["a"] * 25)
    assert len(screen(["a" * 200])) == COLUMNS
    assert brief(lambda: 3) == "a function"
    assert brief(3.14159265) == "3.14159"
    assert brief({"a": torch.ones(2)}) == "{'a': float32 [2]: [1, 1]}"
    assert brief(object()) == "a object"
    assert largest({"a": 1, "b": 5, "c": 0, "d": 2}, count=1) == [("b", 5), ("2 more", 3)]


def test_a_config_is_a_tree_with_what_differs_first_and_the_defaults_folded():
    html = config.preset("gpt2-small")._repr_html_()
    tree, folded = html.split("<details>", 1)
    assert tree.startswith("<b>TransformerConfig</b><ul><li><b>vocab_size</b> = 50257</li>")
    assert "<b>decoder</b> StackConfig<ul><li><b>depth</b> = 12</li>" in tree
    assert "<li>kv_heads = None</li>" in folded
    assert "kv_heads" not in tree
    assert html.count("<ul>") == html.count("</ul>") == html.count("<details>") + html.count("Config<ul>") + 1
    assert "style" not in html  # no colour of its own, so it is legible in the dark


def test_notebook_output_is_escaped_and_bounded():
    head = {"kind": "classifier", "classes": 2, "names": ["<script>", "&"], "pooling": "mean"}
    small = {"vocab_size": 9, "dim": 8, "context": 8, "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}}}}
    odd = config.TransformerConfig.of(small | {"head": head})
    assert "<script>" not in odd._repr_html_()
    assert "&lt;script&gt;" in odd._repr_html_()
    many = config.TransformerConfig.of(
        small | {"head": head | {"classes": 5000, "names": [str(name) for name in range(5000)]}}
    )
    overrides = [{"layers": str(layer), "block": {"mixer": {"window": layer + 2}}} for layer in range(40)]
    deep = config.TransformerConfig.of(small | {"decoder": {**small["decoder"], "depth": 40, "overrides": overrides}})
    for each in (many, deep, account.count(config.preset("gpt3-175b")), look.draw(config.preset("t5-small"))):
        assert len(each._repr_html_()) < 30_000
    assert "34 more" in deep._repr_html_()
    report = account.count(config.preset("laptop-tiny"), name="<b>")._repr_html_()
    assert "<b>" not in report
    assert "&lt;b&gt;" in report
    assert f"{account.count(config.preset('laptop-tiny')).parameters.total:,} parameters" in report
