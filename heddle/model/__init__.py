"""The transformer, assembled from the layers of `heddle.nn`, and functions on finished models.

In reading order:

- `stack`: the entry, the blocks and the final norm (`Stack`).
- `head`: from hidden vectors to scores or to one vector per sequence (`LanguageHead`, `Classifier`, `Pooler`); `pooling`: one
  vector per text from those of its tokens.
- `transformer`: token tables, an encoder, a decoder or both, and a head (`Transformer`).
- `roles`: roles of parameters: one table for the optimizer, the accounts and the initial weights.
- `groups`: settings for parameters by name, including which are frozen.
- `lora`: low-rank adapters on linear layers (`adapt`, `merge`).
- `checkpointing`: gradient checkpointing of blocks (`checkpoint_activations`).
- `initialise`: initial weights by that table.
- `device`, `precision`, `evaluating`: devices, dtypes and evaluation mode.
- `build`: builds a model with initial weights from a config.
- `products`: the library for fp32 products in training on a CPU.
- `linear`: layers that choose by whom they are multiplied; `fusing`: fewer products and launches for predicting on an accelerator.
- `quantize`: weights in 8 or 4 bits, for decoding on a CPU.
- `parts`, `packages`, `steps`, `compile_steps`: decoding steps on a CPU, compiled ahead of time and stored on disk.
- `compiling`: decoding steps compiled by torch.compile, on an accelerator.
- `graphs`: decoding steps replayed on a GPU.

`model = build(config)` makes a model; `model(tokens, ...)` returns hidden vectors, and `model.logits(hidden)` scores of the next
token. With `cache = model.new_cache(rows)`, calls with `cache=cache` continue its rows.
"""

from heddle.model.build import build as build
from heddle.model.checkpointing import checkpoint_activations as checkpoint_activations
from heddle.model.initialise import initialise as initialise
from heddle.model.stack import Stack as Stack
from heddle.model.transformer import Transformer as Transformer

__all__ = ["Stack", "Transformer", "build", "checkpoint_activations", "initialise"]
