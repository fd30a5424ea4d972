"""Planted faults that tests of `config` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("a missing cap is overlooked", "config/kernels.py:missing",
          "needs.cap and not capability.caps", "False",
          test="test_kernels.py::test_auto_takes_the_fastest_that_can"),
    Fault("missing dropout is overlooked", "config/kernels.py:missing",
          'if needs.drops in ("none", capability.drops) or capability.drops == "any" else "drops"', "",
          test="test_kernels.py::test_auto_takes_the_fastest_that_can"),
    Fault("auto takes the first", "config/kernels.py:choose",
          "name for name in (OF_FEW if queries <= FEW else BEYOND) if missing(name, needs) is None", "iter(BEYOND)",
          test="test_kernels.py::test_auto_takes_the_fastest_that_can"),
    Fault("the border is one key early", "config/kernels.py:choose",
          "keys <= PLAIN_UP_TO", "keys < PLAIN_UP_TO",
          test="test_kernels.py::test_auto_takes_the_fastest_that_can"),
    Fault("betas are a series", "config/sweep.py:is_single_valued",
          "and not any(map(_accepts_list, kinds))", "",
          test="test_sweep.py::test_a_setting_that_takes_a_list_is_none"),
    Fault("a key is suggested without its table", "config/key_names.py:_hint",
          "did_you_mean(leaf, names, before)", "did_you_mean(leaf, names)",
          test="test_run.py::test_impossible_runs_are_refused"),
    Fault("tokens of whole texts are divided", "parallel/mesh.py:check_task",
          "and not task.by_token", "and False",
          test="test_parallel.py::test_tokens_of_rows_that_are_scored_whole_are_not_divided"),
    Fault("sdpa leaves sinks out", "config/kernels.py:CAPABILITIES",
          ", sinks=False", "",
          test="test_kernels.py::test_auto_takes_the_fastest_that_can"),
]  # fmt: skip
