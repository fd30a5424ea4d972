"""Published families, one module each: how its config translates, and a two-way table of its tensors."""

from heddle.convert.families.bart import BART as BART
from heddle.convert.families.bert import BERT as BERT
from heddle.convert.families.bert import BERT_CLASSIFIER as BERT_CLASSIFIER
from heddle.convert.families.bert import BERT_POOLED as BERT_POOLED
from heddle.convert.families.bert import BERT_TAGGED as BERT_TAGGED
from heddle.convert.families.cohere import COHERE as COHERE
from heddle.convert.families.deepseek import DEEPSEEK_V2 as DEEPSEEK_V2
from heddle.convert.families.deepseek import DEEPSEEK_V3 as DEEPSEEK_V3
from heddle.convert.families.distilbert import DISTILBERTS as DISTILBERTS
from heddle.convert.families.electra import ELECTRAS as ELECTRAS
from heddle.convert.families.falcon import FALCON as FALCON
from heddle.convert.families.family import Family as Family
from heddle.convert.families.gemma2 import GEMMA2 as GEMMA2
from heddle.convert.families.gemma3 import GEMMA3 as GEMMA3
from heddle.convert.families.gpt2 import GPT2 as GPT2
from heddle.convert.families.gpt_neox import GPT_NEOX as GPT_NEOX
from heddle.convert.families.gpt_oss import GPT_OSS as GPT_OSS
from heddle.convert.families.gptj import GPTJ as GPTJ
from heddle.convert.families.granite import GRANITE as GRANITE
from heddle.convert.families.llama import LLAMA as LLAMA
from heddle.convert.families.marian import MARIAN as MARIAN
from heddle.convert.families.mistral import MISTRAL as MISTRAL
from heddle.convert.families.mixtral import MIXTRAL as MIXTRAL
from heddle.convert.families.modernbert import MODERNBERT as MODERNBERT
from heddle.convert.families.mpnet import MPNETS as MPNETS
from heddle.convert.families.olmo2 import OLMO2 as OLMO2
from heddle.convert.families.opt import OPT as OPT
from heddle.convert.families.phi import PHI as PHI
from heddle.convert.families.phi3 import PHI3 as PHI3
from heddle.convert.families.qwen2 import QWEN2 as QWEN2
from heddle.convert.families.qwen2_moe import QWEN2_MOE as QWEN2_MOE
from heddle.convert.families.qwen3 import QWEN3 as QWEN3
from heddle.convert.families.qwen3_moe import QWEN3_MOE as QWEN3_MOE
from heddle.convert.families.roberta import ROBERTAS as ROBERTAS
from heddle.convert.families.roberta import XLM_ROBERTAS as XLM_ROBERTAS
from heddle.convert.families.smollm3 import SMOLLM3 as SMOLLM3
from heddle.convert.families.stablelm import STABLELM as STABLELM
from heddle.convert.families.t5 import T5 as T5
from heddle.convert.families.umt5 import UMT5 as UMT5

__all__ = [
    "BART",
    "BERT",
    "BERT_CLASSIFIER",
    "BERT_POOLED",
    "BERT_TAGGED",
    "COHERE",
    "DEEPSEEK_V2",
    "DEEPSEEK_V3",
    "DISTILBERTS",
    "ELECTRAS",
    "FALCON",
    "GEMMA2",
    "GEMMA3",
    "GPT2",
    "GPTJ",
    "GPT_NEOX",
    "GPT_OSS",
    "GRANITE",
    "LLAMA",
    "MARIAN",
    "MISTRAL",
    "MIXTRAL",
    "MODERNBERT",
    "MPNETS",
    "OLMO2",
    "OPT",
    "PHI",
    "PHI3",
    "QWEN2",
    "QWEN2_MOE",
    "QWEN3",
    "QWEN3_MOE",
    "ROBERTAS",
    "SMOLLM3",
    "STABLELM",
    "T5",
    "UMT5",
    "XLM_ROBERTAS",
    "Family",
]
