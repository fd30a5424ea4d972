"""The text of a run as data: where it is, which columns it has, and its tokenizer.

The text under a field is its help in `heddle train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from heddle.config.base import Config

Labels = Literal["classes", "several", "numbers", "tokens", "roles"]
"""What a record's label is: a class, any number of classes or a number for the whole record, a class for each word of the text, or
who wrote each message of a conversation."""


TextLayout = Literal["concatenate", "documents", "pack"]
"""How a text is put into rows of tokens (see `heddle.tasks.text_rows`), or how records are (see `heddle.tasks.record_rows`)."""


Prompts = Literal["anywhere", "beginning", "needed"]
"""Where the prompts of a model stand: anywhere in a text; at its beginning, after the ids that start a text, as every text stood in
training; or there must be one, since training never showed how a text starts."""


MOST_WORKERS = 1024  # processes that tokenise
CHANGES_NOTHING = ("store", "workers")
"""Settings of `DataConfig` that change how the tokens are made, and none of them."""


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
    """Column of a third text, which is near the first but not its pair; there is none by default."""
    label: str | None = None
    """Column of the label; defaults to label. Of several labels, also the columns that have 1 or 0 for each: label=toxic,insult."""
    separator: Annotated[str, Field(min_length=1)] = ","
    """What stands between several labels in one cell of a table."""
    messages: str | None = None
    """Column of a conversation's messages; defaults to messages."""
    encoding: str = "utf-8"
    """Encoding of text files and tables, such as cp1252, latin-1 or utf-16."""
    skip_invalid: bool = False
    """Leave out what cannot be read: rows with something else in a column, lines that are no JSON, bytes in another encoding. It
    is counted and told. Otherwise training stops at the first one; heddle data lint names all."""
    unlabelled: tuple[str, ...] = ()
    """Labels that mean that a record has none, such as - or -1: it is left out. Words with such a tag are no targets."""
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
    first tokens; pack: several whole documents per row, which do not see each other. Records have a row each; with pack, several
    pairs for a decoder that translates share a row of the context."""

    store: str | None = None
    """Directory of tokens that runs share: the first run writes it, and others with the same sources, settings and tokenizer
    use it instead of tokenising again; a run that differs is refused."""
    workers: Annotated[int, Field(ge=0, le=MOST_WORKERS)] | None = None
    """Processes that tokenise; 0 or 1: only this one; defaults to one per core if there is enough text. Changes no token."""

    @field_validator("sources", "validation_sources", mode="before")
    @classmethod
    def _one_source(cls, sources: Any) -> Any:
        """`sources = "my.txt"` is a list of one."""
        return (sources,) if isinstance(sources, str) else sources

    @field_validator("unlabelled", mode="before")
    @classmethod
    def _one_label(cls, labels: Any) -> Any:
        """`unlabelled = -1` is a tuple of one text."""
        several = labels if isinstance(labels, list | tuple) else (labels,)
        return tuple(str(each) if isinstance(each, int | float) else each for each in several)

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, encoding: str) -> str:
        try:
            "".encode(encoding)  # refuses codecs of bytes, such as hex
        except LookupError:
            raise ValueError(
                f"encoding = {encoding!r} is none that Python knows, such as utf-8, cp1252 or utf-16"
            ) from None
        return encoding

    @field_validator("text", "label", mode="before")
    @classmethod
    def _numbered(cls, column: Any) -> Any:
        """`label = 4` is the fourth column of a file whose columns have no names."""
        return str(column) if type(column) is int else column

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        if self.validation_sources and self.asks_for_share:
            raise ValueError(f"validation = {self.validation} has no effect with validation_sources: leave one out")
        if self.validation_sources and not self.sources:
            raise ValueError("validation_sources need sources to train on: name them too")
        return self

    @property
    def asks_for_share(self) -> bool:
        """Whether `validation` is not the default, with which it is compared since a saved config states every field."""
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
