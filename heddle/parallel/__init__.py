"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

- `join`: join the processes that torchrun started.
- `ranks`: this process among them, sums over all, and the wrapper of the objective.
- `board`: what they tell each other beside the collectives: who is there, whether all have the same run, who failed.
- `heartbeat`: a sign of life, so that a stopped process is named.
- `output`: rank 0 speaks on the terminal, the others in files of the run.
"""

__all__: list[str] = []
