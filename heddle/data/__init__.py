"""From text to batches: documents, the memory-mapped token store, the order of examples, and targets.

In reading order:

- `sources`: files, folders and globs to documents (`read_documents`).
- `split`: which documents, or ends of them, are held out.
- `parts`: writes the token files of a store; `store` builds and opens one (`build_store`, `TokenStore`).
- `order`: which windows a step reads: a function of (seed, step).
- `batch`: rows of ids to inputs and targets (`Batch`).
- `series`: linear autoregression of numbers, the simplest model of a sequence.

`build_store(read_documents(sources), tokenizer, directory)` makes a store, and `TokenStore.open(directory).corpus` is what a task
reads.
"""

from heddle.data.batch import IGNORED as IGNORED
from heddle.data.batch import Batch as Batch
from heddle.data.batch import next_token_batch as next_token_batch
from heddle.data.order import held_out_windows as held_out_windows
from heddle.data.order import permute as permute
from heddle.data.order import targets_left_out as targets_left_out
from heddle.data.order import windows as windows
from heddle.data.order import windows_per_epoch as windows_per_epoch
from heddle.data.sources import Description as Description
from heddle.data.sources import Document as Document
from heddle.data.sources import describe as describe
from heddle.data.sources import python_library as python_library
from heddle.data.sources import read_documents as read_documents
from heddle.data.store import Corpus as Corpus
from heddle.data.store import Part as Part
from heddle.data.store import TokenStore as TokenStore
from heddle.data.store import build_store as build_store
from heddle.data.store import part_of as part_of

__all__ = [
    "IGNORED",
    "Batch",
    "Corpus",
    "Description",
    "Document",
    "Part",
    "TokenStore",
    "build_store",
    "describe",
    "held_out_windows",
    "next_token_batch",
    "part_of",
    "permute",
    "python_library",
    "read_documents",
    "targets_left_out",
    "windows",
    "windows_per_epoch",
]
