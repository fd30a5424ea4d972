"""Published formats: Hugging Face families, sentence-transformers, GGUF, peft and word vectors.

In reading order:

- `mapping`: two-way tables between a published family's tensors and heddle's (`TensorRow`).
- `fields`: the same between the fields of its config.json and heddle's settings (`FieldRow`).
- `families`: the published families, related ones in one module, and the list of all of them (`ALL`).
- `published`: the directory of a published model; `hub`: downloads; `special_ids`, `generation_config`: its settings.
- `token_roles`: Hugging Face's names of special tokens; `tokenizer_classes`: where its tokenizers deviate from their files.
- `fitting`: which family can express a model (`choose`), and why others cannot; `heads`: the head that a family gives a model, and
  what an export will be (`exported`), before training.
- `hugging_face`: import into a run, and export for Hugging Face transformers; `agreement`: compares the two, starting from text;
  `sentence_transformers`: directories of that package; `mxfp4`: quantized experts.
- `llama_cpp`: the architectures of llama.cpp, and `llama_cpp_limits`: what they lack; `llama_cpp_tokenizer`: tokenizers in GGUF;
  `gguf_fitting`: which of them computes a model, or all that is against it; `gguf`: export to GGUF.
- `peft`: adapters in peft's format, and merging them.
- `word_vectors`: files of word vectors, as initial values of a token table.

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
