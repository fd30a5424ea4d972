"""Tasks as data: one config class for each, distinguished by `kind`.

The text under a field is its help in `heddle train --help`.
"""

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config
from heddle.config.chat_template import CHAT_TOKENS, PLAIN_TEMPLATE, ChatTemplateConfig
from heddle.config.data import Labels, Prompts, TextLayout

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
ClassWeights = Literal["balanced"] | tuple[Positive, ...] | dict[str, Positive] | None


class TaskSettings(Config):
    """The settings of all tasks.

    Attributes:
        families: the stacks that a model for this task may have; the first is the default without a preset.
        fields: the fields of a record that it reads: `text`, or others such as `source` and `target`.
        optional: fields that it also reads if the user names their columns.
        head: the kind of the model's head.
        special_tokens: special tokens of a tokenizer trained for this task.
        counted: the plural noun for its targets.
        without: settings of [train] that have no effect on it.
        labels: the kind of its records' labels, if it reads labels.
        prefix: possible values of `decoder.prefix` for a decoder alone; the first is the default.
        layouts: the values of `data.layout` that it supports.
        by_token: whether it scores tokens one by one, and not whole rows, so that processes can divide the tokens of a row.
    """

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("decoder",),)
    fields: ClassVar[tuple[str, ...]] = ("text",)
    optional: ClassVar[tuple[str, ...]] = ()
    head: ClassVar[str] = "language"
    special_tokens: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[str] = "tokens"
    without: ClassVar[tuple[str, ...]] = ()
    labels: ClassVar[Labels] = "classes"
    prefix: ClassVar[tuple[bool, ...]] = (False,)
    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate",)
    by_token: ClassVar[bool] = True

    @property
    def has_classes(self) -> bool:
        """Whether its labels are classes, whose names the model's head stores."""
        return "label" in self.fields and self.labels != "numbers"

    def reads(self, columns: Collection[str]) -> tuple[str, ...]:
        """The fields that it reads, given the columns that the user named."""
        return (*self.fields, *(field for field in self.optional if field in columns))

    def refuses_layout(self, layout: TextLayout, stacks: Collection[str] = ()) -> str | None:
        """Why the task does not support a layout with a model of these stacks, and what to do; None if it does.

        Args:
            layout: the value of `data.layout`.
            stacks: the model's stacks; empty if they are not known yet.
        """
        if layout in self.layouts:
            return None
        alternatives = [name for name in self.layouts if name != "concatenate"]
        instead = f", or set layout to {' or '.join(alternatives)}" if alternatives else ""
        kind = type(self).model_fields["kind"].default
        return f"layout = {layout!r} does not apply to task.kind = {kind!r}: leave it out{instead}"

    def prompts(self, layout: TextLayout, stacks: Collection[str]) -> Prompts:
        """Where prompts may start for a model with these stacks, trained on this task with rows of this layout.

        Windows of a stream start anywhere in a text; other rows of a text start at the beginning of a document.
        """
        starts_documents = self.fields == ("text",) and layout != "concatenate" and "encoder" not in stacks
        return "beginning" if starts_documents else "anywhere"

    def chat(self, before: ChatTemplateConfig | None) -> ChatTemplateConfig | None:
        """The chat template of a model trained on this task: `before`, its current one, unless the task sets another."""
        return before

    def head_table(self, before: dict[str, Any], stack: str, classes: tuple[str, ...]) -> dict[str, Any]:
        """The head of a model for this task, as a table.

        Args:
            before: the model's current head.
            stack: the stack below the head.
            classes: names of the classes; empty if there are none, or if the records have not been read.
        """
        return before if before["kind"] == self.head else {"kind": self.head}


class NextTokenConfig(TaskSettings):
    """Predict each token from those before it (L1-24)."""

    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate", "documents", "pack")

    kind: Literal["next_token"] = "next_token"
    """The task: next_token predicts each token from those before it; masked, hidden tokens from both sides; prefix_lm, the
    tokens after a prefix that is read from both sides; translation, a target text from a source text; chat, the assistant's
    messages in conversations; span_corruption, missing spans of a text;
    classification, the class of a text; multi_label_classification, which of several labels it has; token_classification, the
    class of each word; regression, a number; contrastive, embeddings of texts from pairs that belong together."""


class MaskedConfig(TaskSettings):
    """Predict hidden tokens from both sides (Devlin et al. 2019, 3.1; L3-04)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",),)
    special_tokens: ClassVar[tuple[str, ...]] = ("[MASK]",)
    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate", "documents", "pack")

    kind: Literal["masked"] = "masked"
    """Predict hidden tokens from those on both sides."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens to predict."""
    masked: Share = 0.8
    """Share of the tokens to predict that are replaced by the mask token."""
    random: Share = 0.1
    """Share of the tokens to predict that are replaced by random tokens; the rest are left as they are."""
    whole_words: bool = False
    """Predict all tokens of a word or none."""

    @model_validator(mode="after")
    def _shares(self) -> Self:
        if self.masked + self.random > 1:
            raise ValueError(
                f"masked = {self.masked} and random = {self.random} add up to more than 1; lower one of them"
            )
        return self


class PrefixLMConfig(TaskSettings):
    """Predict the tokens after a prefix whose tokens see each other in both directions (Raffel et al. 2020, 3.2.1)."""

    prefix: ClassVar[tuple[bool, ...]] = (True,)
    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate", "documents", "pack")

    kind: Literal["prefix_lm"] = "prefix_lm"
    """Predict the tokens after a prefix of random length, which is read from both sides."""


class TranslationConfig(TaskSettings):
    """Predict a target text from a source text: translation, summaries, answers, any pair of texts (L1-74 … L1-82).

    An encoder-decoder reads the source with its encoder; a decoder alone reads both in one row, with the special token
    <start_translation> between them (L1-81). Either way the target ends with the end of text, which is predicted too. With
    `decoder.prefix = true`, a decoder alone reads the source and the special token as a prefix, in both directions.
    """

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder", "decoder"), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("source", "target")
    special_tokens: ClassVar[tuple[str, ...]] = ("<|endoftext|>", "<start_translation>")
    prefix: ClassVar[tuple[bool, ...]] = (False, True)
    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate", "pack")

    kind: Literal["translation"] = "translation"
    """Predict a target text from a source text, in any two languages or none."""
    source_loss: bool = False
    """Of a decoder alone: predict the source as well as the target."""

    def refuses_layout(self, layout: TextLayout, stacks: Collection[str] = ()) -> str | None:
        """Rows with several pairs need source and target in one row, so a decoder alone."""
        if layout == "pack" and "encoder" in stacks:
            return (
                "layout = 'pack' is for a decoder alone, which reads source and target in one row: set family=decoder or a "
                "decoder's preset, or leave layout out"
            )
        return super().refuses_layout(layout, stacks)

    def prompts(self, layout: TextLayout, stacks: Collection[str]) -> Prompts:
        """A decoder alone never predicts how a source starts."""
        return "anywhere" if "encoder" in stacks else "needed"


class ChatConfig(TaskSettings):
    """Answer in a conversation: predict each message of the assistant, with its end, from everything before it.

    Whole conversations share a row with `pack`. A conversation longer than the context ends with the last answer that fits.
    """

    fields: ClassVar[tuple[str, ...]] = ("messages",)
    special_tokens: ClassVar[tuple[str, ...]] = ("<|endoftext|>", *CHAT_TOKENS)
    labels: ClassVar[Labels] = "roles"
    layouts: ClassVar[tuple[TextLayout, ...]] = ("concatenate", "pack")

    kind: Literal["chat"] = "chat"
    """Predict the assistant's messages in conversations, each from everything before it."""
    template: Annotated[str, Field(min_length=1)] | None = None
    """The chat template, in Jinja; defaults to that of the run to start from, or else to <|user|>text<|end|> and so on, whose
    special tokens are added to the tokenizer if it lacks them."""
    tokens: dict[str, str] = Field(default_factory=dict)
    """The template's variables for special tokens, such as tokens.bos_token="<s>"."""
    date: str | None = None
    """The date that the template's strftime_now formats, such as 2024-07-26; defaults to the start of the run."""

    def chat(self, before: ChatTemplateConfig | None) -> ChatTemplateConfig:
        """The task's settings, completed from the template before it, or from heddle's own."""
        changes = {name: getattr(self, name) for name in ("template", "tokens", "date") if getattr(self, name)}
        return (before or ChatTemplateConfig()).override(changes)

    def prompts(self, layout: TextLayout, stacks: Collection[str]) -> Prompts:
        """The beginning of a conversation is never predicted."""
        return "needed"

    def completed(self, before: ChatTemplateConfig | None, now: str) -> "ChatConfig":
        """The task with a complete template, and with a date if the template uses one.

        Args:
            before: the template of the model that it starts from, or None.
            now: the current time, as ISO 8601.
        """
        chat = self.chat(before)
        date = now if chat.date is None and "strftime_now" in chat.template else chat.date
        return self.override({"template": chat.template, "tokens": chat.tokens, "date": date})

    def needed_tokens(self) -> tuple[str, ...]:
        """The special tokens of heddle's own template, if the task uses it."""
        return CHAT_TOKENS if self.template in (None, PLAIN_TEMPLATE) else ()


class SpanCorruptionConfig(TaskSettings):
    """Predict spans that are missing from a text (Raffel et al. 2020, 3.1.4: T5)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder", "decoder"),)
    special_tokens: ClassVar[tuple[str, ...]] = ("<|endoftext|>", *(f"<extra_id_{number}>" for number in range(100)))

    kind: Literal["span_corruption"] = "span_corruption"
    """Predict spans that are missing from a text; each is replaced by one special token."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are missing."""
    span: Annotated[float, Field(ge=1)] = 3.0
    """Mean number of tokens in a missing span."""


class LabelSettings(TaskSettings):
    """The settings of tasks that learn labels of texts: a classifier head, and special tokens around texts."""

    head: ClassVar[str] = "classifier"
    special_tokens: ClassVar[tuple[str, ...]] = ("[CLS]", "[SEP]")
    pooling: ClassVar[dict[str, str]] = {"encoder": "first", "decoder": "last"}

    def head_table(self, before: dict[str, Any], stack: str, classes: tuple[str, ...]) -> dict[str, Any]:
        """A classifier for these classes; a preset's own classifier keeps its dense layer, its dropout and its pooling."""
        pooling = self.pooling[stack]
        inherited = dict(before) if before["kind"] == self.head else {}
        if self.labels != "several":
            inherited = {name: inherited[name] for name in inherited if name not in ("several", "threshold")}
        if "none" in (pooling, inherited.get("pooling", pooling)):
            inherited["pooling"] = pooling
        return {"pooling": pooling, **inherited, "kind": self.head, "classes": len(classes) or 2, "names": classes}


class ClassificationConfig(LabelSettings):
    """Predict the class of a text, or of a pair of texts (Devlin et al. 2019, 4.1; L1-93)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("text", "label")
    optional: ClassVar[tuple[str, ...]] = ("pair",)
    counted: ClassVar[str] = "texts"
    by_token: ClassVar[bool] = False

    kind: Literal["classification"] = "classification"
    """Predict the class of a text, or of a pair of texts."""
    class_weights: ClassWeights = None
    """How much each class counts in training: a number per class, a table of names and numbers, or balanced, by their frequency."""


class TokenClassificationConfig(LabelSettings):
    """Predict a class for each word of a text (Devlin et al. 2019, 5.3)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("text", "label")
    counted: ClassVar[str] = "words"
    labels: ClassVar[Labels] = "tokens"
    pooling: ClassVar[dict[str, str]] = {"encoder": "none", "decoder": "none"}

    kind: Literal["token_classification"] = "token_classification"
    """Predict a class for each word."""
    class_weights: ClassWeights = None
    """How much each class counts in training: a number per class, a table of names and numbers, or balanced, by their frequency."""


class MultiLabelConfig(LabelSettings):
    """Predict which of several labels a text or a pair of texts has: any number of them, each independently."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("text", "label")
    optional: ClassVar[tuple[str, ...]] = ("pair",)
    counted: ClassVar[str] = "texts"
    without: ClassVar[tuple[str, ...]] = ("label_smoothing", "z_loss")
    labels: ClassVar[Labels] = "several"
    by_token: ClassVar[bool] = False

    kind: Literal["multi_label_classification"] = "multi_label_classification"
    """Predict which of several labels a text has."""
    label_weights: ClassWeights = None
    """How much having a label counts in training, against not having it: a number per label, a table of names and numbers, or
    balanced, by their frequency."""

    def head_table(self, before: dict[str, Any], stack: str, classes: tuple[str, ...]) -> dict[str, Any]:
        """A classifier whose classes do not exclude each other."""
        return {**super().head_table(before, stack, classes), "several": True}


class RegressionConfig(LabelSettings):
    """Predict a number from a text, or from a pair of texts."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("text", "label")
    optional: ClassVar[tuple[str, ...]] = ("pair",)
    counted: ClassVar[str] = "texts"
    without: ClassVar[tuple[str, ...]] = ("label_smoothing", "z_loss")
    labels: ClassVar[Labels] = "numbers"
    by_token: ClassVar[bool] = False

    kind: Literal["regression"] = "regression"
    """Predict a number."""

    def head_table(self, before: dict[str, Any], stack: str, classes: tuple[str, ...]) -> dict[str, Any]:
        """A classifier with a single score, the number."""
        return {**super().head_table(before, stack, ()), "classes": 1}


class ContrastiveConfig(TaskSettings):
    """Embed texts so that those of a pair are near each other (Gao et al. 2021)."""

    families: ClassVar[tuple[tuple[str, ...], ...]] = (("encoder",), ("decoder",))
    fields: ClassVar[tuple[str, ...]] = ("text", "pair")
    optional: ClassVar[tuple[str, ...]] = ("negative",)
    head: ClassVar[str] = "embedding"
    special_tokens: ClassVar[tuple[str, ...]] = ("[CLS]", "[SEP]")
    counted: ClassVar[str] = "pairs"
    without: ClassVar[tuple[str, ...]] = ("label_smoothing", "z_loss")
    by_token: ClassVar[bool] = False

    kind: Literal["contrastive"] = "contrastive"
    """Embed texts, so that each text is nearest to its pair among the pairs of its group."""
    group: Annotated[int, Field(ge=2)] = 16
    """Pairs per group: the other pairs of the group are negatives; batch counts groups."""
    temperature: Positive = 0.05
    """Divisor of the cosine similarities; lower values emphasise the hardest negatives."""

    def head_table(self, before: dict[str, Any], stack: str, classes: tuple[str, ...]) -> dict[str, Any]:
        """An embedding of length 1; a model's own keeps its pooling, its dense layers and its prompts.

        Training adds no prompt to texts, so there is no default prompt either.
        """
        inherited = dict(before) if before["kind"] == self.head else {}
        pooling = "mean" if stack == "encoder" else "last"
        return {
            "pooling": pooling,
            "normalise": True,
            **inherited,
            "kind": self.head,
            "prompt": None,
            "similarity": "cosine",
        }


TaskConfig = Annotated[
    NextTokenConfig
    | MaskedConfig
    | PrefixLMConfig
    | TranslationConfig
    | ChatConfig
    | SpanCorruptionConfig
    | ClassificationConfig
    | TokenClassificationConfig
    | MultiLabelConfig
    | RegressionConfig
    | ContrastiveConfig,
    Field(discriminator="kind"),
]
