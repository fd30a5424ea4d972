"""BERT (Devlin et al. 2019) in Hugging Face's format: with its pooler, with classes of texts or of tokens, or with its head for
masked tokens."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig
from heddle.config.layers import LayerNormConfig, MLPConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.families.family import (
    Family,
    FamilyOptions,
    one_block,
    our_activation,
    read_fields,
    their_activation,
)
from heddle.weights.mapping import Names, TensorRow, Vocabulary, pair

MASKED, POOLED, BOTH = "BertForMaskedLM", "BertModel", "BertForPreTraining"
CLASSIFIED, TAGGED = "BertForSequenceClassification", "BertForTokenClassification"
DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "tie_word_embeddings": True,
}  # fmt: skip
CLASSES: dict[str, Any] = {
    **DEFAULTS,
    "id2label": None,
    "num_labels": None,
    "classifier_dropout": None,
    "threshold": None,
}
# What the scores of a classifier of texts may mean.
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
# As a decoder, a BERT is causal.
FIXED = {"position_embedding_type": "absolute", "is_decoder": False}
OPTIONS = FamilyOptions(stacks=("encoder",), norm=LayerNormConfig(), ffns=(MLPConfig(),))

THEIRS, OURS = "bert.encoder.layer.{i}.", "encoder.blocks.{i}."


def _untied(config: TransformerConfig) -> bool:
    return not getattr(config.head, "tied", True)


BODY = (
    TensorRow("bert.embeddings.word_embeddings.weight", ("embedding.weight",), Vocabulary()),
    TensorRow("bert.embeddings.position_embeddings.weight", ("encoder.entry.positions.weight",)),
    TensorRow("bert.embeddings.token_type_embeddings.weight", ("encoder.entry.types.weight",)),
    *pair("bert.embeddings.LayerNorm", "encoder.entry.norm"),
    *pair(THEIRS + "attention.self.query", OURS + "mixer.q"),
    *pair(THEIRS + "attention.self.key", OURS + "mixer.k"),
    *pair(THEIRS + "attention.self.value", OURS + "mixer.v"),
    *pair(THEIRS + "attention.output.dense", OURS + "mixer.o"),
    *pair(THEIRS + "attention.output.LayerNorm", OURS + "mixer_residual.outside"),
    *pair(THEIRS + "intermediate.dense", OURS + "ffn.up"),
    *pair(THEIRS + "output.dense", OURS + "ffn.down"),
    *pair(THEIRS + "output.LayerNorm", OURS + "ffn_residual.outside"),
)
MASKED_TABLE = (
    *BODY,
    # If the head is not tied, nothing reads this bias; the next one replaces it.
    TensorRow("cls.predictions.bias", ("head.bias",), Vocabulary()),
    TensorRow("cls.predictions.decoder.bias", ("head.bias",), Vocabulary(), when=_untied),
    *pair("cls.predictions.transform.dense", "head.dense"),
    *pair("cls.predictions.transform.LayerNorm", "head.norm"),
    TensorRow("cls.predictions.decoder.weight", ("head.weight",), Vocabulary()),
)
POOLED_TABLE = (
    *(replace(row, theirs=row.theirs.removeprefix("bert.")) for row in BODY),
    *pair("pooler.dense", "head.dense.0.linear"),
)

CLASSIFIED_TABLE = (
    *BODY,
    *pair("bert.pooler.dense", "head.pooler.dense"),
    *pair("classifier", "head.scores"),
)

TAGGED_TABLE = (*BODY, *pair("classifier", "head.scores"))

# Published files often hold pretraining's other heads next to the one for masked tokens.
PRETRAINING = tuple(
    f"{name}.{part}" for name in ("bert.pooler.dense", "cls.seq_relationship") for part in ("weight", "bias")
)


def _described(f: Mapping[str, Any]) -> dict[str, Any]:
    norm = {"kind": "layer", "eps": f["layer_norm_eps"]}
    rate = f["hidden_dropout_prob"]
    block = {
        "mixer": {"kind": "attention", "heads": f["num_attention_heads"], "dropout": f["attention_probs_dropout_prob"]},
        "ffn": {
            "kind": "mlp",
            "hidden": f["intermediate_size"],
            "activation": our_activation(f["hidden_act"], "hidden_act"),
        },
        "norm": norm,
        "placement": "post",
        "dropout": rate,
    }
    entry = {"positions": "learned", "types": f["type_vocab_size"], "norm": norm, "dropout": rate}
    return {
        "vocab_size": f["vocab_size"],
        "dim": f["hidden_size"],
        "context": f["max_position_embeddings"],
        "encoder": {"depth": f["num_hidden_layers"], "block": block, "entry": entry},
        "initial": {"std": f["initializer_range"]},
    }


def masked_config(found: Mapping[str, Any]) -> TransformerConfig:
    """The `config.json` of a BERT for masked tokens as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, MASKED, DEFAULTS, FIXED, (BOTH,))
    data = _described(f)
    block = data["encoder"]["block"]
    transform = {"transform": True, "activation": block["ffn"]["activation"], "eps": block["norm"]["eps"]}
    head = {"kind": "language", "tied": f["tie_word_embeddings"], "bias": True, **transform}
    return TransformerConfig.of({**data, "head": head}, where="BERT's config.json in heddle's terms")


def pooled_config(found: Mapping[str, Any]) -> TransformerConfig:
    """The `config.json` of a BERT with its pooler as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    f = read_fields(found, POOLED, DEFAULTS, FIXED)
    head = {"kind": "embedding", "pooling": "first", "dense": [{}]}
    return TransformerConfig.of({**_described(f), "head": head}, where="BERT's config.json in heddle's terms")


def classified_config(found: Mapping[str, Any]) -> TransformerConfig:
    """The `config.json` of a BERT that classifies sequences as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    return _with_classes(found, CLASSIFIED, {"pooling": "first", "dense": True})


def tagged_config(found: Mapping[str, Any]) -> TransformerConfig:
    """The `config.json` of a BERT that classifies tokens as a heddle config.

    Raises:
        HeddleError: it has a setting that heddle does not support, or its sizes are impossible.
    """
    return _with_classes(found, TAGGED, {"pooling": "none"})


def _with_classes(found: Mapping[str, Any], architecture: str, head: Mapping[str, Any]) -> TransformerConfig:
    f = read_fields(found, architecture, CLASSES, FIXED)
    labels, count = f["id2label"], f["num_labels"]
    if not isinstance(labels or {}, Mapping):
        raise HeddleError(f"id2label = {labels!r} in config.json: must be a table")
    rate = f["hidden_dropout_prob"] if f["classifier_dropout"] is None else f["classifier_dropout"]
    classes = len(labels) if labels else 2 if count is None else count
    said = {"kind": "classifier", "classes": classes, "names": class_names(labels), "dropout": rate, **head}
    said |= {} if head["pooling"] == "none" else answer(found, classes)
    return TransformerConfig.of({**_described(f), "head": said}, where="BERT's config.json in heddle's terms")


def answer(found: Mapping[str, Any], count: Any) -> dict[str, Any]:
    """What the scores of a published classifier of texts mean, by `problem_type`, as fields of a head.

    Args:
        found: its config.json.
        count: how many scores there are.

    Raises:
        HeddleError: they mean what no head of heddle's does.
    """
    kind, threshold = found.get("problem_type"), found.get("threshold")
    if kind is not None and (not isinstance(kind, str) or kind not in PROBLEMS):
        raise HeddleError(f"problem_type = {kind!r} in config.json: heddle knows {', '.join(PROBLEMS)}")
    if kind == "regression" and count != 1:
        raise HeddleError(
            f"problem_type = 'regression' in config.json with {count} numbers for each text: heddle has only one"
        )
    if kind == "single_label_classification" and count == 1:
        raise HeddleError(
            "problem_type = 'single_label_classification' in config.json with a single class, which every text has"
        )
    several = kind == "multi_label_classification"
    return {"several": several, **({"threshold": threshold} if several and threshold is not None else {})}


def class_names(labels: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of classes in an `id2label`, in the order of their numbers; empty if they are the placeholders LABEL_0, ….

    Raises:
        HeddleError: the numbers are not 0, 1, ….
    """
    try:
        numbered = {int(number): str(name) for number, name in (labels or {}).items()}
        names = tuple(numbered[number] for number in range(len(numbered)))
    except (ValueError, KeyError):
        raise HeddleError(
            f"id2label in config.json must number its classes from 0, not {', '.join(labels or ())}"
        ) from None
    return () if names == placeholders(len(names)) else names


def problem(head: ClassifierHeadConfig) -> dict[str, Any]:
    """What the scores mean, as fields of config.json. `threshold` is heddle's own, as transformers has none."""
    if head.pooling == "none":
        return {}
    kind = (
        "multi_label_classification"
        if head.several
        else "regression"
        if head.classes == 1
        else "single_label_classification"
    )
    return {"problem_type": kind, **({"threshold": head.threshold} if head.several else {})}


def placeholders(count: int) -> tuple[str, ...]:
    """What Hugging Face transformers calls classes without names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def from_config(config: TransformerConfig) -> dict[str, Any]:
    """The nearest BERT `config.json`."""
    block, stack, head = one_block(config, "encoder"), config.stacks()["encoder"], config.head
    classes: dict[str, Any] = {}
    if isinstance(head, ClassifierHeadConfig):
        names = head.names or placeholders(head.classes)
        classes = {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
            "classifier_dropout": head.dropout,
            **problem(head),
        }
    return {
        **classes,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": stack.depth,
        "num_attention_heads": block.mixer.heads,
        "intermediate_size": block.ffn.width(config.dim),
        "hidden_act": their_activation(block.ffn.activation),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.mixer.dropout,
        "max_position_embeddings": config.context,
        "type_vocab_size": stack.entry.types,
        "initializer_range": config.initial.std,
        "layer_norm_eps": block.norm.eps,
        "tie_word_embeddings": getattr(config.head, "tied", True),
    }


def _family(
    architecture: str,
    to_config: Callable[[Mapping[str, Any]], TransformerConfig],
    table: tuple[TensorRow, ...],
    prefix: str,
    unread: tuple[str, ...],
    head: Any,
) -> Family:
    return Family(
        name="bert",
        architecture=architecture,
        to_config=to_config,
        from_config=from_config,
        table=table,
        names=Names(
            prefix=prefix,
            ignorable=(prefix + "embeddings.position_ids", *unread),
            older=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
            copies={
                "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight",),
                "cls.predictions.decoder.bias": ("cls.predictions.bias",),
            },
            instead={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        ),
        layers={"encoder": prefix + "encoder.layer.{i}."},
        options=replace(OPTIONS, head=head),
        also=(BOTH,) if architecture == MASKED else (),
        ids={"pad_token_id": 0},
    )


BERT = _family(MASKED, masked_config, MASKED_TABLE, "bert.", PRETRAINING, LanguageHeadConfig(bias=True, transform=True))
BERT_CLASSIFIER = _family(
    CLASSIFIED,
    classified_config,
    CLASSIFIED_TABLE,
    "bert.",
    (),
    ClassifierHeadConfig(classes=2, pooling="first", dense=True),
)
BERT_TAGGED = _family(TAGGED, tagged_config, TAGGED_TABLE, "bert.", (), ClassifierHeadConfig(classes=2, pooling="none"))
BERT_POOLED = _family(
    POOLED, pooled_config, POOLED_TABLE, "", (), EmbeddingHeadConfig(pooling="first", dense=(DenseConfig(),))
)
