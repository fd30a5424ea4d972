"""Planted faults that the tests of the lectures' rows must notice: each contradicts a row."""

from tests.planting import Fault

FAULTS = [
    Fault("W_O is left out", "nn/attention.py:Attention.forward",
          "self.o(merge_heads(self.kernel(q, k, v, mask)))", "merge_heads(self.kernel(q, k, v, mask))",
          test="test_golden.py::test_attention"),
    Fault("heads are interleaved", "nn/attention.py:split_heads",
          "x.unflatten(-1, (-1, width)).transpose(1, 2)", "x.unflatten(-1, (width, -1)).movedim(-1, 1)",
          test="test_rows_attention.py::test_one_product_for_three_projections"),
    Fault("all heads are the first", "nn/attention.py:split_heads",
          ".transpose(1, 2)", ".transpose(1, 2)[:, :1].expand(-1, x.shape[-1] // width, -1, -1)",
          test="test_golden.py::test_attention"),
    Fault("scores are divided by the root of dim", "nn/attention.py:score_scale",
          "sqrt(config.width(dim))", "sqrt(dim)",
          test="test_golden.py::test_attention"),
    Fault("keys are the values", "nn/attention.py:Attention.forward",
          "v = split_heads(self.v(source), self.value_dim)", "v = split_heads(self.k(source), self.value_dim)",
          test="test_golden.py::test_attention"),
    Fault("a block has no skip", "nn/block.py:Residual.leave",
          "(x if self.skip", "(0 * x if self.skip",
          test="test_golden.py::test_block"),
    Fault("a feed-forward puts out zeros", "nn/feedforward.py:MLP.forward",
          "Output(self.down(", "Output(0 * self.down(",
          test="test_golden.py::test_block"),
    Fault("positions are not added", "model/entry.py:Entry.forward",
          "else x + places", "else x",
          test="test_golden.py::test_embedding"),
    Fault("a decoder sees what comes later", "nn/attention.py:attention_pattern",
          "Causal() if setting.causal and not crosses else Everything()", "Everything()",
          test="test_rows_presets.py::test_decoders_see_what_came_before_alone"),
]  # fmt: skip
