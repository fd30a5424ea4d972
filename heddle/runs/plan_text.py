"""A plan in words."""

from pathlib import Path

from heddle.display import duration, size
from heddle.errors import pluralize
from heddle.runs.plan import Plan
from heddle.train.model_selection import describe


def describe_plan(plan: Plan, run: Path) -> str:
    """What a run will do, in a few lines.

    Args:
        plan: of the run.
        run: its directory.
    """
    chosen, model, train = plan.chosen, plan.model, plan.train
    depth = " + ".join(str(stack.depth) for stack in model.stacks().values())
    trained, total = plan.trained, pluralize(plan.parameters, "parameter")
    frozen = f"{trained.frozen:,} of the {total} are frozen"
    if train.lora is not None:
        frozen = (
            f"{trained.total:,} parameters are trained ({trained.total / plan.parameters:.2%}), {trained.adapters:,} of them "
            f"in adapters of rank {train.lora.rank} on {pluralize(trained.layers, 'layer')}; {frozen}"
        )
    checkpointed = "activations are checkpointed"
    truncated = "".join(f", {part}" for part in plan.cut)
    start = (
        ""
        if chosen.start is None
        else f"starting from the weights of {chosen.start.run}{truncated}, with {train.optimizer}"
    )
    export = "" if chosen.start is None else f"the trained model {plan.exported.sentence()}"
    notes = (
        [start, export]
        + [frozen] * bool(trained.frozen)
        + [plan.split]
        + [checkpointed] * train.checkpoint_activations
        + [describe(train)]
    )
    if chosen.batch_tokens is not None:
        sizes, unit = f"about {plan.tokens_per_step:,} tokens", "records"
    elif plan.tokens_per_step == chosen.batch * model.context:
        sizes, unit = f"{chosen.batch} x {model.context} = {plan.tokens_per_step:,} tokens", "text"
    else:
        sizes, unit = f"{pluralize(chosen.batch, 'example')}, about {plan.tokens_per_step:,} tokens", "data"
    return (
        f"run {run}: {plan.parameters:,} parameters (depth {depth}, width {model.dim}, context {model.context}, "
        f"{pluralize(model.vocab_size, 'id')}) on {pluralize(plan.train_tokens, 'token')}, "
        f"{plan.validation_tokens:,} held out\n"
        f"{pluralize(chosen.steps, 'step')} of {sizes} "
        f"({plan.epochs:.1f} times through the {unit}), learning rate {chosen.learning_rate:.2g}, "
        f"{chosen.precision}{' in TF32' if train.tf32 else ''} on {chosen.device}, "
        f"{pluralize(chosen.threads, 'thread')}{', compiled' if chosen.compile else ''}, "
        f"{chosen.tokens_per_second:,.0f} tokens/s measured, about {duration(plan.minutes * 60)} and {size(plan.memory)}"
        + "".join(f"\n{line}" for line in notes if line)
    )
