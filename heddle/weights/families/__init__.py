"""Published families, one file each: their config in heddle's terms, and one two-way table of tensors."""

from heddle.weights.families.family import Family as Family
from heddle.weights.families.gpt2 import GPT2 as GPT2
from heddle.weights.families.llama import LLAMA as LLAMA
from heddle.weights.families.qwen3 import QWEN3 as QWEN3

__all__ = ["GPT2", "LLAMA", "QWEN3", "Family"]
