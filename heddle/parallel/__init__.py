"""Several processes that train one model together: torchrun starts them, torch.distributed connects them.

- `launcher`: what torchrun says in the environment; `early`: errors before the processes have joined.
- `join`: join the processes that torchrun started.
- `ranks`: this process among them, and sums over all.
- `mesh`: an axis of processes for each way of dividing a training, and what cannot be combined.
- `parts`: what training asks of a divided model. `sharding` divides parameters (FSDP2), `tensor` layers, `vocabulary` tables and
  their scores, `context` the tokens of a row, `experts` the experts of mixtures, `pipeline` the blocks, with what a `stage`
  computes. `masks`: dropout of what is divided.
- `regions`: where a part lies in a whole tensor; `dealing`: Muon's matrices, dealt among processes.
- `saving`: shards of a checkpoint, written in the background.
- `board`: what they tell each other beside the collectives: who is there, whether all have the same run, who failed.
- `heartbeat`: a sign of life, so that a stopped process is named.
- `output`: rank 0 speaks on the terminal, the others in files of the run; `collectives`: how much of a step they take.
"""

__all__: list[str] = []
