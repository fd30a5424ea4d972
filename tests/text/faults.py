"""Planted faults that tests of `text` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("how often a word occurs is not learned", "text/bpe.py:BPE.learn",
          "learner.train_from_iterator(texts, trainer)", 'learner.train_from_iterator({*" ".join(texts).split()}, trainer)',
          test="test_kinds.py::test_a_trained_bpe_has_common_words_whole_and_cuts_rare_ones"),
    Fault("words are few", "text/words.py:Words.learn",
          "2**20 if vocab_size is None", "2000 if vocab_size is None",
          test="test_kinds.py::test_characters_are_long_words_are_many_and_pieces_lie_between"),
    Fault("special tokens in a message are special", "text/chat_template.py:ChatTemplate._protected",
          'self._broken(message["content"], mark)', 'message["content"]',
          test="test_chat_template.py"),
    Fault("blanks around blocks are kept", "text/template.py:compiled",
          "True, lstrip_blocks", "False, lstrip_blocks",
          test="test_chat_template.py"),
    Fault("the prompt of an answer is learned", "text/chat_template.py:ChatTemplate.conversation",
          "messages[:number], True", "messages[:number]",
          test="test_chat_template.py"),
    Fault("a later error hides the first", "text/processes.py:in_order",
          "exhausted, failure = True, error", "raise",
          test="test_processes.py::test_the_first_error_is_that_of_one_process"),
]  # fmt: skip
