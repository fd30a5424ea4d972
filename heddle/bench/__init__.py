"""How fast a device trains and decodes by heddle, beside a plain compiled loop and Hugging Face transformers.

In reading order:

- `models`: what is measured, and how much on each kind of device.
- `timing`: work in turns, and the memory that it takes.
- `training`, `decoding`: the contenders; `hugging_face`: the same model in the other library.
- `machine`: the device's ceilings, its precision and its description.
- `run`: the benchmark; `report`: its result.

`bench()` returns a `Bench`, which `heddle bench` prints.
"""

from heddle.bench.models import MODELS as MODELS
from heddle.bench.report import Bench as Bench
from heddle.bench.report import Ceiling as Ceiling
from heddle.bench.report import Rounds as Rounds
from heddle.bench.report import Speed as Speed
from heddle.bench.run import bench as bench

__all__ = ["MODELS", "Bench", "Ceiling", "Rounds", "Speed", "bench"]
