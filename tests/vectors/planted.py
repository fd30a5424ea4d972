"""A text whose words have planted meanings: pairs of words that differ in one way, and two that mean the same."""

import numpy as np
from gensim.models import KeyedVectors

from heddle.vectors import WordVectors

ROLES = 5
SYNONYMS = ("sofa", "couch")


def planted(seed: int, sentences: int, own: float = 0.6) -> list[str]:
    """Sentences of five words, in any order: a word and four features, mostly its own.

    Word `w2a` has the features of role 2 and of side a, so w2a is to w2b as w4a is to w4b. Synonyms have equal features.
    """
    random = np.random.default_rng(seed)
    sides = {side: [f"side{side}x{k}" for k in range(3)] for side in "ab"}
    roles = [[f"role{role}x{k}" for k in range(3)] for role in range(ROLES)]
    seat = [f"seat{k}" for k in range(3)]
    meanings = [(f"w{role}{side}", roles[role], sides[side]) for role in range(ROLES) for side in "ab"]
    meanings += [(word, seat, seat) for word in SYNONYMS]
    every = [*sides["a"], *sides["b"], *seat, *(feature for role in roles for feature in role)]
    texts = []
    for _ in range(sentences):
        word, one, other = meanings[random.integers(len(meanings))]
        pools = [pool if random.random() < own else every for pool in (one, one, other, other)]
        texts.append(" ".join(random.permutation([word, *(str(random.choice(pool)) for pool in pools)])))
    return texts


def share_right(vectors: KeyedVectors) -> float:
    """The share of analogies between pairs of words that gensim answers right, of those vectors."""
    right = [
        vectors.most_similar(positive=[f"w{i}{b}", f"w{j}{a}"], negative=[f"w{i}{a}"], topn=1)[0][0] == f"w{j}{b}"
        for i in range(ROLES)
        for j in range(ROLES)
        for a, b in ("ab", "ba")
        if i != j
    ]
    return sum(right) / len(right)


def keyed(vectors: WordVectors) -> KeyedVectors:
    """The same vectors in gensim's class."""
    made = KeyedVectors(vectors.array.shape[1])
    made.add_vectors(list(vectors.words), vectors.array)
    return made
