"""Taking over and giving out: files of every sort, good and bad, and the check in transformers itself."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertForSequenceClassification,
    PreTrainedModel,
    T5ForConditionalGeneration,
)

from heddle.account.parameters import parameter_count
from heddle.config import MultiLabelConfig, RegressionConfig, SavedConfig, TransformerConfig, preset, preset_names
from heddle.convert import export_model, import_model
from heddle.convert.families import ALL, FAMILIES
from heddle.convert.families.bart import without_zeros
from heddle.convert.families.difference import resolved
from heddle.convert.fitting import choose, expressible, fits
from heddle.data import Batch, Corpus
from heddle.errors import HeddleError
from heddle.model import build
from heddle.nn import Layout
from heddle.prove.proof import check_export
from heddle.prove.subject import Subject
from heddle.tasks import DataSpec, MultiLabelTask, RegressionTask
from heddle.text import END_OF_TEXT, Tokenizer, load_gpt2_merges, train_tokenizer
from heddle.weights import load, read_config
from heddle.weights.files import verify
from heddle.weights.run import write_model
from tests import refusing
from tests.convert.conftest import shrunk
from tests.convert.toys import Toy, Toys

DATA = Path(os.environ.get("HEDDLE_DATA", Path(__file__).parents[2] / "../shared/data"))
Make = Callable[..., PreTrainedModel]
WPE, LN = "transformer.wpe.weight", "transformer.ln_f.bias"
TEXT = "A heddle decides which threads the next pass can see. Ein Webfach öffnet sich, 織る.\n" * 8


@pytest.fixture
def folder(toys: Toys, tmp_path: Path) -> Path:
    """A tiny GPT-2 as transformers writes it."""
    return Path(shutil.copytree(toys("gpt2").saved, tmp_path / "published"))


def refusal(source: Path, run: Path) -> str:
    """The one line with which an import is refused; nothing is left behind."""
    line = refusing.refusal(lambda: import_model(source, run))
    assert not run.exists()
    assert not list(run.parent.glob(".*"))
    return line


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def configure(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def make_run(path: Path, config: TransformerConfig, tokenizer: Tokenizer | None = None) -> Path:
    path.mkdir()
    write_model(path, build(config, seed=4).state_dict(), SavedConfig(model=config), tokenizer, step=3)
    return path


def small(name: str = "gpt2-small", **changes: Any) -> TransformerConfig:
    sizes = {"dim": 16, "context": 20, "decoder.depth": 2, "decoder.block.mixer.heads": 2, "vocab_size": 300}
    return preset(name).override({**sizes, **changes})


def test_an_import_is_a_run(folder: Path, tmp_path: Path) -> None:
    report = import_model(folder, tmp_path / "run")
    assert report["family"] == "gpt2"
    assert report["parameters"] == sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert any("no tokenizer" in note for note in report["notes"])
    assert read_config(tmp_path / "run").origin == str(folder)
    assert verify(tmp_path / "run") == []
    assert load(tmp_path / "run", "cpu").tokenizer is None


def test_names_without_the_prefix_are_read(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "run")

    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        # What the oldest files also have: the causal mask, its filler, and the head though it is tied.
        for layer in range(3):
            tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24, dtype=torch.uint8)
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    rewrite(folder, bare)
    import_model(folder, tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_what_scores_mean_comes_back(make_published: Make, tmp_path: Path, kind: str) -> None:
    """Also to transformers, whose own loss for labels then is heddle's."""
    count = 1 if kind == "regression" else 3
    make_published("bert_classifier", problem_type=kind, num_labels=count).save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    model = load(tmp_path / "run", "cpu").model
    task = (MultiLabelTask if count > 1 else RegressionTask)(
        MultiLabelConfig() if count > 1 else RegressionConfig(), DataSpec(Corpus(), model.config)
    )
    assert export_model(tmp_path / "run", tmp_path / "out")["checked"]
    reference = BertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (reference.config.problem_type, reference.config.num_labels) == (kind, count)
    tokens = torch.randint(5, model.vocab_size, (4, 6), generator=torch.Generator().manual_seed(0))
    targets = torch.randint(2, (4, count)[: min(count, 2)], generator=torch.Generator().manual_seed(1)).float()
    loss = task.objective(model)(Batch(tokens, Layout.whole(4, 6), targets, torch.ones(4)))
    expected = reference.eval()(tokens, labels=targets).loss.detach()
    assert float(loss.total.detach() / 4) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("kind", ["bert", "bert_pooled", "bert_classifier"])
def test_a_bert_that_does_not_say_its_class_is_told_by_its_weights(
    make_published: Make, tmp_path: Path, kind: str
) -> None:
    published = make_published(kind)
    published.save_pretrained(tmp_path / "bert")
    configure(tmp_path / "bert", architectures=None)
    import_model(tmp_path / "bert", tmp_path / "run")
    assert read_config(tmp_path / "run").model.architecture == type(published).__name__


def test_an_export_is_of_the_class_that_was_imported(make_published: Make, tmp_path: Path) -> None:
    """A Mistral that sees the whole text computes what a Llama does, and stays a Mistral where it still is one."""
    make_published("mistral-whole").save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    assert export_model(tmp_path / "run", tmp_path / "out")["family"] == "mistral"
    config = read_config(tmp_path / "run").model
    assert choose(config.override({"architecture": None}))[0].name == "llama"
    assert choose(config.override({"decoder.block.mixer.bias": True}))[0].name == "llama"  # which no Mistral has


def test_what_acts_in_training_only_is_a_note(make_published: Make, tmp_path: Path) -> None:
    make_published("mixtral", router_jitter_noise=0.1).save_pretrained(tmp_path / "published")
    assert any(
        "router_jitter_noise" in note for note in import_model(tmp_path / "published", tmp_path / "run")["notes"]
    )


def test_bert_as_it_was_first_published_is_read(make_published: Make, tmp_path: Path) -> None:
    """With gamma and beta for the norms, and with what pretraining had beside the head for masked tokens."""
    folder = tmp_path / "bert"
    make_published("bert").save_pretrained(folder)
    import_model(folder, tmp_path / "run")

    def older(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old_name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old_name] = tensors.pop(name)
        tensors |= {"bert.pooler.dense.weight": torch.ones(24, 24), "bert.pooler.dense.bias": torch.ones(24)}
        tensors |= {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()

    rewrite(folder, older)
    import_model(folder, tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")


def same_weights(tmp_path: Path, *runs: str) -> bool:
    first, again = (load(tmp_path / name, "cpu").model.state_dict() for name in runs)
    return first.keys() == again.keys() and all(torch.equal(first[name], again[name]) for name in first)


def test_bert_with_both_its_heads_is_read_for_masked_tokens(make_published: Make, tmp_path: Path) -> None:
    from transformers import BertForPreTraining

    folder = tmp_path / "bert"
    masked = make_published("bert")
    masked.save_pretrained(folder)
    import_model(folder, tmp_path / "run")
    both = BertForPreTraining(masked.config)
    both.load_state_dict(masked.state_dict(), strict=False)
    both.save_pretrained(tmp_path / "both")
    import_model(tmp_path / "both", tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")


def test_bart_without_a_head_has_scores_without_a_bias(make_published: Make, tmp_path: Path) -> None:
    """As `facebook/bart-base` is published: names without a prefix, and no bias, which is 0 then in transformers, too."""
    published = make_published("bart")
    published.final_logits_bias.data.zero_()
    published.save_pretrained(tmp_path / "bart")
    import_model(tmp_path / "bart", tmp_path / "run")
    assert not read_config(tmp_path / "run").model.head.bias
    published.model.save_pretrained(tmp_path / "bare")
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["architectures"] == ["BartModel"]
    assert "final_logits_bias" not in load_file(tmp_path / "bare" / "model.safetensors")
    import_model(tmp_path / "bare", tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")


@pytest.mark.parametrize("variant", ["bart", "marian", "bart-untied"])
@pytest.mark.parametrize("zero", [True, False])
def test_a_bias_of_zeros_is_none(make_published: Make, tmp_path: Path, variant: str, zero: bool) -> None:
    """In transformers it is a buffer, no parameter, and only models that were converted with one have numbers in it."""
    published = make_published(variant)
    if zero:
        published.final_logits_bias.data.zero_()
    published.save_pretrained(tmp_path / "theirs")
    report = import_model(tmp_path / "theirs", tmp_path / "run")
    assert read_config(tmp_path / "run").model.head.bias is not zero
    table = published.model.shared.weight
    unread = 0 if published.config.tie_word_embeddings else table.numel()  # beside a table of each stack's own
    sines = 24 * (24 + 24) if variant == "marian" else 0
    assert report["parameters"] == published.num_parameters() - unread - sines + (0 if zero else 61)
    assert parameter_count(read_config(tmp_path / "run").model) == report["parameters"]
    export_model(tmp_path / "run", tmp_path / "again")
    bias = load_file(tmp_path / "again" / "model.safetensors")["final_logits_bias"]
    assert torch.equal(bias, published.final_logits_bias)


def test_bart_base_as_published_is_the_preset() -> None:
    fields = {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
        "encoder_attention_heads": 12, "decoder_attention_heads": 12, "vocab_size": 50265,
    }  # fmt: skip
    read = FAMILIES["BartForConditionalGeneration"].to_config(fields)
    remaining, _ = without_zeros(read, {"head.bias": torch.zeros(50265)})
    with torch.device("meta"):
        reference = BartForConditionalGeneration(BartConfig(**fields))
    assert (
        parameter_count(remaining) == parameter_count(preset("bart-base")) == reference.num_parameters() == 139_420_416
    )


@pytest.mark.parametrize("variant", ["bart-untied", "marian-untied"])
def test_an_untied_head_beside_one_table_is_read_as_older_versions_wrote_it(
    make_published: Make, tmp_path: Path, variant: str
) -> None:
    """Before 5.0 encoder and decoder shared their table also then, and it was stored once."""
    published = make_published(variant)
    table = published.model.shared.weight.data
    for stack in (published.model.encoder, published.model.decoder):
        stack.embed_tokens.weight.data = table.clone()
    published.save_pretrained(tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "run")
    rewrite(
        tmp_path / "theirs", lambda t: [t.pop(f"model.{stack}.embed_tokens.weight") for stack in ("encoder", "decoder")]
    )
    import_model(tmp_path / "theirs", tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")
    assert torch.equal(load(tmp_path / "run", "cpu").model.state_dict()["source_embedding.weight"], table)
    rewrite(tmp_path / "theirs", lambda t: t.pop("model.shared.weight"))
    assert "[61, 24] is not in the file" in refusal(tmp_path / "theirs", tmp_path / "third")


def test_a_t5_that_transformers_saved_again_keeps_its_own_head(make_published: Make, tmp_path: Path) -> None:
    """Version 5 writes of every T5 that its head is tied, also beside another tensor, and reads it from what a file holds."""
    make_published("t5-own-head").save_pretrained(tmp_path / "published")
    file = tmp_path / "published" / "config.json"
    config_data = {**json.loads(file.read_text()), "tie_word_embeddings": False}  # as version 1.1 was published
    del config_data["scale_decoder_outputs"]
    file.write_text(json.dumps(config_data))
    T5ForConditionalGeneration.from_pretrained(tmp_path / "published").save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is True
    for name, run in (("published", "run"), ("saved", "again")):
        import_model(tmp_path / name, tmp_path / run)
    assert same_weights(tmp_path, "run", "again")
    config, again = (read_config(tmp_path / run).model for run in ("run", "again"))
    assert again == config
    assert (config.head.tied, config.head.scale) == (False, 1.0)


@pytest.mark.parametrize("variant", ["t5", "umt5"])
def test_a_copy_of_a_t5s_table_is_no_head_of_its_own(make_published: Make, tmp_path: Path, variant: str) -> None:
    make_published(variant).save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    rewrite(tmp_path / "published", lambda t: t.update({"lm_head.weight": t["shared.weight"].clone()}))
    import_model(tmp_path / "published", tmp_path / "again")
    assert same_weights(tmp_path, "run", "again")
    assert read_config(tmp_path / "again").model.head.tied
    rewrite(tmp_path / "published", lambda t: t.update({"lm_head.weight": torch.ones(60, 24)}))
    assert "lm_head.weight has shape [60, 24] in the file" in refusal(tmp_path / "published", tmp_path / "third")


def test_llamas_frequencies_are_left_out(make_published: Make, tmp_path: Path) -> None:
    make_published("llama").save_pretrained(tmp_path / "llama")
    frequencies = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(3) for i in range(3)}
    rewrite(tmp_path / "llama", lambda tensors: tensors.update(frequencies))
    assert import_model(tmp_path / "llama", tmp_path / "run")["family"] == "llama"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("transformer.h.1.mlp.c_fc.bias"), "transformer.h.1.mlp.c_fc.bias [96] is not in the file"),
        (lambda t: t.update(score=torch.ones(2)), "score [2] is not in the model"),
        (lambda t: t.update({"h.1.attn.bias": torch.ones(2)}), "h.1.attn.bias [2] is not in the model"),
        (lambda t: t.update({WPE: torch.ones(24, 25)}), f"{WPE} has shape [24, 25] in the file and [24, 24]"),
        (lambda t: t.update({LN: torch.ones(24, dtype=torch.int64)}), f"{LN} is I64"),
        (lambda t: t.update({LN: torch.ones(24).double()}), f"{LN} is F64"),
        (lambda t: t[LN].fill_(torch.nan), f"24 of the 24 numbers of {LN} are NaN"),
        (lambda t: t[LN][:2].fill_(torch.inf), f"2 of the 24 numbers of {LN} are NaN or infinite"),
        (lambda t: t.update({"lm_head.weight": torch.ones(61, 24)}), "ties lm_head.weight to transformer.wte.weight"),
    ],
)
def test_tensors_that_do_not_fit(folder: Path, tmp_path: Path, change: Callable[..., object], message: str) -> None:
    rewrite(folder, change)
    assert message in refusal(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "gpt22"}, "Did you mean 'gpt2'?"),
        ({"model_type": "berd"}, "heddle reads gpt2, llama, qwen2, qwen3, mistral, mixtral, qwen3_moe, qwen2_moe"),
        ({"model_type": None}, "config.json has no model_type; heddle reads gpt2, llama"),
        ({"model_type": ["gpt2"]}, "heddle reads gpt2, llama"),
        (
            {"model_type": "bert", "architectures": ["BertForQuestionAnswering"]},
            "heddle reads BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertModel",
        ),
        ({"n_layer": 24}, "the weights have 3 layers, the config says 24"),
        ({"n_layer": 999}, "the weights have 3 layers, the config says 999"),
        ({"n_layer": 10**9}, "depth = 1000000000"),
        ({"n_embd": 48, "n_head": 4}, "has shape [61, 24] in the file and [61, 48] in the model"),
        ({"n_embd": 3 * 10**11}, "dim = 300000000000: input should be less than or equal to 4194304"),
        ({"n_inner": 10**6}, "mlp.c_fc.weight has shape [24, 96] in the file and [24, 1000000] in the model"),
        ({"n_inner": 10**10}, "ffn.hidden = 10000000000: input should be less than or equal to 4194304"),
        ({"vocab_size": 62}, "[61, 24] in the file and [62, 24] in the model"),
        ({"tie_word_embeddings": False}, "lm_head.weight [61, 24] is not in the file"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
    ],
)
def test_configs_that_do_not_fit(folder: Path, tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    configure(folder, **fields)
    message = refusal(folder, tmp_path / "run")
    assert reason in message
    assert str(folder) in message


def test_places_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "add --hub" in refusal(Path("owner/name"), run)
    assert "no such directory" in refusal(folder / "config.json", run)
    (folder / "model.safetensors").rename(tmp_path / "kept")
    assert "no model.safetensors and no" in refusal(folder, run)
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert "pytorch_model.bin: a pickle" in refusal(folder, run)
    (folder / "model.safetensors").write_bytes((tmp_path / "kept").read_bytes()[:-1])
    assert "not a complete safetensors file" in refusal(folder, run)
    (folder / "config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(folder, run)
    (folder / "config.json").write_text("[]")
    assert "is a list" in refusal(folder, run)
    (folder / "config.json").unlink()
    assert "config.json: no such file" in refusal(folder, run)


def test_an_existing_run_stays(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("mine")
    with pytest.raises(HeddleError, match="already exists"):
        import_model(folder, tmp_path / "run")
    assert (tmp_path / "run" / "mine").read_text() == "mine"


def test_an_index_and_its_parts_must_agree(make_published: Make, tmp_path: Path) -> None:
    folder, run = tmp_path / "parts", tmp_path / "run"
    make_published("gpt2").save_pretrained(folder, max_shard_size="20KB")
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    part = index["weight_map"]["transformer.wte.weight"]

    def refusal_of(weight_map: object) -> str:
        file.write_text(json.dumps({**index, "weight_map": weight_map}))
        return refusal(folder, run)

    assert "has no weight_map" in refusal_of(None)
    assert "has no weight_map" in refusal_of({"transformer.wte.weight": 3})
    for name in ("../x.safetensors", "/x.safetensors", "x.bin"):
        assert "is not the name of a safetensors file" in refusal_of(
            {**index["weight_map"], "transformer.wte.weight": name}
        )
    assert "no such file" in refusal_of({**index["weight_map"], "transformer.wte.weight": "x.safetensors"})
    assert "disagree about transformer.extra" in refusal_of({**index["weight_map"], "transformer.extra": part})
    del index["weight_map"]["transformer.wpe.weight"]
    assert "disagree about transformer.wpe.weight" in refusal_of(index["weight_map"])


def test_a_tokenizer_comes_along(folder: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bytes", [])
    tokenizer.save(folder)
    notes = import_model(folder, tmp_path / "small")["notes"]
    assert any("its tokenizer is left out: it has 257 ids, but the model only 61" in note for note in notes)
    rewrite(folder, lambda t: t.update({"transformer.wte.weight": torch.ones(260, 24)}))
    configure(folder, vocab_size=260)
    assert import_model(folder, tmp_path / "run")["notes"] == []
    loaded = load(tmp_path / "run", "cpu").tokenizer
    assert loaded is not None
    assert loaded.fingerprint() == tokenizer.fingerprint()


def test_a_tokenizer_of_another_sort_is_left_out_aloud(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}, "added_tokens": []}))
    notes = import_model(folder, tmp_path / "run")["notes"]
    assert any("Unigram" in note and "left out" in note for note in notes)
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "vocab.json").write_text("{}")
    notes = import_model(folder, tmp_path / "again")["notes"]
    assert any("1 merges, but GPT-2 has 50,000" in note for note in notes)


@pytest.mark.skipif(not (DATA / "gpt2/vocab.bpe").is_file(), reason="GPT-2's merges are not here; set HEDDLE_DATA")
def test_gpt2s_own_tokenizer_files_are_read(make_published: Make, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    make_published("gpt2", vocab_size=50257).save_pretrained(folder)
    merges = DATA / "gpt2/vocab.bpe"
    shutil.copy(merges, folder / "merges.txt")
    load_gpt2_merges(merges).save(tmp_path)
    vocab = {**json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"], END_OF_TEXT: 50256}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    assert import_model(folder, tmp_path / "run")["notes"] == []
    tokenizer = load(tmp_path / "run", "cpu").tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("Hello world") == [15496, 995]

    vocab["Hello"], vocab["world"] = vocab["world"], vocab["Hello"]
    (folder / "vocab.json").write_text(json.dumps(vocab))
    assert any("vocab.json has other ids" in note for note in import_model(folder, tmp_path / "other")["notes"])


@pytest.mark.parametrize(
    "config",
    [
        small(vocab_size=300),
        small(vocab_size=300, pad_vocab_to=64),
        small("nanogpt", vocab_size=300, **{"head.tied": False, "decoder.block.dropout": 0.1}),
    ],
    ids=["plain", "padded", "nanogpt"],
)
def test_an_export_loads_with_its_tokenizer(tmp_path: Path, config: TransformerConfig) -> None:
    tokenizer = train_tokenizer("bpe", [TEXT], 300)
    run = make_run(tmp_path / "run", config, tokenizer)
    report = export_model(run, tmp_path / "out")
    assert (report["family"], report["checked"], report["notes"]) == ("gpt2", True, [])
    assert report["difference"] <= 1e-5
    record = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (record["checked"], record["difference"]) == (True, report["difference"])
    assert verify(tmp_path / "out") == []

    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = reference(TEXT, verbose=False)["input_ids"]
    assert ids == tokenizer.encode(TEXT)
    assert reference.decode(ids) == TEXT
    assert reference.eos_token_id == tokenizer.end_of_text
    assert len(reference) == tokenizer.vocab_size
    assert reference.model_max_length == 20
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.end_of_text
    assert model.config.vocab_size == 300
    ours = load(run, "cpu").model
    tokens = torch.tensor([ids[:20]])
    with torch.inference_mode():
        difference = (ours.logits(ours(tokens).hidden)[..., :300] - model(tokens).logits).abs().max()
    assert difference < 1e-5

    import_model(tmp_path / "out", tmp_path / "back")
    assert resolved(read_config(tmp_path / "back").model) == resolved(config)
    back = load(tmp_path / "back", "cpu")
    assert back.tokenizer is not None
    assert back.tokenizer.fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize("kind", ["bytes", "characters"])
@pytest.mark.parametrize("special", [(), (END_OF_TEXT,)])
def test_small_tokenizers_are_exported_as_they_are(tmp_path: Path, kind: str, special: tuple[str, ...]) -> None:
    tokenizer = train_tokenizer(kind, [TEXT], special=special)
    export_model(make_run(tmp_path / "run", small(), tokenizer), tmp_path / "out")
    reference = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = reference(TEXT, verbose=False)["input_ids"]
    assert ids == tokenizer.encode(TEXT)
    assert reference.decode(ids) == TEXT
    assert len(reference) == tokenizer.vocab_size


def test_a_model_no_family_knows_is_refused_with_what_the_nearest_lack(tiny: TransformerConfig, tmp_path: Path) -> None:
    config = tiny.override({"decoder.block.ffn": {"kind": "mlp"}})
    with pytest.raises(HeddleError) as caught:
        export_model(make_run(tmp_path / "run", config), tmp_path / "out")
    message = str(caught.value)
    assert message == (
        "no Hugging Face family can express this model. "
        "Qwen3ForCausalLM: decoder.block.ffn.kind is mlp, Qwen3ForCausalLM has gated | "
        "Qwen3MoeForCausalLM: decoder.block.ffn.kind is mlp, Qwen3MoeForCausalLM has moe. "
        "To export it, train a model with the values that one class has"
    )
    assert not (tmp_path / "out").exists()
    _, lines = expressible(config)
    assert len(lines) == 3
    _, every = expressible(config, all_families=True)
    assert len(every) == len(ALL)
    assert {line.split(":")[0] for line in every} == set(FAMILIES)
    assert any("GPT2LMHeadModel: " in line and "decoder.entry.positions is none" in line for line in every)
    assert "T5ForConditionalGeneration: the model has a decoder, but" in "".join(every)


@pytest.mark.parametrize("name", preset_names())
def test_why_a_model_cannot_be_exported_can_be_read(name: str) -> None:
    """One line about single values: all of the nearest family with the same stacks, and of others while it stays short."""
    config = preset(name)
    architecture, lines = expressible(config)
    if architecture is not None:
        assert (choose(config)[0].architecture, lines) == (architecture, [])
        return
    with pytest.raises(HeddleError) as caught:
        choose(config)
    message = str(caught.value)
    assert "{" not in message
    reasons = message.split(". ", 1)[1]
    assert reasons.startswith(fits(config)[0].whole())
    assert len(message) < 400 or "|" not in reasons
    if "; " not in lines[0].removesuffix(" more"):
        assert reasons.startswith(lines[0])
    assert 1 <= len(lines) <= 3
    stacks = {family.architecture: set(family.options.stacks) for family in ALL}
    assert all(stacks[line.split(":")[0]] == set(config.stacks()) for line in lines)
    counts = [len(FAMILIES[line.split(":")[0]].reasons(config)[0]) for line in lines]
    assert counts == sorted(counts)
    assert all(line.count(" has ") <= 3 for line in lines)


def test_differences_of_layers_are_those_of_single_values() -> None:
    """Beside what their block has, and counted once however many layers there are."""
    windows = {"decoder.depth": 6, "decoder.overrides": [{"layers": "1::2", "block": {"mixer": {"window": 5}}}]}
    config = small(**windows)
    reasons, lost = FAMILIES["GPT2LMHeadModel"].reasons(config)
    assert reasons == [f"decoder.layers.{i}.mixer.window is 5, GPT2LMHeadModel has none" for i in (1, 3, 5)]
    assert lost == []
    assert expressible(config)[1][0] == "GPT2LMHeadModel: decoder.layers.1.mixer.window is 5, GPT2LMHeadModel has none"
    rates = [{"layers": str(i), "block": {"dropout": i / 10}} for i in range(1, 6)]
    family, notes = choose(small(**{"decoder.depth": 6, "decoder.overrides": rates}))
    assert family.architecture == "GPT2LMHeadModel"
    assert notes[0] == "lost (matters only in training): decoder.layers.1.dropout is 0.1, GPT2LMHeadModel has 0.0"
    assert len(notes) == 5


def test_a_layer_of_another_kind_is_one_difference() -> None:
    override = [{"layers": "1", "block": {"ffn": {"kind": "gated", "hidden": 64}, "norm": {"eps": 0.01}}}]
    reasons, _ = FAMILIES["GPT2LMHeadModel"].reasons(small(**{"decoder.overrides": override}))
    assert reasons == [
        "decoder.layers.1.ffn.kind is gated, GPT2LMHeadModel has mlp",
        "decoder.layers.1.norm.eps is 0.01, GPT2LMHeadModel has 1e-05",
    ]


def test_an_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    out = make_run(tmp_path / "out", small())
    with pytest.raises(HeddleError, match="already exists"):
        export_model(make_run(tmp_path / "run", small()), out)


@pytest.mark.parametrize("slip", ["activation", "weights"])
def test_an_export_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slip: str
) -> None:
    from heddle.convert import published

    write = published.write_json

    def slipped(path: Path, data: dict[str, Any]) -> None:
        changed = {"activation_function": "gelu"} if slip == "activation" else {"tie_word_embeddings": False}
        write(path, {**data, **changed} if path.name == "config.json" else data)

    monkeypatch.setattr(published, "write_json", slipped)
    config = small(**{"initial.std": 0.5})
    with pytest.raises(HeddleError, match="differ by" if slip == "activation" else "cannot place lm_head.weight"):
        export_model(make_run(tmp_path / "run", config), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_without_transformers_an_export_says_that_it_is_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", small())
    monkeypatch.setitem(sys.modules, "transformers", None)
    report = export_model(run, tmp_path / "out")
    assert report["checked"] is False
    assert report["difference"] is None
    assert report["notes"] == ["not checked: Hugging Face transformers is not installed"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["checked"] is False


def test_a_transformers_without_the_class_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one, for example: the export is written, and says so, as does a proof."""
    family = replace(FAMILIES["GPT2LMHeadModel"], architecture="NewForCausalLM")
    monkeypatch.setattr("heddle.convert.hugging_face.choose", lambda config: (family, []))
    report = export_model(make_run(tmp_path / "run", small()), tmp_path / "out")
    (note,) = report["notes"]
    assert re.fullmatch(r"not checked: Hugging Face transformers [\d.]+ has no NewForCausalLM", note)
    assert report["checked"] is False
    verdict = check_export(Subject(build(small())))
    assert (verdict.word, verdict.detail) == ("NOT CHECKED", note.removeprefix("not checked: "))


def exported(config: TransformerConfig, tmp_path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """The class that an export chose, and what it wrote; the logits were compared on the way."""
    report = export_model(make_run(tmp_path / "run", config), tmp_path / "out")
    assert report["checked"]
    assert report["difference"] <= 1e-5
    (architecture,) = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"]
    return architecture, load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.lecture("L2-75")
def test_shared_experts_without_a_gate_are_exported_exactly(tmp_path: Path) -> None:
    """Qwen2-MoE has a gate on its shared expert: at 0 it is half open, so what comes out of it is written twice as large."""
    ffn = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "gated", "hidden": 16}, "shared": 2}
    config = shrunk("llama-7b", **{"decoder.block.ffn": ffn, "initial.std": 0.3})
    architecture, written = exported(config, tmp_path)
    assert architecture == "Qwen2MoeForCausalLM"
    ours = load(tmp_path / "run", "cpu").model.state_dict()
    down = written["model.layers.1.mlp.shared_expert.down_proj.weight"]
    assert down.shape == (24, 32)
    assert torch.equal(down, 2 * ours["decoder.blocks.1.ffn.shared.down.weight"])
    assert not written["model.layers.1.mlp.shared_expert_gate.weight"].any()

    import_model(tmp_path / "out", tmp_path / "back")
    model, back = (load(tmp_path / name, "cpu").model for name in ("run", "back"))
    assert back.config.decoder.block.ffn.shared_gate
    tokens = torch.randint(61, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits, again = (each.logits(each(tokens).hidden) for each in (model, back))
    assert (logits - again).abs().max() < 1e-5 * logits.abs().max()


def test_ungated_shared_experts_are_exported_beside_layers_without_experts(tmp_path: Path) -> None:
    ffn = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "gated", "hidden": 16}, "shared": 2}
    dense = [{"layers": "0", "block": {"ffn": {"kind": "gated", "hidden": 20}}}]
    changes = {"decoder.depth": 3, "decoder.block.ffn": ffn, "decoder.overrides": dense, "initial.std": 0.3}
    architecture, written = exported(shrunk("llama-7b", **changes), tmp_path)
    assert architecture == "Qwen2MoeForCausalLM"
    assert written["model.layers.0.mlp.gate_proj.weight"].shape == (20, 24)
    gates = [name for name in written if name.endswith("shared_expert_gate.weight")]
    assert sorted(gates) == [f"model.layers.{i}.mlp.shared_expert_gate.weight" for i in (1, 2)]


@pytest.mark.parametrize(
    ("name", "changes", "architecture"),
    [
        ("llama-7b", {"decoder.block.mixer.relative": {"kind": "rotary", "base": 50.0, "scaling": {"kind": "ntk", "factor": 4.0}}},
         "LlamaForCausalLM"),
        ("llama-7b", {"decoder.block.mixer.bias": ["q", "k", "v"]}, "Qwen2ForCausalLM"),
        ("bart-base", {"head.tied": False}, "BartForConditionalGeneration"),
        ("bart-base", {"head.tied": False, "source_vocab_size": 61, "pad_vocab_to": 16}, "BartForConditionalGeneration"),
        ("vaswani-base", {"encoder.entry.positions": "sinusoidal_halves", "source_vocab_size": 40, "pad_vocab_to": 16,
                          "decoder.entry.positions": "sinusoidal_halves"}, "MarianMTModel"),
        ("mistral-7b", {"decoder.block.mixer.window": 5}, "MistralForCausalLM"),
        ("mixtral-8x7b", {}, "MixtralForCausalLM"),
        ("qwen3-30b-a3b", {"pad_vocab_to": 16}, "Qwen3MoeForCausalLM"),
        ("falcon-40b", {"decoder.block.mixer.bias": True, "decoder.block.ffn.bias": True}, "FalconForCausalLM"),
        ("falcon-40b", {"decoder.block.mixer.kv_heads": None, "decoder.block.mixer.bias": True,
                        "decoder.block.ffn.bias": True, "head.tied": False}, "GPTNeoXForCausalLM"),
        ("t5-small", {"head.scale": 24**-0.5, "pad_vocab_to": 16}, "T5ForConditionalGeneration"),
        ("t5-small", {"head.scale": 1.0, "head.tied": False}, "T5ForConditionalGeneration"),
        ("t5-small", {"head.scale": 24**-0.5, "head.tied": False}, "T5ForConditionalGeneration"),
        ("t5-small", {"head.scale": 24**-0.5, "head.tied": False, "encoder.block.mixer.relative.shared": False,
                      "decoder.block.mixer.relative.shared": False}, "UMT5ForConditionalGeneration"),
        ("bert-base-like", {}, "BertModel"),
        ("bart-base", {"pad_vocab_to": 16}, "BartForConditionalGeneration"),
        ("vaswani-base", {"encoder.entry.positions": "sinusoidal_halves",
                          "decoder.entry.positions": "sinusoidal_halves"}, "MarianMTModel"),
    ],
)  # fmt: skip
def test_presets_are_exported_as_what_they_are(
    tmp_path: Path, name: str, changes: dict[str, Any], architecture: str
) -> None:
    exported_class, _ = exported(shrunk(name, **{"initial": {"std": 0.2}, **changes}), tmp_path)
    assert exported_class == architecture
    import_model(tmp_path / "out", tmp_path / "back")
    written, ours = (read_config(tmp_path / folder).model for folder in ("back", "run"))
    assert written.stacks().keys() == ours.stacks().keys()


def test_an_encoder_decoder_is_told_where_to_begin(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bytes", [])
    config = shrunk("t5-small", **{"head.scale": 24**-0.5, "vocab_size": 257})
    export_model(make_run(tmp_path / "run", config, tokenizer), tmp_path / "out")
    for file in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / file).read_text())["decoder_start_token_id"] == tokenizer.end_of_text


def test_every_family_names_the_depth_that_does_not_fit(one_of_each: Toy, tmp_path: Path) -> None:
    shutil.copytree(one_of_each.saved, tmp_path / "published")
    fields = json.loads((tmp_path / "published" / "config.json").read_text())
    names = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")
    for name in (name for name in names if name in fields):
        if one_of_each.published.config.model_type in ("bart", "marian") and name == "num_hidden_layers":
            continue  # says a second time what encoder_layers says
        configure(tmp_path / "published", **{**fields, "layer_types": None, "no_rope_layers": None, name: 7})
        message = refusal(tmp_path / "published", tmp_path / "run")
        assert "layers" in message
        assert "the config says 7" in message


def test_every_family_misses_and_refuses_tensors(one_of_each: Toy, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    shutil.copytree(one_of_each.saved, folder)
    name = min(key for key in load_file(folder / "model.safetensors") if ".1." in key)
    rewrite(folder, lambda t: t.update({"extra.weight": torch.ones(2)}))
    assert "extra.weight" in refusal(folder, tmp_path / "run")
    rewrite(folder, lambda t: [t.pop("extra.weight"), t.pop(name)])
    assert f"{name} " in refusal(folder, tmp_path / "run")


def test_what_is_lost_is_said(make_published: Make, tmp_path: Path) -> None:
    make_published("llama").save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    config = read_config(tmp_path / "run").model.override({"decoder.entry.dropout": 0.25})
    family, notes = choose(config)
    assert family.name == "llama"
    assert notes == ["lost (matters only in training): decoder.entry.dropout is 0.25, LlamaForCausalLM has 0.0"]


def test_rounding_refuses_no_export_and_a_slightly_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights so large that both sides' own rounding error in fp32 is over 1e-5: what they differ by is measured against it."""
    from heddle.convert import published

    config = shrunk("t5-small", **{"head.scale": 24**-0.5, "initial": {"std": 2.0}})
    report = export_model(make_run(tmp_path / "run", config), tmp_path / "out")
    assert 1e-5 < report["difference"] <= report["allowed"] < 1e-2
    write = published.to_published  # type: ignore[attr-defined]

    def slipped(*args: Any) -> dict[str, torch.Tensor]:
        tensors = write(*args)
        first = next(each for each in tensors if each.endswith("SelfAttention.q.weight"))
        return {**tensors, first: tensors[first] * 1.01}

    monkeypatch.setattr(published, "to_published", slipped)
    with pytest.raises(HeddleError, match="of the largest, but rounding explains"):
        export_model(tmp_path / "run", tmp_path / "wrong")
