"""The weights that a run starts from: new ones, those of another run, rows from a file of vectors.

One process has them whole. Several divide a model that has no memory yet; then each gives its parts memory and the same values, and
holds only one more tensor at a time.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.saved import Chosen
from heddle.config.train import TrainConfig
from heddle.convert.word_vectors import VECTORS, load_rows, put_rows
from heddle.model.build import build, build_custom
from heddle.model.initialise import initial_values
from heddle.model.lora import adapt, initial_factors
from heddle.model.transformer import Transformer
from heddle.parallel.parts import Parts
from heddle.weights.start import START, fitting, load_start, open_start
from heddle.weights.tensors import specs_of

TABLE = "embedding.weight"


@dataclass(frozen=True)
class InitialWeights:
    """The weights that a run starts from.

    Attributes:
        run: its directory.
        config: of its model.
        train: the settings.
        chosen: what was decided before the run, with the checksums of its files.
        resumed: whether a checkpoint's weights come next. One of adapters does not contain the weights beside them.
    """

    run: Path
    config: TransformerConfig
    train: TrainConfig
    chosen: Chosen
    resumed: bool

    @property
    def loads_start(self) -> bool:
        """Whether weights of another run are loaded."""
        beside = self.train.lora is not None
        return self.chosen.start is not None and (beside or not self.resumed)

    def build(self, device: torch.device) -> Transformer:
        """The model with these weights."""
        model = adapt(build(self.config, device, self.train.seed), self.train.lora, self.train.seed)
        if self.loads_start:
            load_start(model, *self._start())
        if self.chosen.vectors is not None and not self.resumed:
            put_rows(model.embedding.weight, *self._rows())
        return model

    def build_empty(self, device: torch.device) -> Transformer:
        """The model on the meta device, except a user's modules, which are whole.

        Only their constructors know their values, and may not work on the meta device.
        """
        model = build(self.config, "meta")
        build_custom(model, device, self.train.seed)
        return adapt(model, self.train.lora)

    @torch.no_grad()
    def divide(
        self, model: Transformer, config: ParallelConfig, sizes: dict[str, int], precision: str, device: torch.device
    ) -> Parts:
        """Divide the model of `build_empty`, and give this process its parts of the weights that `build` makes, bit for bit.

        Every process makes all new weights, since random numbers follow one another.

        Args:
            config: how several processes divide it.
            sizes: of the axes of their mesh.
            precision: what blocks compute in.
            device: where the parts get memory.
        """
        from heddle.parallel.pipeline import divide  # which takes half a second to import

        whole = specs_of(model.state_dict())
        parts = divide(model, config, sizes, precision, self.train.accumulate, device)
        if self.resumed and self.train.lora is None:
            return parts
        shapes = {name: spec.shape for name, spec in whole.items()}
        parts.fill(initial_values(shapes, self.config, torch.Generator().manual_seed(self.train.seed)))
        parts.fill(initial_factors(shapes, self.train.seed))
        if self.loads_start:
            file, checksum = self._start()
            weights, tensors = open_start(file, checksum), {**dict(model.named_buffers()), **parts.masters}
            for name in fitting(weights.specs, whole, file):
                if name in tensors:  # a user's module may name one twice
                    tensors[name].copy_(parts.read(weights, name))
        if self.chosen.vectors is not None and not self.resumed and len(parts.masters[TABLE]):
            rows, _ = parts.region(TABLE, shapes[TABLE])
            put_rows(parts.masters[TABLE], *self._rows(), rows.start)
        return parts

    def _start(self) -> tuple[Path, str]:
        """The file with another run's weights, and its checksum."""
        assert self.chosen.start is not None
        return self.run / START, self.chosen.start.sha256

    def _rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows from a file of vectors, and their ids."""
        assert self.chosen.vectors is not None
        return load_rows(self.run / VECTORS, self.chosen.vectors.sha256)
