"""The files of a run: atomic directories, safetensors, checkpoints, adapters.

In reading order:

- `files`: files and directories that are written atomically, and the manifest of their checksums.
- `tensors`: safetensors files, read strictly.
- `run`: the run directory (`save`, `load`); `checkpoints`: its `checkpoints/step-N`; `average`: their mean.
- `start`: the weights that a run starts from, with rows for new tokens (`add_tokens`).
- `adapter`: adapters in a file of their own.
- `special_tokens`: the ids that a model reads around texts; `tokenizer_of`: a tokenizer that adds them.

`load(run)` returns a run's model and tokenizer, and `save` writes them. `heddle.convert` reads and writes published models.
"""

from heddle.weights.adapter import Adapter as Adapter
from heddle.weights.average import average as average
from heddle.weights.run import Loaded as Loaded
from heddle.weights.run import load as load
from heddle.weights.run import newest_valid as newest_valid
from heddle.weights.run import publish as publish
from heddle.weights.run import read_config as read_config
from heddle.weights.run import read_state as read_state
from heddle.weights.run import save as save
from heddle.weights.run import save_checkpoint as save_checkpoint
from heddle.weights.special_tokens import tokenizer_of as tokenizer_of
from heddle.weights.start import add_tokens as add_tokens

__all__ = [
    "Adapter",
    "Loaded",
    "add_tokens",
    "average",
    "load",
    "newest_valid",
    "publish",
    "read_config",
    "read_state",
    "save",
    "save_checkpoint",
    "tokenizer_of",
]
