"""A program for several ranks: tables divided by rows, `vocabulary.py FOLDER some|all`, compared with those of one process.

All is in float64: rank 0 writes the largest difference of vectors, scores, losses and gradients of each case to `gaps.json`.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from heddle.config.model import TransformerConfig
from heddle.config.presets import sized
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.parallel.join import join_ranks
from heddle.parallel.vocabulary import divide_tables
from heddle.tasks.loss import cross_entropy

SIZES = ((64, 1), (67, 1), (61, 16), (50, 64))  # ids, and the multiple to which tables are padded
HEADS = tuple(
    {"tied": tied, "bias": bias, "cap": cap}
    for tied, bias, cap in itertools.product((True, False), (True, False), (None, 3.0))
)
TERMS = ((0.0, 0.0), (0.1, 0.0), (0.0, 0.02), (0.1, 0.02))  # label smoothing and the factor of the z-loss
Case = tuple[tuple[int, int], dict[str, Any], tuple[float, float]]
CASES: dict[str, list[Case]] = {
    "all": [*itertools.product(SIZES, HEADS, TERMS)],
    # Every head with every size, and all terms with each head and with each size.
    "some": [
        (size, head, TERMS[(row + column) % len(TERMS)])
        for row, size in enumerate(SIZES)
        for column, head in enumerate(HEADS)
    ],
}


def config(vocab_size: int, multiple: int, head: dict[str, Any]) -> TransformerConfig:
    """A model of tables alone is enough; its blocks are not called."""
    table = sized(vocab_size=vocab_size, dim=16, depth=1).to_dict() | {"pad_vocab_to": multiple}
    table["head"] |= head
    return TransformerConfig.of(table)


def numbers(model: Transformer, terms: tuple[float, float], chunk: int) -> dict[str, Tensor]:
    """Vectors, scores and losses of one batch, and their gradients."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(model.vocab_size, (3, 7), generator=generator)
    noise = torch.randn(3, 7, 16, generator=generator, dtype=torch.float64)
    targets = torch.randint(model.vocab_size, (21,), generator=generator)
    weights = torch.rand(21, generator=generator, dtype=torch.float64)
    head = model.language_head()
    vectors = model.embedding(ids)
    hidden = vectors + noise
    logits = model.logits(hidden)
    features, scores = head.features(hidden).flatten(0, 1), head.scoring(model.embedding.weight)
    loss, plain = cross_entropy(features, targets, weights, scores, chunk, *terms)
    (loss + (logits * torch.linspace(-1, 1, logits.shape[-1])).sum()).backward()
    made = {"vectors": vectors, "logits": logits, "loss": loss, "plain": plain}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if gradient is not None:
            made[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return {name: tensor.detach() for name, tensor in made.items()}


def gap(mesh: DeviceMesh, whole: TransformerConfig, terms: tuple[float, float]) -> float:
    """The largest difference between divided tables and whole ones."""
    one, several = (build(whole, "cpu", 0).double() for _ in range(2))
    for model in (one, several):
        for parameter in model.head.parameters() if model.head is not None else ():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
    divide_tables(several, mesh)
    expected, made = numbers(one, terms, 8), numbers(several, terms, 5)
    assert made.keys() == expected.keys()
    return float(torch.stack([(made[name] - tensor).abs().max() for name, tensor in expected.items()]).max())


def main(folder: Path, which: str) -> None:
    torch.set_num_threads(1)
    ranks = join_ranks("cpu")
    mesh = init_device_mesh("cpu", (ranks.count,), mesh_dim_names=("tensor",))
    gaps = {f"{size}, {head}, {terms}": gap(mesh, config(*size, head), terms) for size, head, terms in CASES[which]}
    if ranks.leads:
        (folder / "gaps.json").write_text(json.dumps(gaps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
