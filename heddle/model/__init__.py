"""The transformer, assembled from the layers of `heddle.nn`, and what acts on a finished model.

In reading order:

- `stack`: the entry, the blocks and the final norm (`Stack`).
- `head`: from hidden vectors to scores or to one vector per sequence (`LanguageHead`, `Classifier`, `Pooler`); `pooling`: one
  vector per text from those of its tokens.
- `transformer`: token tables, an encoder, a decoder or both, and a head (`Transformer`).
- `roles`: what each parameter is: one table for the optimizer, the accounts and the initial weights.
- `groups`: other settings for parameters by name, and which ones are frozen.
- `lora`: adapters of low rank beside linear layers (`adapt`, `merge`).
- `checkpointing`: blocks that compute their activations again for the backward pass (`checkpoint_activations`).
- `initialise`: initial weights by that table.
- `device`, `precision`, `evaluating`: where a model runs, in which dtype, and without dropout.
- `build`: from a config to a model with initial weights.
- `products`: which library multiplies fp32 matrices in training on a CPU.
- `packing`: weights in the order that decoding on a CPU reads fastest.
- `quantize`: weights in 8 or 4 bits, for decoding on a CPU.
- `compiling`: decoding steps compiled to one call each (`compile_steps`), and `step_rates`: only where that is faster here.

`model = build(config)` makes a model; `model(tokens, ...)` returns hidden vectors, and `model.logits(hidden)` scores of the next
token. With `cache = model.new_cache(rows)`, calls with `cache=cache` continue the rows that it holds.
"""

from heddle.model.build import build as build
from heddle.model.checkpointing import checkpoint_activations as checkpoint_activations
from heddle.model.initialise import initialise as initialise
from heddle.model.stack import Stack as Stack
from heddle.model.transformer import Transformer as Transformer

__all__ = ["Stack", "Transformer", "build", "checkpoint_activations", "initialise"]
