"""The command line: each command parses its arguments, makes one library call and prints the result. See `heddle --help`.

In reading order:

- `main`: the commands, imported on demand, and error reporting.
- `options`: options that several commands share, with their help.
- one module per command or group: `train`, `generate`, `translate`, `chat`, `predict` (classify, fill, embed), `serve`, `look`,
  `evaluate`, `prove`, `runs`, `data`, `tokenizer`, `vectors`, `published` (import, export, adapter), `machine`;
  `sizes`: `count` and `plan`.
- `training`: the work of `heddle train`; `series`: of several runs; `keys`: help for settings; `progress`: the progress display.
- `models`: load a run's model for inference; `inputs`: texts from arguments, files and tables; `look_tables`: what `look` prints.
- `output`: printing, tables and JSON; `formatter`: help; `streams`: standard streams that are closed, broken or not text.
"""

__all__: list[str] = []
