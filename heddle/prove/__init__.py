"""Checks that the function that predicts is the function that was trained, of any model, and that a run was trained as meant.

In reading order:

- `subject`: the model under test, its passes traced layer by layer, and its measured rounding error.
- `verdict`: the outcome of a comparison: exact, rounding or different, and from which layer on.
- `checks`: the checks of prediction, one function each; `learning`: the checks of loss and gradients.
- `training`: a run's task and model under test, and its training step; `rows`: batches rearranged.
- `arrangement`, `targets`, `coverage`: the laws of training, one function each; `laws`: their table.
- `kills`: a run that is killed and resumed.
- `proof`: all checks of one model, and their summary.
- `laptop`: a large model's choices at laptop size.
- `run`: a trained run under test, with its tokenizer.

`prove(model)`, `prove_config(config)` and `prove_run(run)` return a `Proof`, as `heddle prove` shows it.
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
