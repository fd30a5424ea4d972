"""Encoders like BERT in Hugging Face's format: one body, and a class for each head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heddle.config.embedding import DenseConfig, EmbeddingHeadConfig
from heddle.config.model import ClassifierHeadConfig, LanguageHeadConfig, NoHeadConfig, TransformerConfig
from heddle.convert.families.family import Family, FamilyOptions
from heddle.convert.fields import Data, Fields, FieldTable, Part, written
from heddle.convert.mapping import Names, TensorRow, Vocabulary, pair
from heddle.errors import HeddleError

LABELS: dict[str, Any] = {"id2label": None, "num_labels": None, "problem_type": None, "threshold": None}
# The meanings of the scores of a text classifier.
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
OLDER = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


@dataclass(frozen=True)
class Encoder:
    """A published encoder without a head.

    Attributes:
        name: its `model_type`.
        classes: the start of the names of its Hugging Face classes.
        prefix: the start of the names of its tensors in classes with a head.
        layers: the start of the names in layer `{i}`, after the prefix.
        fields: the table of its config.json without a head; its title is that of the class.
        rows: the table of its tensors.
        options: the kinds of layers in it.
        of_heads: the fields that only heads read, with their default values.
        ids: the default special ids of its classes.
        rate: the field of the classifiers' dropout, if there is one.
        copies: for each tensor that a file may store twice, the tensors that it may equal.
        instead: a tensor that older files leave out, and the one that it equals then.
    """

    name: str
    classes: str
    prefix: str
    layers: str
    fields: FieldTable
    rows: tuple[TensorRow, ...]
    options: FamilyOptions
    of_heads: Fields
    ids: Mapping[str, int] = field(default_factory=dict)
    rate: str | None = None
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)

    def family(
        self,
        ending: str,
        head: Callable[[Fields], dict[str, Any]],
        rows: tuple[TensorRow, ...],
        default_head: Any,
        also: tuple[str, ...] = (),
        unread: tuple[str, ...] = (),
    ) -> Family:
        """Its class with a head.

        Args:
            ending: the end of the class name.
            head: converts the fields to the data of the head.
            rows: the table of the head's tensors.
            default_head: a head of this kind.
            also: other classes whose files contain these weights and others.
            unread: tensors of other heads that files may contain.
        """
        architecture = self.classes + ending
        prefix = "" if ending == "Model" else self.prefix
        body = (
            self.rows
            if prefix
            else tuple(replace(row, published=row.published.removeprefix(self.prefix)) for row in self.rows)
        )
        labels = LABELS if isinstance(default_head, ClassifierHeadConfig) else {}

        def read(f: Fields, data: Data) -> None:
            data["head"] = head(f)

        def write(config: TransformerConfig) -> Data:
            return _head_fields(config.head, self.rate)

        # Other readers ask for the fixed fields.
        fixed = written(**{name: value for name, value in self.fields.fixed.items() if value is not None})
        return Family(
            name=self.name,
            architecture=architecture,
            fields=replace(
                self.fields,
                title=f"the config.json of {architecture}",
                rows=(fixed, *self.fields.rows, Part({**self.of_heads, **labels}, read, write)),
            ),
            table=(*body, *rows),
            names=Names(
                prefix=prefix,
                wrapped="" if prefix else self.prefix,
                ignorable=(prefix + "embeddings.position_ids", prefix + "embeddings.token_type_ids", *unread),
                older=OLDER,
                copies=self.copies,
                instead=self.instead,
            ),
            layers={"encoder": prefix + self.layers},
            options=replace(self.options, head=default_head),
            also=also,
            ids=self.ids,
            of_head=() if self.rate is None else (self.rate,),
        )

    def pooler(self) -> tuple[str, ...]:
        """The names of a pooler, which many files contain although their head does not read it."""
        return tuple(f"{self.prefix}pooler.dense.{part}" for part in ("weight", "bias"))


def _head_fields(head: Any, rate: str | None) -> dict[str, Any]:
    if not isinstance(head, ClassifierHeadConfig):
        return {"tie_word_embeddings": getattr(head, "tied", True)}
    names = head.names or placeholders(head.classes)
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({} if rate is None else {rate: head.dropout}),
        **problem(head),
    }


def masked_head(activation: str, eps: float, tied: bool) -> dict[str, Any]:
    """The data of a head for masked tokens, with BERT's transform."""
    return {"kind": "language", "tied": tied, "bias": True, "transform": True, "activation": activation, "eps": eps}


def classifier(f: Fields, rate: Any, **options: Any) -> dict[str, Any]:
    """The data of a classifier, from fields that include `LABELS`.

    Args:
        f: the fields.
        rate: its dropout.
        options: its pooling, its dense layer and activation.

    Raises:
        HeddleError: `id2label` is not a table that numbers its classes from 0.
    """
    labels, count = f["id2label"], f["num_labels"]
    if not isinstance(labels or {}, Mapping):
        raise HeddleError(f"id2label = {labels!r} in config.json: must be a table")
    classes = len(labels) if labels else 2 if count is None else count
    head = {"kind": "classifier", "classes": classes, "names": class_names(labels), "dropout": rate, **options}
    return head if options.get("pooling") == "none" else head | answer(f, classes)


def answer(published: Mapping[str, Any], count: Any) -> dict[str, Any]:
    """The meaning of a published text classifier's scores, given by `problem_type`, as fields of a head.

    Args:
        published: its config.json.
        count: the number of scores.

    Raises:
        HeddleError: heddle does not support this meaning.
    """
    kind, threshold = published.get("problem_type"), published.get("threshold")
    if kind is not None and (not isinstance(kind, str) or kind not in PROBLEMS):
        raise HeddleError(f"problem_type = {kind!r} in config.json: heddle supports {', '.join(PROBLEMS)}")
    if kind == "regression" and count != 1:
        raise HeddleError(
            f"problem_type = 'regression' in config.json with {count} numbers for each text: heddle supports only one"
        )
    if kind == "single_label_classification" and count == 1:
        raise HeddleError(
            "problem_type = 'single_label_classification' in config.json with a single class, which every text has"
        )
    several = kind == "multi_label_classification"
    return {"several": several, **({"threshold": threshold} if several and threshold is not None else {})}


def class_names(labels: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names of classes in an `id2label`, ordered by number; empty if they are the placeholders LABEL_0, ….

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
    """The meaning of the scores as fields of config.json. `threshold` is heddle's own field."""
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
    """The names that Hugging Face transformers gives classes without names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def pooled_head(f: Fields) -> dict[str, Any]:
    """The data of BERT's pooler."""
    return {"kind": "embedding", "pooling": "first", "dense": [{}]}


def no_head(f: Fields) -> dict[str, Any]:
    """The data of no head."""
    return {"kind": "none"}


def has_own_table(config: TransformerConfig) -> bool:
    """Whether the head is untied."""
    return not getattr(config.head, "tied", True)


USUAL_MASKED = LanguageHeadConfig(bias=True, transform=True)
USUAL_CLASSES = ClassifierHeadConfig(classes=2, pooling="first", dense=True)
USUAL_TAGS = ClassifierHeadConfig(classes=2, pooling="none")
USUAL_POOLED = EmbeddingHeadConfig(pooling="first", dense=(DenseConfig(),))
BARE = NoHeadConfig()

# The heads of RoBERTa, which later families share.
ROBERTA_MASKED = (
    TensorRow("lm_head.bias", ("head.bias",), Vocabulary()),
    TensorRow("lm_head.decoder.bias", ("head.bias",), Vocabulary(), when=has_own_table),
    *pair("lm_head.dense", "head.dense"),
    *pair("lm_head.layer_norm", "head.norm"),
    TensorRow("lm_head.decoder.weight", ("head.weight",), Vocabulary()),
)
ROBERTA_CLASSES = (*pair("classifier.dense", "head.pooler.dense"), *pair("classifier.out_proj", "head.scores"))
TAGS = pair("classifier", "head.scores")
POOLER = pair("pooler.dense", "head.dense.0.linear")


def bert_layers(prefix: str) -> tuple[TensorRow, ...]:
    """The rows of BERT's layers, whose names RoBERTa and ELECTRA share."""
    published, heddle = prefix + "encoder.layer.{i}.", "encoder.blocks.{i}."
    return (
        *pair(published + "attention.self.query", heddle + "mixer.q"),
        *pair(published + "attention.self.key", heddle + "mixer.k"),
        *pair(published + "attention.self.value", heddle + "mixer.v"),
        *pair(published + "attention.output.dense", heddle + "mixer.o"),
        *pair(published + "attention.output.LayerNorm", heddle + "mixer_residual.outside"),
        *pair(published + "intermediate.dense", heddle + "ffn.up"),
        *pair(published + "output.dense", heddle + "ffn.down"),
        *pair(published + "output.LayerNorm", heddle + "ffn_residual.outside"),
    )


def bert_tables(prefix: str) -> tuple[TensorRow, ...]:
    """The rows of BERT's tables and their norm."""
    published = prefix + "embeddings."
    return (
        TensorRow(published + "word_embeddings.weight", ("embedding.weight",), Vocabulary()),
        TensorRow(published + "position_embeddings.weight", ("encoder.entry.positions.weight",)),
        TensorRow(published + "token_type_embeddings.weight", ("encoder.entry.types.weight",)),
        *pair(published + "LayerNorm", "encoder.entry.norm"),
    )
