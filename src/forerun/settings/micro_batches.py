"""The same run with another number of micro-batches in a step."""

from forerun.settings.schema import Settings


def with_micro_batches(settings: Settings, count: int) -> Settings:
    """`settings` whose steps have `count` micro-batches; what else they must agree with is not looked at again."""
    batch = settings.batch.model_copy(update={"gradient_accumulation_steps": count})
    return settings.model_copy(update={"batch": batch})
