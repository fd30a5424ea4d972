"""The list of all published families."""

from heddle.convert.families.bart import BART, MARIAN
from heddle.convert.families.bert import BERTS, DISTILBERTS, ELECTRAS
from heddle.convert.families.cohere import COHERE
from heddle.convert.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from heddle.convert.families.falcon import FALCON
from heddle.convert.families.family import Family
from heddle.convert.families.gemma import GEMMA2, GEMMA3
from heddle.convert.families.gpt2 import GPT2
from heddle.convert.families.gpt_neox import GPT_NEOX, GPTJ
from heddle.convert.families.gpt_oss import GPT_OSS
from heddle.convert.families.llama import GRANITE, LLAMA, MISTRAL, MIXTRAL
from heddle.convert.families.modernbert import MODERNBERT
from heddle.convert.families.olmo2 import OLMO2
from heddle.convert.families.opt import OPT
from heddle.convert.families.phi import PHI, PHI3
from heddle.convert.families.qwen import QWEN2, QWEN3
from heddle.convert.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from heddle.convert.families.roberta import MPNETS, ROBERTAS, XLM_ROBERTAS
from heddle.convert.families.smollm3 import SMOLLM3
from heddle.convert.families.stablelm import STABLELM
from heddle.convert.families.t5 import T5, UMT5

# In the order in which export tries them.
ALL: tuple[Family, ...] = (
    GPT2,
    LLAMA,
    QWEN2,
    QWEN3,
    MISTRAL,
    MIXTRAL,
    QWEN3_MOE,
    QWEN2_MOE,
    GEMMA2,
    GEMMA3,
    PHI3,
    OPT,
    GPT_NEOX,
    FALCON,
    GPTJ,
    PHI,
    STABLELM,
    OLMO2,
    SMOLLM3,
    GRANITE,
    COHERE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT_OSS,
    *BERTS,
    *ROBERTAS,
    *XLM_ROBERTAS,
    *DISTILBERTS,
    *ELECTRAS,
    *MPNETS,
    MODERNBERT,
    T5,
    UMT5,
    BART,
    MARIAN,
)
FAMILIES = {family.architecture: family for family in ALL}
