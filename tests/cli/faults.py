"""Planted faults that tests of `cli` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("settings before their task are lost", "cli/train.py:_parse",
          'not path.endswith(".kind")', "0",
          test="test_train.py::test_what_a_task_is_given_is_kept_in_any_order"),
    Fault("words are blamed on the run file", "cli/train.py:_parse",
          "origin(file, values)", "origin(file, ())",
          test="test_bad_input.py::test_what_the_command_line_sets_is_not_blamed_on_a_run_file"),
    Fault("a file's name is taken for the flag", "cli/main.py:_speak",
          'get("--json", True)', 'get("--json", True) + 1',
          test="test_main.py::test_an_error_is_json_on_stdout_where_json_is_a_flag"),
    Fault("settings change before the device is sought", "cli/training.py:resume_run",
          "pick_device(device or kind)", 'pick_device(device or "cpu")',
          test="test_devices.py::test_a_run_of_another_machine_predicts_here"),
    Fault("a file is translated as UTF-8 whatever is said", "cli/translate.py:_read_sources",
          "file, encoding", "file",
          test="test_translate.py::test_sources_are_read_in_the_encoding_that_is_named"),
    Fault("the memory of rank 0 stands for that of all", "display.py:memory",
          "if processes > 1", "if False",
          test="test_progress.py::test_the_memory_of_a_step_is_told"),
]  # fmt: skip
