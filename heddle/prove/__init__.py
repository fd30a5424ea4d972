"""The lectures' requirement, that what predicts is the function that was trained, put to the proof for any model."""

from heddle.prove.laptop import LARGE as LARGE
from heddle.prove.laptop import laptop as laptop
from heddle.prove.proof import Proof as Proof
from heddle.prove.proof import prove as prove
from heddle.prove.proof import prove_config as prove_config
from heddle.prove.verdict import Verdict as Verdict

__all__ = ["LARGE", "Proof", "Verdict", "laptop", "prove", "prove_config"]
