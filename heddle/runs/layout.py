"""Whether processes can divide a run among them: judged before its text is read, before it changes, and before it starts."""

from heddle.config.model import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.saved import SavedConfig
from heddle.config.tasks import NextTokenConfig, TaskSettings
from heddle.config.train import TrainConfig
from heddle.model.build import build
from heddle.model.lora import adapt
from heddle.parallel.mesh import check_layers, check_pipeline, check_task, mesh_sizes
from heddle.parallel.ranks import Ranks
from heddle.tasks.task import MULTIPLE


def check_layout(config: ParallelConfig, model: TransformerConfig, train: TrainConfig, compiled: bool, ranks: int,
                 rows: int | None, task: TaskSettings | None) -> None:  # fmt: skip
    """Refuse a mesh that these processes cannot be, and a step that they cannot share.

    Args:
        config: how they divide the run.
        model: the model.
        train: the settings.
        compiled: whether its steps are compiled.
        ranks: how many processes there are.
        rows: of a step; None: as many as tokens fill.
        task: what it learns; None: to predict the next token.

    Raises:
        HeddleError: the mesh has another size, or the rows of a step or their tokens cannot be divided among the processes.
    """
    sizes = mesh_sizes(config, ranks)
    check_task(config, task or NextTokenConfig())
    check_pipeline(config, model, train, compiled)
    Ranks(0, ranks).on(sizes).check_batch(MULTIPLE * train.accumulate if rows is None else rows, train.accumulate)


def check_run(config: SavedConfig, ranks: int) -> None:
    """Refuse a run that these processes cannot continue.

    Raises:
        HeddleError: they cannot; one line says what to change.
    """
    train, chosen = config.train, config.chosen
    assert train is not None
    assert chosen is not None
    rows = chosen.batch if chosen.batch_tokens is None else None
    check_layout(config.parallel, config.model, train, chosen.compile, ranks, rows, config.task)
    check_division(config.parallel, config.model, train)


def check_division(config: ParallelConfig, model: TransformerConfig, train: TrainConfig) -> None:
    """Refuse a model whose layers cannot be divided.

    Raises:
        HeddleError: one of them cannot.
    """
    check_layers(config, model)
    if max(config.tensor, config.context, config.expert) > 1:
        from heddle.parallel.sharding import check_division as check  # which takes half a second to import

        check(adapt(build(model, "meta"), train.lora), config)
