"""Which task a config stands for."""

from heddle.checks import checked
from heddle.config.base import Config
from heddle.config.run import NextTokenConfig
from heddle.errors import HeddleError
from heddle.train.next_token import NextTokenTask
from heddle.train.task import Reading, Task

TASKS: dict[type[Config], type[Task]] = {NextTokenConfig: NextTokenTask}


@checked()
def make_task(config: Config, reading: Reading) -> Task:
    """The task that a config describes, over what it reads.

    Args:
        config: a task's, such as `NextTokenConfig()`.
        reading: the texts, the model's sizes, and the examples in a step.

    Raises:
        HeddleError: no task has such a config, or the texts are too short for it.
    """
    return task_class(config)(config, reading)


def task_class(config: Config) -> type[Task]:
    """The class of tasks that a config stands for.

    Raises:
        HeddleError: there is none.
    """
    if type(config) not in TASKS:
        known = ", ".join(kind.__name__ for kind in TASKS)
        raise HeddleError(f"make_task: config = a {type(config).__name__}: a task's is needed, such as {known}")
    return TASKS[type(config)]
