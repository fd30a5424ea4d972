"""The table of tasks: from a config to its class."""

from heddle.checks import checked
from heddle.config.base import Config
from heddle.config.tasks import (
    ChatConfig,
    ClassificationConfig,
    ContrastiveConfig,
    MaskedConfig,
    MultiLabelConfig,
    NextTokenConfig,
    PrefixLMConfig,
    RegressionConfig,
    SpanCorruptionConfig,
    TokenClassificationConfig,
    TranslationConfig,
)
from heddle.errors import HeddleError, article
from heddle.tasks.chat import ChatTask
from heddle.tasks.classification import ClassificationTask
from heddle.tasks.contrastive import ContrastiveTask
from heddle.tasks.masked import MaskedTask
from heddle.tasks.multi_label import MultiLabelTask
from heddle.tasks.next_token import NextTokenTask
from heddle.tasks.prefix_lm import PrefixLMTask
from heddle.tasks.regression import RegressionTask
from heddle.tasks.span_corruption import SpanCorruptionTask
from heddle.tasks.task import DataSpec, Task
from heddle.tasks.token_classification import TokenClassificationTask
from heddle.tasks.translation import TranslationTask

TASKS: dict[type[Config], type[Task]] = {
    NextTokenConfig: NextTokenTask,
    MaskedConfig: MaskedTask,
    PrefixLMConfig: PrefixLMTask,
    TranslationConfig: TranslationTask,
    ChatConfig: ChatTask,
    SpanCorruptionConfig: SpanCorruptionTask,
    ClassificationConfig: ClassificationTask,
    TokenClassificationConfig: TokenClassificationTask,
    MultiLabelConfig: MultiLabelTask,
    RegressionConfig: RegressionTask,
    ContrastiveConfig: ContrastiveTask,
}


@checked()
def make_task(config: Config, spec: DataSpec) -> Task:
    """Make the task of a config.

    Args:
        config: the task's config, such as `NextTokenConfig()`.
        spec: the texts, the model's config, and the examples per step.

    Raises:
        HeddleError: no task has such a config, or the texts are too short for it.
    """
    if type(config) not in TASKS:
        names = ", ".join(kind.__name__ for kind in TASKS)
        raise HeddleError(
            f"make_task: config = {article(type(config).__name__)}: must be a task's config, such as {names}"
        )
    return TASKS[type(config)](config, spec)
