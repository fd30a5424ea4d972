"""Planted faults of a run's files."""

from tests.planting import Fault

FAULTS = [
    Fault("a shard that is read twice counts twice", "weights/tensors.py:Weights.__init__",
          "if numbers != whole:", "if numbers < whole:",
          test="test_tensors.py::test_shards_that_are_not_all_there_are_refused"),
    Fault("every shard begins where the tensor does", "weights/tensors.py:Weights.region",
          "_slices(starts, stops, [each.start for each in region])", "_slices(starts, stops, starts)",
          test="test_tensors.py::test_shards_are_one_tensor"),
]  # fmt: skip
