"""The user's files: which a source names, and the documents or records in them.

- `notes`: how files are read (`Reader`), and what one reading leaves out and reports (`Notes`); `formats`: files that are not text.
- `files`: the files that a source names; `tables`: their rows if they have columns; `arrow`: parquet, arrow and datasets.
- `documents`: files, folders and globs to documents; `examples`: to records, `values`: their fields.
- `lint`: what goes wrong in practice, by file and line.
"""

__all__: list[str] = []
