"""Training in a few lines of Python: a model, a tokenizer, a string."""

from math import isfinite

from heddle.checks import POSITIVE, at_least, checked
from heddle.config.tasks import NextTokenConfig
from heddle.config.train import TrainConfig
from heddle.data.sources import Document
from heddle.data.store import Corpus, part_of
from heddle.errors import HeddleError
from heddle.model.checkpointing import checkpointed
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.optimizer import Optimizer
from heddle.train.runtime import seed_step
from heddle.train.schedule import factor
from heddle.train.step import train_step
from heddle.train.task import Reading
from heddle.train.tasks import make_task


@checked(steps=at_least(1), batch=at_least(1), learning_rate=POSITIVE)
def fit(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    steps: int,
    batch: int = 8,
    learning_rate: float = 3e-3,
    config: TrainConfig | None = None,
) -> list[float]:
    """Train `model` in place, in fp32, on a string; return the loss of every step in nats per token.

    The step is that of a run, without validation, checkpoints or files; for those, use `heddle train`. Training starts from
    the model's present weights; to start from word vectors, call
    `heddle.weights.load_vectors(model, tokenizer, file)` first. Parameters that the config's groups freeze need no gradient
    from then on.

    Raises:
        HeddleError: the tokenizer does not match the model, the text is shorter than one window of context + 1 tokens, the
            config names a file of vectors or decides what a run publishes, or the loss becomes NaN or infinite.
    """
    config = config or TrainConfig()
    model.check_vocabulary(tokenizer.vocab_size)
    if config.vectors is not None:
        raise HeddleError("fit does not read train.vectors: call heddle.weights.load_vectors before fit")
    for name in ("ema", "average", "patience"):
        if getattr(config, name) is not None:
            raise HeddleError(f"fit does not know {name}, which decides what a run publishes: leave it out")
    corpus = Corpus(part_of([Document(text, "text")], tokenizer))
    task = make_task(NextTokenConfig(), Reading(corpus, model.config, batch, config.seed))
    optimizer = Optimizer(model, config, learning_rate, "fp32")
    objective = task.objective(model, config.label_smoothing, config.z_loss)
    model.train()
    losses = []
    with checkpointed(model, config.checkpoint_activations):
        for step in range(steps):
            seed_step(config.seed, step)
            given = task.batch(task.examples(step)).to(model.device)
            scale = factor(step, steps, steps // 50, config)
            loss, norm = train_step(objective, optimizer, given, 1, scale, config.clip)
            if not (isfinite(loss) and isfinite(norm)):
                raise HeddleError(f"step {step + 1}: loss is {loss}, the gradient's norm {norm}; lower learning_rate")
            losses.append(loss)
    model.eval()
    return losses
