"""Planted faults that tests of `text` must notice."""

from tests.planting import Fault

FAULTS = [
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
