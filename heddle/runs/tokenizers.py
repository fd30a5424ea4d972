"""The tokenizer of a run: that of the run to start from, one from a file, or one trained on the text."""

from pathlib import Path
from typing import Any

from heddle.config.data import DataConfig
from heddle.config.run import RunConfig
from heddle.config.tasks import ChatConfig
from heddle.data.raw import RawDataset, Tell
from heddle.errors import HeddleError
from heddle.text.kinds import KINDS
from heddle.text.tokenizer import END_OF_TEXT, Tokenizer, add_special_tokens, load_tokenizer, train_tokenizer
from heddle.weights.checkpoints import TOKENIZER


def existing_tokenizer(data: DataConfig, start: str | None) -> Tokenizer | None:
    """The tokenizer of the run to start from, or of the file that is named; None: one is to be trained.

    Raises:
        HeddleError: `tokenizer` is neither a kind nor a file.
    """
    if start is not None and (Path(start) / TOKENIZER).is_file():
        return load_tokenizer(Path(start) / TOKENIZER)
    if data.tokenizer in KINDS:
        return None
    if not Path(data.tokenizer).exists():
        kinds = ", ".join(KINDS)
        raise HeddleError(f"tokenizer = {data.tokenizer!r} is neither one of {kinds} nor the path of a tokenizer.json")
    return load_tokenizer(Path(data.tokenizer))


def with_needed_tokens(tokenizer: Tokenizer | None, config: RunConfig) -> Tokenizer | None:
    """The same tokenizer, with the special tokens of heddle's chat template if the task needs them."""
    if tokenizer is None or not isinstance(config.task, ChatConfig):
        return tokenizer
    return add_special_tokens(tokenizer, (*config.task.needed_tokens(), *config.data.special_tokens))


def recipe(config: RunConfig) -> dict[str, Any]:
    """How a tokenizer is trained for a run, by setting."""
    data = config.data
    sized = next(kind.min_vocab_size for name, kind in KINDS.items() if name == data.tokenizer) is not None
    return {
        "tokenizer": data.tokenizer,
        "tokenizer_size": data.tokenizer_size if sized else None,
        "special_tokens": [*dict.fromkeys((*config.task.special_tokens, *data.special_tokens))],
    }


def check_tokenizer(config: RunConfig, tokenizer: Tokenizer | None) -> None:
    """Refuse settings of training a tokenizer that would have no effect.

    Args:
        config: the settings.
        tokenizer: the tokenizer that exists already, or None.
    """
    data = config.data
    resized = data.tokenizer_size != type(data).model_fields["tokenizer_size"].default
    if resized and (tokenizer is not None or recipe(config)["tokenizer_size"] is None):
        why = f"{data.tokenizer} have as many ids as there are" if tokenizer is None else "the tokenizer is given"
        raise HeddleError(f"tokenizer_size = {data.tokenizer_size} has no effect, since {why}: leave it out")
    if tokenizer is not None and (new := [name for name in data.special_tokens if name not in tokenizer.special]):
        raise HeddleError(
            f"special_tokens = {', '.join(new)}: the tokenizer is given and has no such token; leave them out, or add them to it "
            "with heddle.text.add_special_tokens"
        )


def train_on(dataset: RawDataset, config: RunConfig, tell: Tell) -> Tokenizer:
    """Train a tokenizer on a dataset."""
    data = config.data
    tell(f"training a tokenizer ({data.tokenizer})")
    # One document has no boundary to mark, so a character vocabulary holds exactly the text's characters.
    unmarked = data.tokenizer == "characters" and dataset.one_text
    special: tuple[str, ...] = () if unmarked else (END_OF_TEXT,)
    special = tuple(dict.fromkeys((*special, *config.task.special_tokens, *data.special_tokens)))
    tokenizer = train_tokenizer(data.tokenizer, dataset.texts(), data.tokenizer_size, special, tell)
    # The sizes of byte and character vocabularies are fixed by the text.
    if KINDS[tokenizer.kind].min_vocab_size is not None and tokenizer.vocab_size < data.tokenizer_size:
        tell(f"{tokenizer.vocab_size:,} ids: the text is too short for tokenizer_size = {data.tokenizer_size:,}")
    return tokenizer
