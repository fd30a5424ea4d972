"""Weights on disk: run directories and checkpoints, written completely or not at all; import and export of published families.

In reading order:

- `files`: directories that appear completely or not at all, and the manifest of their hashes.
- `tensors`: safetensors files, read strictly.
- `run`: the run directory (`save`, `load`); `checkpoints`: its `checkpoints/step-N`; `average`: their mean.
- `mapping`: two-way tables between a published family's tensors and heddle's (`TensorRow`).
- `families`: one module per published family, with its table and its config.
- `published`: a published model's directory; `hub`: downloads one; `ids`: its special ids.
- `fitting`: which family can express a model (`choose`), and what stands against the others.
- `convert`: import into a run, and export for Hugging Face transformers.
- `llama_cpp`: what llama.cpp computes, as a table; `llama_cpp_tokenizer`: tokenizers in its terms; `gguf`: export for it.
- `start`: the weights that a run starts from, with rows for new tokens (`add_tokens`).
- `adapter`: what a fine-tuning with adapters learned, alone; `peft`: adapters in peft's format, and merging them.
- `heads`: the head that a family puts on a model, and what an export will be (`exported`), before training.
- `special_tokens`: the ids that a model reads around texts; `tokenizer_of`: a tokenizer that frames texts so.
- `token_roles`: what Hugging Face calls special tokens.
- `vectors`: word vectors from files, as initial values of a token table.

`load(run)` returns a run's model and tokenizer, and `save` writes them. `import_model` and `export_model` convert published models.
"""

from heddle.weights.adapter import Adapter as Adapter
from heddle.weights.average import average as average
from heddle.weights.convert import export_model as export_model
from heddle.weights.convert import import_model as import_model
from heddle.weights.gguf import export_gguf as export_gguf
from heddle.weights.peft import export_adapter as export_adapter
from heddle.weights.peft import merge_adapter as merge_adapter
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
from heddle.weights.vectors import Coverage as Coverage
from heddle.weights.vectors import load_vectors as load_vectors
from heddle.weights.vectors import read_vectors as read_vectors

__all__ = [
    "Adapter",
    "Coverage",
    "Loaded",
    "add_tokens",
    "average",
    "export_adapter",
    "export_gguf",
    "export_model",
    "import_model",
    "load",
    "load_vectors",
    "merge_adapter",
    "newest_valid",
    "publish",
    "read_config",
    "read_state",
    "read_vectors",
    "save",
    "save_checkpoint",
    "tokenizer_of",
]
