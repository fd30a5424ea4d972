"""Planted faults of plans for many devices."""

from tests.planting import Fault

HOLDS = "test_rehearsal.py::test_one_process_holds_what_was_predicted"
SHARDS = "test_rehearsal.py::test_shards_divide_what_a_process_holds_and_sends"
STORAGES = "test_rehearsal.py::test_storages_are_counted_once_and_until_they_are_gone"

PIPELINE = "test_rehearsal.py::test_groups_of_a_pipeline_hold_what_was_predicted"
GROUPS = "test_layout.py::test_the_group_of_a_pipeline_that_holds_most"

FAULTS = [
    Fault("gradients of one tensor beside each other", "scale/meter.py:_called_by_engine",
          "frame.f_code.co_name == \"_engine_run_backward\"", "False", test=HOLDS),
    Fault("storages that are gone still count", "scale/meter.py:Meter._drop",
          "self.now -= self.sizes.pop(key)", "self.sizes.pop(key)", test=STORAGES),
    Fault("emptied storages still count", "scale/meter.py:Meter.__enter__",
          "self._resize(key, size)", "pass", test=STORAGES),
    Fault("everything is sent within a machine", "scale/meter.py:Meter._note",
          "ranks[-1] // self.node", "ranks[0] // self.node", test=SHARDS),
    Fault("a ring sends everything", "scale/meter.py:SENT",
          '("reduce-scatter", 1, lambda n: (n - 1) / n)', '("reduce-scatter", 1, lambda n: 1.0)', test=SHARDS),
    Fault("what layers send is hidden", "scale/layout.py:Prediction.seconds",
          "+ self.exchange", "",
          test="test_layout.py::test_time_is_the_products_and_what_they_do_not_hide"),
    Fault("a gathered tensor is its part", "scale/meter.py:RETURNED",
          "lambda n: n - 1)", "lambda n: (n - 1) / n)", test="test_rehearsal.py::test_what_is_sent_within_layers"),
    Fault("clipping keeps every gradient", "train/optimizer.py:Optimizer.update",
          "self.whole = False", "self.whole, gradients = False, [each.grad for each in self.masters.values()]",
          test="test_rehearsal.py::test_two_processes_hold_what_was_predicted"),
    Fault("micro-batches between the first and the last are left out", "scale/rehearsal.py:_rehearse",
          "[step.train.accumulate - 1, 1]", "[1, 1]",
          test="test_rehearsal.py::test_micro_batches_send_parameters_again_and_gradients_once"),
    Fault("a layout fills the device", "scale/layout.py:Prediction.fits",
          "ROOM * self.memory", "2 * self.memory",
          test="test_layout.py::test_a_smaller_device_gets_more_shards_then_checkpoints"),
    Fault("communication hides computing too", "scale/layout.py:Prediction.seconds",
          "+ self.update", "",
          test="test_layout.py::test_time_is_the_products_and_what_they_do_not_hide"),
    Fault("accumulate is chosen anew", "scale/layout.py:_fewest",
          "if request.train.accumulate > 1", "if False",
          test="test_layout.py::test_settings_are_kept"),
    Fault("tensors of others have memory", "scale/meter.py:Meter.see",
          "if is_traceable_wrapper_subclass(tensor):", "if False:",
          test="test_rehearsal.py::test_parts_of_other_processes_hold_nothing"),
    Fault("what a stage sends is gone at once", "scale/schedules.py:_held",
          "each.op = Sent", "pass", test=PIPELINE),
    Fault("what a stage receives is not measured", "scale/measuring.py:_metered",
          "meter.see([each.received() for each in trainable.parts.on_mesh])", "pass", test=PIPELINE),
    Fault("what goes to other stages is not counted", "scale/meter.py:Meter._note_to",
          "sum(each.nbytes for each in tensors)", "0",
          test="test_rehearsal.py::test_groups_of_a_pipeline_send_vectors_and_their_gradients"),
    Fault("later micro-batches of a pipeline are left out", "scale/rehearsal.py:rehearse",
          "rounds * (size", "0 * (size",
          test="test_rehearsal.py::test_long_pipelines_are_predicted_from_few_micro_batches"),
    Fault("the first group of a pipeline stands for all", "scale/layout.py:predict",
          "{0, pipeline // 2, pipeline - 1}", "{0}", test=GROUPS),
    Fault("a pipeline never waits", "scale/layout.py:Prediction.seconds",
          "self.compute + self.idle", "self.compute", test=GROUPS),
    Fault("other stages wait for gradients of weights", "scale/schedules.py:waiting",
          'ends.setdefault((each.kind == "F", each.stage, each.number), clocks[process])',
          'ends[each.kind == "F", each.stage, each.number] = clocks[process]',
          test="test_schedules.py::test_waiting_is_what_is_published"),
    Fault("small kernels take no time", "scale/layout.py:predict",
          "max(products, KERNEL * kernels)", "products",
          test="test_layout.py::test_time_is_the_products_and_what_they_do_not_hide"),
]  # fmt: skip
