"""Runs that start from published directories: the plan says what `heddle export` will, and transformers reads it back from text."""

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors, trainers

import heddle
from heddle.cli.main import run as run_command
from heddle.config import RunConfig
from heddle.convert import export_adapter, export_model, import_model
from heddle.errors import HeddleError
from heddle.predict import classify, embed
from heddle.runs import Trainer, prepare
from heddle.weights import load, save
from tests.convert.conftest import make
from tests.running import TRAIN, WORDS
from tests.thorough import first

pytestmark = pytest.mark.usefixtures("roomy")

BERTS, OTHERS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ROLES = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
LABELS = {"classification", "multi_label_classification", "regression", "token_classification"}


def published(folder: Path, variant: str) -> Path:
    """A tiny random model of transformers with a tokenizer, as a directory."""
    like_bert = variant.startswith(("bert", "distilbert", "electra"))
    begin, _, end, unknown, _ = marks = BERTS if like_bert else OTHERS
    made = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(marks), show_progress=False)
    made.train_from_iterator([" ".join(WORDS)], trainer)
    more = {"type_vocab_size": 1} if "roberta" in variant else {}
    model = make(variant, vocab_size=made.get_vocab_size(), pad_token_id=1, bos_token_id=0, eos_token_id=2, **more)
    single, pair = f"{begin} $A {end}", f"{begin} $A {end} $B:1 {end}:1"
    if not like_bert:
        pair = f"{begin} $A {end} {end} $B {end}"
    if model.config.is_encoder_decoder:
        single, pair = f"$A {end}", f"$A $B {end}"
    if model.config.is_encoder_decoder or hasattr(model.config, "type_vocab_size") or not hasattr(model, "lm_head"):
        made.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(begin, 0), (end, 2)]
        )
    model.save_pretrained(folder)
    types = ["token_type_ids"] if hasattr(model.config, "type_vocab_size") and like_bert else []
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        **dict(zip(ROLES, marks, strict=True)),
        eos_token=end,
        model_input_names=["input_ids", *types, "attention_mask"],
    ).save_pretrained(folder)
    return folder


def sources(folder: Path) -> tuple[Path, Path]:
    """A table of texts with labels of each kind, and one of words with tags."""
    draw = random.Random(0)
    rows = [draw.choices(WORDS, k=draw.randint(2, 6)) for _ in range(60)]
    table, conll = folder / "texts.tsv", folder / "words.conll"
    lines = ["text\tclass\tlength\tkinds\tother"]
    for row in rows:
        animals = sorted({"fox", "dog"} & set(row))
        lines.append(f"{' '.join(row)}\t{bool(animals)}\t{len(row) / 4}\t{'+'.join(animals)}\t{' '.join(row[:2])}")
    table.write_text("\n".join(lines))
    conll.write_text("\n\n".join("\n".join(f"{word}\t{'A' if word == 'fox' else 'O'}" for word in row) for row in rows))
    return table, conll


DATA: dict[str, tuple[dict[str, Any], str]] = {
    "classification": ({"label": "class"}, "classification"),
    "pairs": ({"label": "class", "pair": "other"}, "classification"),
    "several": ({"label": "kinds", "separator": "+"}, "multi_label_classification"),
    "regression": ({"label": "length"}, "regression"),
    "tags": ({}, "token_classification"),
    "masked": ({}, "masked"),
    "contrastive": ({"pair": "other"}, "contrastive"),
    "next_token": ({}, "next_token"),
    "prefix_lm": ({}, "prefix_lm"),
    "translation": ({"source": "text", "target": "other"}, "translation"),
}


MADE = tempfile.TemporaryDirectory(prefix="heddle-", ignore_cleanup_errors=True)


@functools.cache
def made_once(variant: str) -> Path:
    """A directory with a published model, and with the run that it is imported as."""
    folder = Path(MADE.name) / variant
    folder.mkdir()
    import_model(published(folder / "published", variant), folder / "base")
    return folder


def imported(folder: Path, variant: str, what: str) -> tuple[Path, Path]:
    """A published model as a run, and a file to learn this from."""
    shutil.copytree(made_once(variant), folder, dirs_exist_ok=True)
    table, conll = sources(folder)
    plain = folder / "plain.txt"
    plain.write_text(" ".join(random.Random(1).choices(WORDS, k=2000)))
    source = plain if what in ("masked", "next_token", "prefix_lm") else conll if what == "tags" else table
    return folder / "base", source


def tuned(folder: Path, variant: str, what: str, model: dict[str, Any] | None = None, **train: Any) -> Any:
    """The plan of a run in `folder / "run"` that starts from a published model, after two steps."""
    base, source = imported(folder, variant, what)
    data, task = DATA[what]
    settings = {
        "data": {"sources": [str(source)], **data},
        "task": {"kind": task, **({"group": 4} if task == "contrastive" else {})},
        "model": {"from": str(base), **(model or {})},
        "train": {**TRAIN, "steps": 2, "evaluate_every": 2, "products": "torch", **train},
    }
    planned = prepare(RunConfig.of(settings), folder / "run")
    Trainer(folder / "run").run()
    return planned


ENDINGS = {
    "classification": "ForSequenceClassification",
    "pairs": "ForSequenceClassification",
    "several": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "masked": "ForMaskedLM",
    "contrastive": "Model",
}
# A masked encoder learns to classify and a classifier to fill masks: no head of the directory is the task's.
ENCODERS = [
    *(("bert", "Bert", what) for what in ENDINGS if what != "masked"),
    *(("bert_tagged", "Bert", what) for what in ("classification", "masked")),
    *(("roberta", "Roberta", what) for what in ("classification", "tags")),
    ("roberta_model", "Roberta", "masked"),
    *(("distilbert", "DistilBert", what) for what in ("classification", "tags")),
    *(("electra", "Electra", what) for what in ("classification", "several")),
    ("electra_classifier", "Electra", "masked"),
    *(("mpnet", "MPNet", what) for what in ("regression", "contrastive")),
    ("xlm_roberta", "XLMRoberta", "classification"),
]


@pytest.mark.parametrize(("variant", "classes", "what"), first(6, ENCODERS))
def test_an_encoder_gets_the_head_of_its_family(
    variant: str, classes: str, what: str, tmp_path: Path, quick: None
) -> None:
    planned = tuned(tmp_path, variant, what)
    assert planned.exported.architecture == classes + ENDINGS[what]
    export_model(tmp_path / "run", tmp_path / "out")
    read = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert read.architectures == [classes + ENDINGS[what]]
    texts = ["the quick fox", "a lazy dog and then some more"]
    model, tokenizer = load(tmp_path / "run", "cpu")
    reference, info = getattr(transformers, classes + ENDINGS[what]).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    cut = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.inference_mode():
        answer = reference.eval()(**cut(texts, return_tensors="pt", padding=True))
    if what == "classification":
        assert not info["missing_keys"]
        predictions = classify(model, tokenizer, texts)
        for row, one in zip(answer.logits.softmax(-1), predictions, strict=True):
            expected = {reference.config.id2label[place]: float(value) for place, value in enumerate(row)}
            assert dict(one.probabilities) == pytest.approx(expected, abs=1e-6)
    if what == "contrastive":
        mask = cut(texts, return_tensors="pt", padding=True).attention_mask[..., None]
        mean = (answer.last_hidden_state * mask).sum(1) / mask.sum(1)
        unit = torch.nn.functional.normalize(mean, dim=-1)
        assert torch.allclose(torch.as_tensor(embed(model, tokenizer, texts).vectors), unit, atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "what", "architecture"),
    [
        ("gpt2", "next_token", "GPT2LMHeadModel"),
        ("llama", "next_token", "LlamaForCausalLM"),
        ("marian", "translation", "MarianMTModel"),
        ("bart", "translation", "BartForConditionalGeneration"),
        ("t5", "translation", "T5ForConditionalGeneration"),
        ("modernbert", "masked", "ModernBertForMaskedLM"),
        ("modernbert", "tags", None),
        ("gpt2", "prefix_lm", None),
        ("llama", "classification", None),
    ],
)
def test_the_plan_says_what_the_exporter_will(
    variant: str, what: str, architecture: str | None, tmp_path: Path, quick: None
) -> None:
    planned = tuned(tmp_path, variant, what)
    assert planned.exported.architecture == architecture
    if architecture is not None:
        export_model(tmp_path / "run", tmp_path / "out")
        assert transformers.AutoConfig.from_pretrained(tmp_path / "out").architectures == [architecture]
        return
    with pytest.raises(HeddleError) as refused:
        export_model(tmp_path / "run", tmp_path / "out")
    assert planned.exported.reason.startswith(str(refused.value))


def test_settings_of_the_head_override_the_familys_and_the_plan_names_them(tmp_path: Path, quick: None) -> None:
    planned = tuned(tmp_path, "bert", "classification", model={"head": {"pooling": "mean"}})
    assert planned.exported.architecture is None
    assert planned.exported.reason.endswith("; head.pooling=first would make it a BertForSequenceClassification")
    with pytest.raises(HeddleError, match=r"head\.pooling is mean"):
        export_model(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(
    ("variant", "what"), [("bert", "classification"), ("gpt2", "next_token"), ("bert_model", "masked")]
)
def test_the_plan_says_whether_peft_holds_the_adapter(variant: str, what: str, tmp_path: Path, quick: None) -> None:
    planned = tuned(tmp_path, variant.replace("bert_model", "bert_pooled"), what, lora={"rank": 2})
    export_model(tmp_path / "run", tmp_path / "out")
    if what == "masked":  # its new head is trained in full, and peft has no place for it
        with pytest.raises(HeddleError) as refused:
            export_adapter(tmp_path / "run", tmp_path / "adapter")
        assert planned.exported.adapter == str(refused.value)
    else:
        assert planned.exported.adapter == ""
        export_adapter(tmp_path / "run", tmp_path / "adapter")


def test_a_model_in_memory_starts_from_it_too(tmp_path: Path) -> None:
    base, _ = imported(tmp_path, "bert", "classification")
    whole, tokenizer = load(base)
    data = [("the quick fox", "yes"), ("a lazy dog", "no")] * 4
    model = heddle.model_for("classification", tokenizer, data, start=base, depth=2, context=12, dropout=0.2)
    taken, before = model.state_dict(), whole.state_dict()
    below = {name for name in taken if not name.startswith("head.")}
    assert all(torch.equal(taken[name], before[name][: len(taken[name])]) for name in below)
    assert (model.config.encoder.depth, model.config.context, model.config.encoder.block.dropout) == (2, 12, 0.2)
    heddle.fit(model, tokenizer, data, steps=2, task="classification", optimizer="adamw", progress=False)
    save(model, tmp_path / "fitted", tokenizer)
    export_model(tmp_path / "fitted", tmp_path / "out")
    read = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (type(read).__name__, read.config.num_hidden_layers) == ("BertForSequenceClassification", 2)
    with pytest.raises(HeddleError, match="has other stacks than the task 'next_token' needs"):
        heddle.model_for("next_token", tokenizer, start=base)


def test_the_command_line_says_what_is_cut_and_exported(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    base, source = imported(tmp_path, "bert", "classification")
    words = [str(source), "label=class", "task=classification", f"from={base}", "depth=2", "context=12", "steps=100"]
    run_command(["train", *words, "products=torch", "--dry-run", "--json"])
    captured = capsys.readouterr()
    plan = json.loads(captured.out)
    assert plan["export"] == {"architecture": "BertForSequenceClassification", "reason": "", "adapter": None}
    assert plan["cut"] == ["the first 2 of 3 layers of its encoder", "context 12 instead of 24"]
    assert (plan["chosen"]["warmup"], plan["chosen"]["learning_rate"]) == (10, pytest.approx(1.96e-3, rel=1e-3))
    text = " ".join(captured.err.split())
    assert "the trained model can be exported as BertForSequenceClassification" in text
    assert "the first 2 of 3 layers of its encoder, context 12 instead of 24, with adamw" in text
