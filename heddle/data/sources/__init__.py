"""Reading the user's files as documents or records.

- `notes`: how files are read (`Reader`), and what one pass leaves out and reports (`Notes`); `formats`: files that are not text.
- `files`: the files of a source; `tables`: rows of files with columns; `arrow`: parquet, arrow and datasets.
- `documents`: files, folders and globs to documents; `examples`: to records, `values`: their fields.
- `lint`: common problems in data, by file and line.
"""

__all__: list[str] = []
