"""What explains a memory peak: the largest tensors at it, and what would make it smaller."""

from forerun.records import Record


class LiveTensor(Record):
    """One allocation that is alive at the peak."""

    bytes: int
    category: str
    module: str
    operator: str
    """The aten overload that made it; empty for what was there before the step."""
    phase: str
    line: str
    """File and line of the program that called the operator; of the backward pass, the call that started it."""


class Lever(Record):
    """One change of settings and what it would do to the peak."""

    change: str
    """The change as `--set` takes it."""
    saves_bytes: int
    """Bytes that the peak of allocated memory would fall by; negative when it would grow."""
    changes_method: bool
    """Whether it changes what is trained, not only how."""


class RankExchange(Record):
    """Equal collectives of one step of a rank."""

    name: str
    """Such as `allreduce_` of c10d, or `all_gather_into_tensor` of tensor parallelism."""
    phase: str
    ranks: int
    machines: int
    """Machines that the ranks are in."""
    bytes: int
    """Of the larger side of one: its input or its output."""
    count: int
    """Of settings in the micro-batches that are traced: at most the first and one that stands for the others."""


class Explanation(Record):
    """Tensors alive at the peak, and the settings that would lower it."""

    phase: str
    """Part of the step in which the peak falls."""
    module: str
    operator: str
    largest: list[LiveTensor]
    modules: dict[str, dict[str, int]]
    """Bytes by module path, with block numbers as *, and category."""
    largest_micro_batch_size: int | None = None
    """Largest micro-batch that fits the card at the longest length, 0 when none does; null on the host."""
    levers: list[Lever]
    exchanges: list[RankExchange] = []
    """What this rank exchanges with others, most bytes first; empty in one process."""
