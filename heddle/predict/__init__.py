"""Prediction without generation: classes, numbers, masked tokens and embeddings of texts, in batches.

In reading order:

- `rows`: texts as rows of ids, framed and truncated as in training; forward passes in batches of similar length.
- `classify`: classes and labels of texts, of pairs and of words, with probabilities; numbers.
- `fill`: the most probable tokens for each mask.
- `embed`: one vector per text.
- `inputs`: texts from arguments, files, tables and standard input; `result_files`: results as columns, files with a row for each.
- `evaluation_data`: what `heddle eval` scores; `lm_eval`: published benchmarks.
"""

from heddle.predict.classify import Prediction as Prediction
from heddle.predict.classify import TextClass as TextClass
from heddle.predict.classify import TextLabels as TextLabels
from heddle.predict.classify import TextNumber as TextNumber
from heddle.predict.classify import WordClass as WordClass
from heddle.predict.classify import WordClasses as WordClasses
from heddle.predict.classify import classify as classify
from heddle.predict.embed import Embeddings as Embeddings
from heddle.predict.embed import embed as embed
from heddle.predict.fill import Candidate as Candidate
from heddle.predict.fill import Filling as Filling
from heddle.predict.fill import fill as fill

__all__ = [
    "Candidate",
    "Embeddings",
    "Filling",
    "Prediction",
    "TextClass",
    "TextLabels",
    "TextNumber",
    "WordClass",
    "WordClasses",
    "classify",
    "embed",
    "fill",
]
