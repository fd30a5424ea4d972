"""Word vectors learned from a text: skip-gram and CBOW (word2vec) and GloVe, their neighbours and analogies (L3-08, L3-09).

In reading order:

- `corpus`: a text as ids of its frequent words.
- `windows`: which words are neighbours, as blocks for matrix products (`Blocks`).
- `word2vec`: negative sampling, its gradients and its training.
- `cooccurrence`: how often words are neighbours (`Counts`); `glove`: fits their logarithms.
- `divergence`: the check that the loss stays finite.
- `train`: the methods as a table, and `train_vectors`.
- `table`: words with their vectors (`WordVectors`).

`train_vectors(texts, VectorsConfig(method="glove"))` returns a `WordVectors`; its `save` writes a file that `heddle train` starts
from with `vectors=FILE`.
"""

from heddle.vectors.table import WordVectors as WordVectors
from heddle.vectors.train import train_vectors as train_vectors

__all__ = ["WordVectors", "train_vectors"]
