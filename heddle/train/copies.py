"""Working copies of the weights, and their fp32 masters, in parts that one launch moves."""

from collections.abc import Iterator, Sequence

from torch import nn

AT_ONCE = 1 << 24  # gradients to cast at a time: few launches on a GPU, and 64 MiB besides


def at_once(copies: Sequence[tuple[nn.Parameter, nn.Parameter]]) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
    """Working copies and their masters in parts of about `AT_ONCE` numbers; on a CPU, which launches nothing, one by one."""
    part, size = list[tuple[nn.Parameter, nn.Parameter]](), 0
    for working, master in copies:
        size += master.numel()
        if part and (size > AT_ONCE or master.device.type == "cpu"):
            yield part
            part, size = [], master.numel()
        part.append((working, master))
    if part:
        yield part
