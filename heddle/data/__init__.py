"""From sources to batches: records, memory-mapped token stores, the order of examples, and targets.

In reading order:

- `sources`: files, folders and globs to documents (`read_documents`) and records (`read_examples`).
- `raw`: a run's data before tokenisation, and `split_text`, what is held out of it, in words; `in_memory`: Python objects as a
  corpus (`corpus_of`); `memory`: texts in memory.
- `split`: which documents, or ends of documents, are held out; `record_stats`: which part a record goes to, and the classes.
- `corpus`: the parts that a task reads (`Corpus`, `Part`).
- `base`: the base class of both stores; `provenance`: the files and settings that a store was built from.
- `token_writer`: writes the token files of a store; `store` builds and opens one (`build_store`, `TokenStore`).
- `records`: records as columns of ids; `encode` makes them; `record_store` builds and opens a store of them (`build_records`,
  `RecordStore`).
- `unseen`: evaluation labels that a model has not learned.
- `order`: which windows a step reads, a function of (seed, step); `buckets`, `pack`: which records share a batch or a row;
  `stream`: the documents of a part as one ring of ids.
- `batch`: rows of ids to inputs and targets (`Batch`).
- `series`: linear autoregression, the simplest sequence model.

`build_store(read_documents(sources), tokenizer, directory)` makes a store, and `TokenStore.open(directory).corpus` is what a task
reads. `open_store` opens a store of either kind.
"""

from heddle.data.batch import IGNORED as IGNORED
from heddle.data.batch import Batch as Batch
from heddle.data.batch import next_token_batch as next_token_batch
from heddle.data.corpus import Corpus as Corpus
from heddle.data.corpus import Part as Part
from heddle.data.encode import records_of as records_of
from heddle.data.memory import part_of as part_of
from heddle.data.order import held_out_windows as held_out_windows
from heddle.data.order import permute as permute
from heddle.data.order import targets_left_out as targets_left_out
from heddle.data.order import windows as windows
from heddle.data.order import windows_per_epoch as windows_per_epoch
from heddle.data.record_store import RecordStore as RecordStore
from heddle.data.record_store import build_records as build_records
from heddle.data.record_store import open_store as open_store
from heddle.data.records import Column as Column
from heddle.data.records import Records as Records
from heddle.data.sources.documents import Description as Description
from heddle.data.sources.documents import Document as Document
from heddle.data.sources.documents import describe as describe
from heddle.data.sources.documents import python_library as python_library
from heddle.data.sources.documents import read_documents as read_documents
from heddle.data.sources.examples import Example as Example
from heddle.data.sources.examples import read_examples as read_examples
from heddle.data.store import TokenStore as TokenStore
from heddle.data.store import build_store as build_store

__all__ = [
    "IGNORED",
    "Batch",
    "Column",
    "Corpus",
    "Description",
    "Document",
    "Example",
    "Part",
    "RecordStore",
    "Records",
    "TokenStore",
    "build_records",
    "build_store",
    "describe",
    "held_out_windows",
    "next_token_batch",
    "open_store",
    "part_of",
    "permute",
    "python_library",
    "read_documents",
    "read_examples",
    "records_of",
    "targets_left_out",
    "windows",
    "windows_per_epoch",
]
