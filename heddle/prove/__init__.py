"""The lectures' requirement, that what predicts is the function that was trained, put to the proof for any model."""

from heddle.prove.laptop import LARGE as LARGE
from heddle.prove.laptop import laptop as laptop
from heddle.prove.proof import Proof as Proof
from heddle.prove.proof import prove as prove
from heddle.prove.proof import prove_config as prove_config
from heddle.prove.run import prove_run as prove_run
from heddle.prove.run import served_ids as served_ids
from heddle.prove.verdict import Verdict as Verdict

__all__ = ["LARGE", "Proof", "Verdict", "laptop", "prove", "prove_config", "prove_run", "served_ids"]
