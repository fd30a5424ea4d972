"""What a new store holds out for validation, in words."""

from heddle.data.record_store import RecordStore
from heddle.data.store import TokenStore
from heddle.errors import pluralize


def describe_split(store: TokenStore) -> str:
    """Describe the held-out part of a text in one line."""
    share, requested, cut = store.split["held_out"], store.split["validation"], store.split["cut"]
    if requested is None:
        return f"validation: {pluralize(store.validation.documents, 'document')} of validation_sources, {share:.1%} of all text"
    documents = store.train.documents + store.validation.documents - cut
    how = {
        "characters": "the end of the text",
        "documents": f"{store.validation.documents:,} of {documents:,} documents, sampled by content hash",
        "both": f"the ends of {cut:,} of {documents:,} documents, too few or too uneven to hold out whole ones alone",
    }[store.split["by"]]
    is_close = abs(share - requested) <= 0.25 * min(requested, 1 - requested)
    note = "" if is_close else f"; validation = {requested:g} was requested"
    return f"held out for validation: {share:.1%} of the text, {how}{note}"


def describe_overlap(store: TokenStore) -> list[str]:
    """How many of the held-out texts are also in the training text, in one line; empty if there are none."""
    repeated = store.split["overlap"]
    texts = pluralize(store.validation.documents, "text")
    overlap = (
        f"{repeated:,} of {texts} held out {'is' if repeated == 1 else 'are'} in the training text too, word for word"
    )
    return [f"{overlap}: scores will be better than on new text"] if repeated else []


def describe_records(store: RecordStore) -> list[str]:
    """Describe the held-out records, and how many of them are also in the training part."""
    held, total = len(store.validation), len(store.train) + len(store.validation)
    if store.split["by"] == "sources":
        lines = [f"validation: {pluralize(held, 'record')} of validation_sources"]
    else:
        lines = [
            f"held out for validation: {held:,} of {pluralize(total, 'record')} ({held / total:.1%}), sampled by content hash"
        ]
    repeated, repeated_first = store.split["repeated"], store.split["repeated_first"]
    if repeated or repeated_first:
        name = next(iter(store.train.columns))
        first_only = f"; {repeated_first:,} have a {name} that is" if repeated_first > repeated else ""
        lines.append(f"{repeated:,} of the {held:,} validation records are in the training part too{first_only}")
    return lines
