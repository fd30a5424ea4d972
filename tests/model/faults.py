"""Planted faults that tests of `model` must notice."""

from tests.planting import Fault

FAULTS = [
    Fault("a refused source makes the cache longer", "model/transformer.py:Transformer.forward",
          "if not isinstance(cache", "layout = self._layout(tokens, layout, cache)\nif not isinstance(cache",
          test="test_transformer.py::test_a_refused_call_leaves_the_cache_as_it_was"),
    Fault("compiled graphs of another processor are served", "model/device.py:compile_graphs",
          "torch.compiler.config.cache_key_tag += width", "pass",
          test="test_compiling.py::test_the_cache_on_disk_never_serves_code_for_another_width_of_vectors"),
    Fault("training is not said to a scope", "model/stack.py:Stack.scopes",
          "relative, training=self.training", "relative",
          test="test_stack.py::test_the_kernel_is_chosen_for_training"),
    Fault("training is not said to a source's scope", "model/stack.py:Stack.source_scopes",
          ", training=self.training", "",
          test="test_stack.py::test_the_kernel_is_chosen_for_training"),
    Fault("adapters are added by their rank", "model/lora.py:adapt",
          "/ config.rank", "",
          test="test_lora.py::test_it_is_the_papers_equation"),
    Fault("merged without the factor", "model/lora.py:merge",
          "alpha=layer.factor", "alpha=1.0",
          test="test_lora.py::test_merged_is_unmerged"),
    Fault("what is computed again updates buffers again", "model/checkpointing.py:_checkpointed",
          "else {}", "and False else {}",
          test="test_checkpointing.py::test_losses_and_gradients_are_the_same"),
    Fault("what is computed again drops anew", "model/checkpointing.py:_checkpointed",
          "use_reentrant=False", "use_reentrant=False, preserve_rng_state=False",
          test="test_checkpointing.py::test_losses_and_gradients_are_the_same"),
    Fault("texts of a row are pooled together", "model/pooling.py:unpack_rows",
          "layout.segment", "layout.segment * 0",
          test="test_pooling.py"),
]  # fmt: skip
