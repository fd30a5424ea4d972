"""The data of a run: its sources, their columns, and the tokenizer.

The text under a field is its help in `heddle train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heddle.config.base import Config

Labels = Literal["classes", "several", "numbers", "tokens", "roles"]
"""The kind of a record's label: a class, any number of classes or a number per record, a class per word, or the role of each
message of a conversation."""


TextLayout = Literal["concatenate", "documents", "pack"]
"""How texts (see `heddle.tasks.rows.texts`) or records (see `heddle.tasks.rows.records`) are arranged in rows of tokens."""


Prompts = Literal["anywhere", "beginning", "needed"]
"""Where prompts may start: anywhere in a text; only at its beginning, after the ids that start a text, as in training; or `needed`:
the model was not trained to start a text without a prompt."""


MOST_WORKERS = 1024  # processes that tokenise
CHANGES_NOTHING = ("store", "workers")
"""Settings of `DataConfig` that affect how tokens are computed, but not the tokens."""


class DataConfig(Config):
    """The text to train on, and its tokenizer."""

    sources: tuple[str, ...] = ()
    """Files, folders, globs, hf:NAME, or - for standard input; defaults to the Python standard library's sources."""
    validation_sources: tuple[str, ...] = ()
    """Files to evaluate on; without them, a dataset's own validation split, or a share of the sources, is held out."""
    text: str = "text"
    """Column of the text in tables: .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow."""
    source: str | None = None
    """Column of the source, or the extension of its files, such as en for train.en; defaults to source."""
    target: str | None = None
    """Column of the target, or the extension of its files; defaults to target."""
    pair: str | None = None
    """Column of the second text of a pair; defaults to pair."""
    negative: str | None = None
    """Column of a third text, similar to the first but not its pair (a hard negative); by default there is none."""
    label: str | None = None
    """Column of the label; defaults to label. Several labels may also be columns of 1 and 0 each: label=toxic,insult."""
    separator: Annotated[str, Field(min_length=1)] = ","
    """Separator between several labels in one cell of a table."""
    messages: str | None = None
    """Column of a conversation's messages; defaults to messages."""
    encoding: str = "utf-8"
    """Encoding of text files and tables, such as cp1252, latin-1 or utf-16."""
    skip_invalid: bool = False
    """Skip what cannot be read: rows with invalid columns, lines that are not JSON, bytes in another encoding. Their number is
    reported. Otherwise training stops at the first one; heddle data lint lists all."""
    unlabelled: tuple[str, ...] = ()
    """Labels of records without a label, such as - or -1, which are left out. Words with such a tag are not targets."""
    tokenizer: str = "bpe"
    """bytes, characters, words, bpe, wordpiece or unigram, trained on the text; or the path of a tokenizer.json or a run."""
    tokenizer_size: Annotated[int, Field(gt=0, le=2**20)] = 4096
    """Largest vocabulary of a tokenizer trained here; not used for bytes and characters."""
    # <|endoftext|> is added to these, except for the characters of a single document, which needs no separator.
    special_tokens: tuple[str, ...] = ()
    """Tokens that are one id each and never split, such as <start_translation>."""
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the text that is held out for evaluation."""
    layout: TextLayout = "concatenate"  # (D-32)
    """Rows of a plain text. concatenate: windows of the whole text, across documents; documents: one document per row, only its
    first tokens; pack: several whole documents per row, which do not attend to each other. Records have a row each; with pack,
    several pairs for a decoder that translates share a row of the context."""

    store: str | None = None
    """Directory of tokens that runs share: the first run writes it, and others with the same sources, settings and tokenizer
    use it instead of tokenising again; a run that differs is refused."""
    workers: Annotated[int, Field(ge=0, le=MOST_WORKERS)] | None = None
    """Processes that tokenise; 0 or 1: only this one; defaults to one per core if there is enough text. Changes no token."""

    @field_validator("sources", "validation_sources", mode="before")
    @classmethod
    def _listed_sources(cls, sources: Any) -> Any:
        """`sources = "my.txt"` is a list of one."""
        return (sources,) if isinstance(sources, str) else sources

    @field_validator("unlabelled", mode="before")
    @classmethod
    def _listed_labels(cls, labels: Any) -> Any:
        """`unlabelled = -1` is a tuple of one text."""
        items = labels if isinstance(labels, list | tuple) else (labels,)
        return tuple(str(label) if isinstance(label, int | float) else label for label in items)

    @field_validator("encoding")
    @classmethod
    def _valid_encoding(cls, encoding: str) -> str:
        try:
            "".encode(encoding)  # refuses codecs of bytes, such as hex
        except LookupError:
            raise ValueError(
                f"encoding = {encoding!r} is unknown to Python; use one such as utf-8, cp1252 or utf-16"
            ) from None
        return encoding

    @field_validator("text", "label", mode="before")
    @classmethod
    def _numbered(cls, column: Any) -> Any:
        """`label = 4` is the fourth column of a file whose columns have no names."""
        return str(column) if type(column) is int else column

    @model_validator(mode="after")
    def _consistent_split(self) -> Self:
        if self.validation_sources and self.sets_share:
            raise ValueError(f"validation = {self.validation} has no effect with validation_sources: leave one out")
        if self.validation_sources and not self.sources:
            raise ValueError("validation_sources need sources to train on: name them too")
        return self

    @property
    def sets_share(self) -> bool:
        """Whether `validation` differs from its default. A saved config sets every field, so only the values tell."""
        return bool(self.validation != DataConfig.model_fields["validation"].default)

    def columns(self) -> dict[str, str]:
        """The columns that the user named, by field."""
        named = {
            field: getattr(self, field)
            for field in ("text", "source", "target", "pair", "negative", "label", "messages")
        }
        return {
            field: name for field, name in named.items() if name not in (None, DataConfig.model_fields[field].default)
        }
