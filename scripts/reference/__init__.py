"""The reference pages of the site, written from the code: API, configs, command line, run files, presets, run directory.

    python -m scripts.reference FOLDER

In reading order:

- `text`: docstrings and comments as reStructuredText; tables.
- `fields`: the fields of a config: type, default, and the comment beside it.
- `api`: a page for each public package; `run_files`: every key; `commands`: every command; `presets`: every preset;
  `run_directory`: every file of a run.
- `pages`: all of these pages, and the folder that they are written to.
"""
