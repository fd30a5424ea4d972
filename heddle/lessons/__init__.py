"""Learn the lectures: what is right, what goes wrong, and what it does.

- `definition`: attention, a block and a language model as the lectures define them, step by step.
- `fault`: a known mistake, as other code for some steps; `attention_faults`, `block_faults`, `model_faults`: their tables;
  `faults`: all of them, by name.
"""
