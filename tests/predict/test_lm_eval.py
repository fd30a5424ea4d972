"""heddle's model in lm-eval: the same figures, log-probabilities and texts as lm-eval's own model of the exported run."""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import heddle
from heddle.cli.main import run as run_command
from heddle.config import TransformerConfig
from heddle.convert import export_model
from heddle.errors import HeddleError
from heddle.model import build
from heddle.predict.lm_eval import HarnessModel, evaluate_tasks

WORDS = ["the", "warp", "is", "held", "and", "the", "weft", "is", "thrown", "over", "a", "loom", "with", "threads"]
CONTEXT = 24
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "texts": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "writing": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{written}}"
generation_kwargs: {until: ["held"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[HarnessModel, Any, Path]:
    """heddle's model, the harness's own of the exported run, and the folder of the run."""
    folder = tmp_path_factory.mktemp("harness")
    tokenizer = heddle.train_tokenizer("bpe", [" ".join(WORDS) * 30], 300)
    block = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}, "bias": False}, "norm": {"kind": "rms"}}
    block["ffn"] = {"kind": "gated", "bias": False}
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "dim": 16,
        "context": CONTEXT,
        "decoder": {"depth": 2, "block": block},
    }
    model = build(TransformerConfig.of({**settings, "initial": {"std": 0.4, "scale_residual": False}}))
    heddle.save(model, folder / "run", tokenizer)
    export_model(folder / "run", folder / "out")
    reference = HFLM(pretrained=str(folder / "out"), device="cpu", dtype="float32", batch_size=4)
    return (
        HarnessModel.create_from_arg_string(f"run={folder / 'run'},batch_size=3", {"device": "cpu"}),
        reference,
        folder,
    )


def request(*args: Any) -> Any:
    return SimpleNamespace(args=args)


def text(draw: random.Random, least: int, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


def test_log_probabilities_are_those_of_the_harness(both: tuple[HarnessModel, Any, Path]) -> None:
    """With contexts that are empty, that end with a blank, and that are longer than the model's; and rolling over long texts."""
    ours, reference, _ = both
    draw = random.Random(0)
    pairs = [(text(draw, 1, 12), " " + text(draw, 1, 4)) for _ in range(20)]
    pairs += [("", "the warp"), ("the warp ", "is held"), (text(draw, 60, 60), " over a loom")]
    requests = [request(*pair) for pair in pairs]
    for actual, other in zip(ours.loglikelihood(requests), reference.loglikelihood(requests), strict=True):
        assert actual == (pytest.approx(other[0], abs=1e-3), other[1])
    # A continuation that is the most probable one is told as such.
    first = reference.generate_until([request("the warp", {"max_gen_toks": 3, "until": []})])[0]
    assert (
        ours.loglikelihood([request("the warp", first)])[0][1]
        == reference.loglikelihood([request("the warp", first)])[0][1]
    )
    texts = [request(text(draw, 1, 60)) for _ in range(8)]
    expected = reference.loglikelihood_rolling(texts)
    assert ours.loglikelihood_rolling(texts) == pytest.approx(expected, abs=2e-3)
    with pytest.raises(HeddleError, match=f"but the model's context is {CONTEXT}"):
        ours.loglikelihood([request("the", text(draw, 60, 60))])


def test_texts_are_those_of_the_harness(both: tuple[HarnessModel, Any, Path]) -> None:
    """Greedy, of different lengths and stop texts, with contexts that lose their beginning."""
    ours, reference, _ = both
    draw = random.Random(1)
    requests = [request(text(draw, 1, 9), {"until": [], "max_gen_toks": 8}) for _ in range(5)]
    requests += [request(text(draw, 30, 40), {"until": [" is", "x"], "max_gen_toks": 12}) for _ in range(4)]
    texts = ours.generate_until(requests)
    assert texts == reference.generate_until(requests)
    assert len(set(texts)) > 3
    with pytest.raises(HeddleError, match="generates 24 tokens, but the model's context is 24"):
        ours.generate_until([request("the", {"max_gen_toks": 24})])
    with pytest.raises(HeddleError, match="generation_kwargs: num_beams = 4 is not supported"):
        ours.generate_until([request("the", {"num_beams": 4})])
    sampled = [request("the", {"do_sample": True, "temperature": 1.0, "top_k": 5, "max_gen_toks": 4})]
    assert ours.generate_until(sampled) == ours.generate_until(sampled)
    # lm-eval counts a temperature that is not given as 0.
    greedy, unsaid = ([request("the", {"do_sample": each, "max_gen_toks": 4})] for each in (False, True))
    assert ours.generate_until(unsaid) == ours.generate_until(greedy)
    with pytest.raises(HeddleError, match="generation_kwargs: could not convert string to float: 'warm'"):
        ours.generate_until([request("the", {"temperature": "warm"})])


def test_tasks_have_the_figures_of_the_harness(
    both: tuple[HarnessModel, Any, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Multiple choice, perplexity and writing, from local files, on the command line."""
    # lm-eval describes the machine beside its figures: it runs pip and a compiler for that, which takes seconds.
    monkeypatch.setattr("torch.utils.collect_env.get_pretty_env_info", lambda: "")
    ours, reference, folder = both
    draw = random.Random(2)
    questions = [text(draw, 2, 6) for _ in range(12)]
    written = reference.generate_until([request(each, {"until": ["held"], "max_gen_toks": 6}) for each in questions])
    rows = [
        {"question": question, "choices": [" warp", " weft is held", " a loom"], "answer": draw.randint(0, 2),
         "text": text(draw, 5, 40), "written": right if number % 2 else "something else"}
        for number, (question, right) in enumerate(zip(questions, written, strict=True))
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    where = {"data_files": {"test": str(tmp_path / "rows.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    files = []
    for name, task in TASKS.items():
        files.append(str(tmp_path / f"{name}.yaml"))
        shared = f"task: {name}\ndataset_path: json\ndataset_kwargs: {json.dumps(where)}\ntest_split: test\n"
        Path(files[-1]).write_text(shared + task)
    capsys.readouterr()
    run_command(
        [
            "eval",
            str(folder / "run"),
            *(word for file in files for word in ("--tasks", file)),
            "--device",
            "cpu",
            "--json",
        ]
    )
    scores = json.loads(capsys.readouterr().out)["tasks"]
    expected = simple_evaluate(
        model=reference,
        tasks=files,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        log_samples=False,
    )["results"]
    assert set(scores) == set(expected) == set(TASKS)
    for name, measured in scores.items():
        assert measured["examples"] == len(rows)
        figures = {key: value for key, value in measured.items() if key != "examples" and not key.endswith("_stderr")}
        their = {key.removesuffix(",none"): value for key, value in expected[name].items() if isinstance(value, float)}
        assert figures == {key: pytest.approx(their[key], rel=1e-4) for key in figures}
        assert figures
    assert {"acc", "acc_norm"} <= scores["choices"].keys()
    assert {"word_perplexity", "bits_per_byte"} <= scores["texts"].keys()
    assert scores["writing"]["exact_match"] == 0.5
    limited = evaluate_tasks(ours.model, ours._tokenizer, files[:1], limit=3)
    assert limited["choices"]["examples"] == 3


SHARED = """
task: wrong
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/rows.jsonl}, cache_dir: FOLDER/cache}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""
MISTAKES = {
    "text: [": "ParserError: while parsing",
    "- task": "ValueError: Expected YAML dict from",
    "dataset_path: json": "ValueError: Unknown config shape",
    f"{SHARED}choises: 3": "got an unexpected keyword argument 'choises'",
    f"{SHARED}process_docs: !function nowhere.find": "Cannot import module 'nowhere' for function 'find'",
    f"{SHARED}process_docs: !function beside.find": "has no function 'find'",
    f"{SHARED}test_split: other": "KeyError: 'other'",
    # Found at the second row, while requests are made.
    SHARED.replace("{{text}}", "{{ {'the warp': 1}[text] }}"): "UndefinedError: ",
}


@pytest.mark.parametrize("layout", ["concatenate", "pack", "documents"])
def test_a_request_starts_from_what_training_started_texts_with(layout: Any) -> None:
    """A prompt stands after the start of a text in runs of whole documents, as in `generate`; a text without one in all runs."""
    documents = [" ".join(WORDS[start : start + 5]) for start in range(8)] * 3
    tokenizer = heddle.train_tokenizer("characters", documents)
    model = heddle.model_for("next_token", tokenizer, depth=1, context=CONTEXT, dim=16)
    heddle.fit(model, tokenizer, documents, steps=2, layout=layout, progress=False)
    ours, end = HarnessModel(model, tokenizer), tokenizer.end_of_text
    assert end is not None
    assert ours.prefix_token_id == end

    def by_hand(before: list[int], text: str) -> float:
        ids = [*before, *tokenizer.encode(text)]
        with torch.no_grad():
            scores = model.logits(model(torch.tensor([ids])).hidden).log_softmax(-1)[0]
        return sum(float(scores[place - 1, ids[place]]) for place in range(len(before), len(ids)))

    begin = [] if layout == "concatenate" else [end]
    values = ours.loglikelihood([request("the warp", " is"), request("", "the warp")])
    assert values[0][0] == pytest.approx(by_hand([*begin, *tokenizer.encode("the warp")], " is"), abs=1e-4)
    assert values[1][0] == pytest.approx(by_hand([end], "the warp"), abs=1e-4)
    (rolled,) = ours.loglikelihood_rolling([request("the warp is")])
    assert rolled == pytest.approx(by_hand([end], "the warp is"), abs=1e-4)
    for prompt in ("the warp", ""):
        written = heddle.generate_text(model, tokenizer, prompt, max_tokens=6, temperature=0)
        assert ours.generate_until([request(prompt, {"until": [], "max_gen_toks": 6})]) == [written]


@pytest.mark.parametrize("message", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_in_a_task_is_one_line(both: tuple[HarnessModel, Any, Path], tmp_path: Path, message: str) -> None:
    ours, _, _ = both
    (tmp_path / "rows.jsonl").write_text('{"text": "the warp"}\n{"text": "is held"}\n')
    (tmp_path / "beside.py").write_text("found = 1\n")
    (tmp_path / "wrong.yaml").write_text(message.replace("FOLDER", str(tmp_path)))
    with pytest.raises(HeddleError) as refusal:
        evaluate_tasks(ours.model, ours._tokenizer, [str(tmp_path / "wrong.yaml")])
    line = str(refusal.value)
    assert line.startswith(f"lm-eval cannot evaluate {tmp_path / 'wrong.yaml'}: ")
    assert line.endswith("; check the task and the data that it names")
    assert MISTAKES[message] in line
    assert "\n" not in line


def test_what_the_model_raises_is_no_mistake_in_a_task(
    both: tuple[HarnessModel, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _, _ = both
    (tmp_path / "rows.jsonl").write_text('{"text": "the warp"}\n')
    (tmp_path / "right.yaml").write_text(SHARED.replace("FOLDER", str(tmp_path)))

    def broken(*args: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("heddle.predict.lm_eval.forward_batches", broken)
    with pytest.raises(KeyError, match="a bug"):
        evaluate_tasks(ours.model, ours._tokenizer, [str(tmp_path / "right.yaml")])


def test_a_precision_is_an_argument(both: tuple[HarnessModel, Any, Path]) -> None:
    _, _, folder = both
    model = HarnessModel.create_from_arg_string(f"run={folder / 'run'},precision=bf16", {"device": "cpu"}).model
    assert model.embedding.weight.dtype == torch.bfloat16


def test_what_the_harness_cannot_do_is_refused(both: tuple[HarnessModel, Any, Path], tmp_path: Path) -> None:
    ours, _, folder = both
    with pytest.raises(HeddleError, match=r"none.yaml: no such file"):
        evaluate_tasks(ours.model, ours._tokenizer, ["none.yaml"])
    for settings, line in (
        (f"run={folder / 'run'},dtype=float16", "model_args: dtype is unknown"),
        (f"run={folder / 'run'},batch_size=auto", "batch_size = auto: must be a whole number"),
        (f"run={folder / 'run'},precision=fp16", "precision = fp16: must be auto, fp32 or bf16"),
        ("run=nowhere", "nowhere"),
    ):
        with pytest.raises(HeddleError, match=line):
            HarnessModel.create_from_arg_string(settings)
    plain = heddle.train_tokenizer("characters", ["the warp"], special=())
    model = build(heddle.sized(1, vocab_size=plain.vocab_size, context=8, dim=16))
    with pytest.raises(HeddleError, match="no end-of-text token"):
        HarnessModel(model, plain).loglikelihood([request("", "the")])
    block = {"mixer": {"heads": 2}}
    encoder = build(
        TransformerConfig.of({"vocab_size": 9, "dim": 16, "context": 8, "encoder": {"depth": 1, "block": block}})
    )
    with pytest.raises(HeddleError, match="needs a decoder-only model"):
        HarnessModel(encoder, plain)
    assert torch.is_grad_enabled()
