"""Checks that a model predicts with the function it was trained with, and that a run's training was correct.

In reading order:

- `subject`: the model under test, passes traced layer by layer, and the measured rounding error.
- `verdict`: comparisons and verdicts: exact, rounding or different.
- `checks`: checks of inference, one function each; `learning`: checks of loss and gradients.
- `training`: a task and model under test, and a training step; `rows`: rearranged batches.
- `arrangement`, `targets`, `coverage`: the laws of training, one function each; `laws`: their table.
- `kills`: kill and resume a run.
- `proof`: run all checks of a model.
- `laptop`: shrink a large config to laptop size.
- `run`: check a trained run and its tokenizer.

`prove(model)`, `prove_config(config)` and `prove_run(run)` return a `Proof`, which `heddle prove` prints.
"""

from heddle.prove.laptop import LARGE as LARGE
from heddle.prove.laptop import laptop as laptop
from heddle.prove.proof import Proof as Proof
from heddle.prove.proof import prove as prove
from heddle.prove.proof import prove_config as prove_config
from heddle.prove.run import prove_run as prove_run
from heddle.prove.run import served_ids as served_ids
from heddle.prove.verdict import Verdict as Verdict

__all__ = ["LARGE", "Proof", "Verdict", "laptop", "prove", "prove_config", "prove_run", "served_ids"]
