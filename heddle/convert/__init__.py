"""Published formats: Hugging Face families, sentence-transformers, GGUF, peft, files of word vectors.

In reading order:

- `mapping`: two-way tables between a published family's tensors and heddle's (`TensorRow`).
- `families`: one module per published family, with its table and its config.
- `published`: a published model's directory; `hub`: downloads one; `special_ids`, `generation_config`: what its files say.
- `token_roles`: what Hugging Face calls special tokens; `tokenizer_classes`: what its tokenizers do otherwise than their files say.
- `fitting`: which family can express a model (`choose`), and what stands against the others; `heads`: the head that a family puts
  on a model, and what an export will be (`exported`), before training.
- `hugging_face`: import into a run, and export for Hugging Face transformers; `agreement` compares the two from text;
  `sentence_transformers`: directories of that package; `mxfp4`: packed experts.
- `llama_cpp`: what llama.cpp computes, as a table; `llama_cpp_tokenizer`: tokenizers in its terms; `gguf`: export for it.
- `peft`: adapters in peft's format, and merging them.
- `word_vectors`: word vectors from files, as initial values of a token table.

`import_model` and `export_model` convert published models.
"""

from heddle.convert.gguf import export_gguf as export_gguf
from heddle.convert.hugging_face import export_model as export_model
from heddle.convert.hugging_face import import_model as import_model
from heddle.convert.peft import export_adapter as export_adapter
from heddle.convert.peft import merge_adapter as merge_adapter
from heddle.convert.word_vectors import Coverage as Coverage
from heddle.convert.word_vectors import load_vectors as load_vectors
from heddle.convert.word_vectors import read_vectors as read_vectors

__all__ = [
    "Coverage",
    "export_adapter",
    "export_gguf",
    "export_model",
    "import_model",
    "load_vectors",
    "merge_adapter",
    "read_vectors",
]
