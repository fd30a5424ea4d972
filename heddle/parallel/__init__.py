"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

- `join`: join the processes that torchrun started.
- `ranks`: this process among them, sums over all, and the wrapper of the objective.
"""

from heddle.parallel.join import join_ranks as join_ranks
from heddle.parallel.ranks import Ranks as Ranks

__all__ = ["Ranks", "join_ranks"]
