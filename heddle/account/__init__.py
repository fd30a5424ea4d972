"""Parameters, FLOPs and memory of a model, counted from the model itself on the meta device.

In reading order:

- `parameters`: their number, by component.
- `trained`: how many of them training updates, including adapters.
- `walk`: the matrix products that each module states; `forward`: a real forward pass, counted by torch, which checks them.
- `flops`: FLOPs of a forward pass and of training.
- `memory`: bytes of weights, training state, KV cache and saved activations.
- `quadratic`: memory of attention as sequences become longer.
- `repeats`: measures deep models with few layers, and recurrent layers with few tokens.
- `formulas`: the lectures' closed forms, for comparison.
- `resolve`: from a name to a model: a preset, a run or a file.
- `report`: the full account of a model, as data (`count` returns `Accounts`); `render`: the same as tables.
- `machine`: measures this machine: matrix products, copies, free memory.

`count(config)` returns the account of a model that `heddle count` prints.
"""

from heddle.account.flops import Flops as Flops
from heddle.account.flops import flops as flops
from heddle.account.flops import training_flops_per_token as training_flops_per_token
from heddle.account.formulas import Line as Line
from heddle.account.forward import counted as counted
from heddle.account.machine import available_memory as available_memory
from heddle.account.machine import copy_rate as copy_rate
from heddle.account.machine import matmul_rate as matmul_rate
from heddle.account.machine import slowdown as slowdown
from heddle.account.machine import usable_precision as usable_precision
from heddle.account.memory import Memory as Memory
from heddle.account.memory import cache_size as cache_size
from heddle.account.memory import memory as memory
from heddle.account.memory import saved_activations as saved_activations
from heddle.account.memory import states as states
from heddle.account.memory import training_bytes as training_bytes
from heddle.account.parameters import Parameters as Parameters
from heddle.account.parameters import parameter_count as parameter_count
from heddle.account.parameters import parameters as parameters
from heddle.account.parameters import weights as weights
from heddle.account.quadratic import attention_table as attention_table
from heddle.account.render import render as render
from heddle.account.report import Accounts as Accounts
from heddle.account.report import count as count
from heddle.account.report import family as family
from heddle.account.report import preset_table as preset_table
from heddle.account.report import training_settings as training_settings
from heddle.account.resolve import changed as changed
from heddle.account.resolve import resolve as resolve
from heddle.account.walk import Walk as Walk
from heddle.account.walk import walk as walk

__all__ = [
    "Accounts",
    "Flops",
    "Line",
    "Memory",
    "Parameters",
    "Walk",
    "attention_table",
    "available_memory",
    "cache_size",
    "changed",
    "copy_rate",
    "count",
    "counted",
    "family",
    "flops",
    "matmul_rate",
    "memory",
    "parameter_count",
    "parameters",
    "preset_table",
    "render",
    "resolve",
    "saved_activations",
    "slowdown",
    "states",
    "training_bytes",
    "training_flops_per_token",
    "training_settings",
    "usable_precision",
    "walk",
    "weights",
]
