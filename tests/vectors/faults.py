"""Planted faults that tests of `vectors` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("windows cross documents", "vectors/windows.py:Blocks.pairs",
          "& (self.around_documents[part].unsqueeze(1) == self.center_documents[part].unsqueeze(-1))", "",
          test="test_word2vec.py::test_pairs_are_those_of_the_windows"),
    Fault("noise words by their counts", "vectors/word2vec.py:train_word2vec",
          "counts**NOISE_POWER", "counts",
          test="test_word2vec.py::test_noise_is_drawn_by_the_power_of_the_counts"),
    Fault("the predicted word is its own noise", "vectors/word2vec.py:targets_of",
          "!= noise.unsqueeze(1)", ">= 0).expand(-1, -1, noise.shape[1]",
          test="test_word2vec.py::test_a_prediction_has_as_many_noise_words_as_asked_for"),
    Fault("the mean's gradient is not divided", "vectors/word2vec.py:Word2Vec.step",
          "shares.mT", "(shares > 0).float().mT",
          test="test_word2vec.py::test_a_step_is_gradient_descent"),
    Fault("all distances count alike", "vectors/cooccurrence.py:_sums",
          "1.0 / (keys - pairs * DISTANCES)", "np.ones(len(keys))",
          test="test_glove.py::test_counts_are_those_counted_by_hand"),
    Fault("frequent pairs weigh more than one", "vectors/glove.py:weight",
          ".clamp(max=1)", "",
          test="test_glove.py::test_the_weight_of_a_count"),
    Fault("the analogy is backwards", "vectors/table.py:WordVectors.analogy",
          "second - first", "first - second",
          test="test_table.py::test_neighbours_and_analogies_are_gensims"),
]  # fmt: skip
