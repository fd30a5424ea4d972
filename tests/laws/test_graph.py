"""The forward pass is one graph, and stays one from batch to batch."""

import json
from typing import Any

import pytest

from heddle.config import AlibiConfig, BucketsConfig, ConvolutionConfig, RecurrentConfig
from tests import programs
from tests.models import config_of

COMMON: dict[str, Any] = {"kv_heads": 2, "pad_vocab_to": 8, "depth": 1}
ALIBI: dict[str, Any] = {"positions": "none", "relative": AlibiConfig()}
# In each, what another has not. The two kernels that take long to compile have a test of their own: tests/nn/test_kernels.py.
MODELS = {
    "auto": config_of(**COMMON, dropout=0.1, placement="sandwich"),
    "plain": config_of(**COMMON, dropout=0.1, kernel="plain", window=3, cap=2.0, wiring="parallel", **ALIBI),
    "sdpa": config_of(
        **COMMON, dropout=0.1, kernel="sdpa", positions="none", relative=BucketsConfig(buckets=8, furthest=20)
    ),
    "experts": config_of(**COMMON, dropout=0.1, first=ConvolutionConfig(), ffn="moe"),
    "recurrent": config_of(**COMMON, dropout=0.1, first=RecurrentConfig(), positions="both", ffn="none"),
}


@pytest.mark.thorough
def test_a_forward_pass_is_one_graph() -> None:
    tables = {name: config.to_dict() for name, config in MODELS.items()}
    counts = json.loads(programs.traced("laws.graphs_of_models", stdin=json.dumps(tables)))
    assert len(counts) == 3 * len(MODELS)
    # The balance of experts counts documents, so that their number is one more size: the second makes it a variable.
    assert counts.pop("experts packed training") == 2
    assert set(counts.values()) == {1}, counts
