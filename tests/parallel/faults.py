"""Planted faults of several processes."""

from tests.planting import Fault

FAULTS = [
    Fault(
        "every rank reads the first rows",
        "tasks/task.py:ExampleIndices.part",
        "number * rows, (number + 1) * rows",
        "rows",
        law="batches",
        run="next token, rotary",
        test="test_ranks.py::test_the_global_batch_is_the_same_for_any_number_of_ranks",
    ),
    Fault(
        "each rank draws its own masks",
        "tasks/task.py:ExampleIndices.take",
        "None if self.keys is None else self.keys[rows]",
        "self.keys",
        law="batches",
        run="masked, rotary",
        test="test_ranks.py::test_the_global_batch_is_the_same_for_any_number_of_ranks",
    ),
    Fault(
        "counts of one rank alone",
        "parallel/ranks.py:Ranks.sum",
        "dist.all_reduce(summed, group=self.group)",
        "",
        test="test_ranks.py::test_torchrun_trains_what_one_process_trains",
    ),
    Fault(
        "gradients of one rank alone",
        "parallel/ranks.py:Ranks.wrap",
        "if self.count == 1 else DistributedDataParallel(objective, process_group=self.group)",
        "",
        test="test_ranks.py::test_torchrun_trains_what_one_process_trains",
    ),
]
