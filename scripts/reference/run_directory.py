"""Every file of a run directory. Names come from the modules that write them."""

from heddle.convert.word_vectors import VECTORS
from heddle.data.base import META
from heddle.look.readings import READINGS
from heddle.prove.run import PROOF
from heddle.runs.compare import METRICS
from heddle.runs.journal import SAMPLES, SPEED
from heddle.runs.token_cache import DATA
from heddle.weights.checkpoints import ADAPTER, CHECKPOINTS, CONFIG, MODEL, OPTIMIZER, STATE, TOKENIZER, shard_name
from heddle.weights.files import MANIFEST
from heddle.weights.start import START
from scripts.reference.text import code, prose, table, title

STEP = f"{CHECKPOINTS}/step-N"
FILES = {
    CONFIG: "The model, the data, the task and the training, with every setting that was chosen by measurement.",
    MODEL: "The published weights, in fp32: what `generate`, `eval`, `look` and `export` read.",
    TOKENIZER: "The tokenizer.",
    MANIFEST: "Size and SHA-256 checksum of the files beside it.",
    METRICS: "A line of JSON for each report: loss, learning rate, gradient norms, evaluations.",
    SAMPLES: "Texts that the model wrote while it was trained.",
    SPEED: "Tokens and seconds of all steps.",
    READINGS: "Statistics of layers and heads, with `--readings`.",
    PROOF: "What `heddle prove` found.",
    ADAPTER: "With LoRA: the trained adapters, which the published weights include.",
    START: "With `from=`: the weights that the run started from.",
    VECTORS: "With `vectors=`: the first rows of the token table.",
    f"{DATA}/{META}": "What the tokens were made from: sources, settings, checksums.",
    f"{DATA}/PART.tokens": "The ids of a part, `train` or `validation`, memory-mapped. Records have a file for each column.",
    f"{DATA}/PART.documents": "Where each document of the part begins.",
    f"{STEP}/{MODEL}": "The weights at step N. With LoRA, the adapters alone.",
    f"{STEP}/{OPTIMIZER}": "The optimizer's state.",
    f"{STEP}/{STATE}": "The step, and what else training needs to continue bit for bit.",
    f"{STEP}/{shard_name(MODEL, 'R')}": "With several processes: what process R has of each weight, and so on.",
    f"{STEP}/{CONFIG}": "The same as above, so that a checkpoint is a run of its own.",
    f"{STEP}/{TOKENIZER}": "The same.",
    f"{STEP}/{MANIFEST}": "Checksums of the checkpoint's files.",
}
OPENING = """
A run is a directory of safetensors and JSON. Every file is written atomically: a reader sees the old one or the new one. Loading
checks the sizes and checksums, and refuses a file that does not have them. Nothing in a run is executed when it is read.

"""


def page() -> str:
    """Every file of a run, with what it holds."""
    rows = [(code(name), prose(what)) for name, what in FILES.items()]
    return "\n".join([title("Run directory"), OPENING, table(("file", "what it holds"), rows, name="fields")])
