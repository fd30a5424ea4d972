"""Published encoders as they are found: their config.json, their tokenizers' pairs, files whose class is not what they hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from heddle.convert import import_model
from heddle.convert.hugging_face import families_of
from heddle.errors import HeddleError
from heddle.predict import classify, embed
from heddle.weights import load
from tests.convert.conftest import KINDS, make

SHARED = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
}  # fmt: skip
ROBERTA = {
    **SHARED, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
    "pad_token_id": 1, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265,
}  # fmt: skip
DISTILBERT = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768, "dropout": 0.1,
    "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12,
    "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False,
    "tie_weights_": True, "transformers_version": "4.10.0.dev0", "vocab_size": 30522,
}  # fmt: skip
SST = {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "output_past": True}
SUMMARY = {"summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True}
PUBLISHED: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "distilbert": (DISTILBERT, "DistilBertForMaskedLM", 512, 768),
    "sentiment": (
        {**DISTILBERT, **SST, "architectures": ["DistilBertForSequenceClassification"], "finetuning_task": "sst-2"},
        "DistilBertForSequenceClassification", 512, 768,
    ),
    "roberta": (ROBERTA, "RobertaForMaskedLM", 512, 768),
    "xlm-r": (
        {**ROBERTA, "model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"], "output_past": True,
         "position_embedding_type": "absolute", "use_cache": True, "vocab_size": 250002},
        "XLMRobertaForMaskedLM", 512, 768,
    ),
    "electra": (
        {**SHARED, **SUMMARY, "architectures": ["ElectraForPreTraining"], "embedding_size": 128, "hidden_size": 256,
         "intermediate_size": 1024, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "electra",
         "num_attention_heads": 4, "pad_token_id": 0, "position_embedding_type": "absolute", "type_vocab_size": 2,
         "vocab_size": 30522},
        "ElectraModel", 512, 128,
    ),
    "mpnet": (
        {**SHARED, "model_type": "mpnet", "architectures": ["MPNetForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
         "pad_token_id": 1, "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "relative_attention_num_buckets": 32,
         "vocab_size": 30527},
        "MPNetForMaskedLM", 512, 768,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    fields, architecture, context, width = PUBLISHED[name]
    (family,) = families_of(fields)
    config = family.to_config(fields)
    assert (family.architecture, config.context, config.encoder.entry.tokens_dim(config.dim)) == (
        architecture,
        context,
        width,
    )
    assert family.reasons(config) == ([], [])


@pytest.mark.parametrize(
    ("variant", "fields", "words"),
    [
        ("roberta", {"pad_token_id": 25}, "pad_token_id = 25"),
        ("roberta", {"is_decoder": True}, "is_decoder"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets = 16"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id = 0"),
        ("distilbert", {"activation": "hardswish"}, "activation = 'hardswish'"),
    ],
)
def test_what_they_cannot_say_is_refused(variant: str, fields: dict[str, Any], words: str) -> None:
    architecture, sizes = KINDS[variant]
    config = {"model_type": variant, "architectures": [architecture], **sizes, **fields}
    with pytest.raises(HeddleError, match=words):
        families_of(config)[0].to_config(config)


TEXTS = ["the rain is over", "It rains, mostly in spring.", "a", "warp and weft of the rain"]
MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return made


def sentencepiece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", True)
    made.decoder = decoders.Metaspace("▁", "always", True)
    trainer = trainers.UnigramTrainer(vocab_size=70, special_tokens=MARKS, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def wordpiece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece("##", cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=MARKS, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return made


def written(folder: Path, variant: str, made: tokenizers.Tokenizer, **fields: Any) -> transformers.PreTrainedModel:
    model = make(variant, vocab_size=made.get_vocab_size(), **fields)
    model.save_pretrained(folder)
    roles = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), MARKS, strict=True))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        **roles,
        cls_token="<s>",
        sep_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("variant", "maker"),
    [("roberta_classifier", byte_level), ("xlm_roberta_classifier", sentencepiece), ("mpnet_classifier", wordpiece)],
)
def test_texts_and_pairs_get_the_classes_that_transformers_gives_them(variant: str, maker: Any, tmp_path: Path) -> None:
    more = {} if variant.startswith("mpnet") else {"type_vocab_size": 1}
    more["max_position_embeddings"] = 90
    reference = written(tmp_path / "published", variant, maker(), id2label={0: "no", 1: "perhaps", 2: "yes"}, **more)
    import_model(tmp_path / "published", tmp_path / "run")
    model, tokenizer = load(tmp_path / "run", "cpu")
    assert tokenizer is not None
    pipeline = transformers.TextClassificationPipeline(
        model=reference, tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path / "published"), device="cpu"
    )
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    inputs: list[Any] = [*TEXTS, *({"text": first, "text_pair": second} for first, second in pairs)]
    expected = [{each["label"]: each["score"] for each in pipeline(one, top_k=None)} for one in inputs]
    for predicted, scores in zip(classify(model, tokenizer, [*TEXTS, *pairs]), expected, strict=True):
        assert dict(predicted.probabilities) == pytest.approx(scores, abs=1e-6)
    assert (
        len({predicted.label for predicted in classify(model, tokenizer, pairs)}) > 1
        or max(expected[0].values()) < 0.999
    )


def test_an_encoder_for_vectors_may_name_the_class_that_it_was_trained_from(tmp_path: Path) -> None:
    """As all-mpnet-base-v2 and all-distilroberta-v1 do: their files hold MPNetModel and RobertaModel."""
    reference = written(tmp_path / "published", "mpnet_model", wordpiece())
    file = tmp_path / "published" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["MPNetForMaskedLM"]}))
    report = import_model(tmp_path / "published", tmp_path / "run")
    message = "its weights are those of MPNetModel: the head of MPNetForMaskedLM is not among them"
    assert message in report["notes"]
    model, tokenizer = load(tmp_path / "run", "cpu")
    assert tokenizer is not None
    ids = torch.tensor([[0, *tokenizer.encode(TEXTS[1]), 2]])
    with torch.inference_mode():
        assert torch.allclose(model(ids).hidden, reference(ids).last_hidden_state, atol=1e-5)
    assert len(embed(model, tokenizer, TEXTS[:2], pooling="mean").vectors) == 2


def test_an_electra_brings_its_encoder(tmp_path: Path) -> None:
    kind, sizes = transformers.ElectraForPreTraining, KINDS["electra"][1]
    reference = kind(kind.config_class(**sizes)).eval()
    reference.save_pretrained(tmp_path / "published")
    report = import_model(tmp_path / "published", tmp_path / "run")
    assert "ElectraForPreTraining: read as ElectraModel, without its other heads" in report["notes"]
    tokens = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        expected = reference.electra(tokens).last_hidden_state
        assert torch.allclose(load(tmp_path / "run", "cpu").model(tokens).hidden, expected, atol=1e-6)
