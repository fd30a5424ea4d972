"""The command line: each command parses its arguments, makes one library call and prints the result. See `heddle --help`.

In reading order:

- `main`: the commands, imported on demand, and error reporting.
- `options`: options that several commands share, with their help.
- `train`, `generate`, `evaluate`, `prove`, `count`, `runs`, `tokenizer`, `weights`: one module per command or group.
- `training`: the work of `heddle train`; `keys`: help for its settings; `progress`: its progress display.
- `models`: load a run's model for inference.
- `output`: printing, tables and JSON; `streams`: standard streams that are closed, broken or not text.
"""

__all__: list[str] = []
