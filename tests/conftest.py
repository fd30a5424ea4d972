"""What every test shares: one thread per worker, no network, repeatable examples, shapes checked as the code runs."""

import os

# Before torch is imported: two pytest workers share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

settings.register_profile(
    "heddle", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("heddle")

# Every jaxtyping signature in these packages is checked by beartype. torch.compile cannot trace the checks,
# so tests of compiled code start a process with HEDDLE_UNCHECKED=1.
CHECKED = ["heddle.nn", "heddle.model", "heddle.train", "heddle.generate", "heddle.data"]
if os.environ.get("HEDDLE_UNCHECKED") != "1":
    install_import_hook(CHECKED, "beartype.beartype")
