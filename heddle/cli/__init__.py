"""The command line: each command reads its arguments, makes one library call and prints the result. See `heddle --help`.

In reading order:

- `main`: the commands, imported only when called, and how errors are printed.
- `train`, `generate`, `evaluate`, `prove`, `count`, `runs`, `tokenizer`, `weights`: one module per command or group.
- `training`: the work of `heddle train`; `keys`: the help of its settings; `progress`: what it shows while it runs.
- `models`: a run's model, ready to predict.
- `say`: printing, also as JSON; `streams`: standard streams that are closed or not text.
"""

__all__: list[str] = []
