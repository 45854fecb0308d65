"""Which batch shapes an epoch consists of: the one thing about data that time and memory depend on.

A `BatchPlan` counts micro-batches by shape. Recipes make it from the sampler that training uses; generic workloads from
the settings alone (`plan_from_settings`). No torch.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.data.sample_lengths import SampleLengths
from forerun.errors import InvalidSettings
from forerun.settings.media import DENOISING, WITHOUT_TOKENS
from forerun.settings.schema import Settings

AHEAD = (
    "latents of images and embeddings of texts are computed once beforehand, so that VAE and text encoders are not on "
    "the card; a script that keeps them there needs their weights more."
)
"""What is taken of a denoiser's step."""


@dataclass(frozen=True, slots=True, order=True)
class BatchShape:
    """One micro-batch: samples and padded tokens per sample."""

    size: int
    length: int


@dataclass(frozen=True)
class BatchPlan:
    """Micro-batches of one epoch by shape, the number of optimizer steps that they make, and the real tokens."""

    shapes: tuple[tuple[BatchShape, int], ...]
    steps: int
    samples: int
    tokens: float
    """Non-padding tokens of the epoch."""
    assumptions: tuple[str, ...] = ()

    @classmethod
    def count(
        cls, shapes: Iterable[BatchShape], *, steps: int, samples: int, tokens: float, assumptions: tuple[str, ...] = ()
    ) -> "BatchPlan":
        """A plan from every micro-batch of an epoch."""
        return cls(tuple(sorted(Counter(shapes).items())), steps, samples, tokens, assumptions)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the epoch."""
        return sum(number for _, number in self.shapes)

    @property
    def longest(self) -> BatchShape:
        """The shape with the most padded tokens, then the longest: memory peaks there."""
        return max((shape for shape, _ in self.shapes), key=lambda s: (s.size * s.length, s.length))

    @property
    def padded_tokens(self) -> int:
        """Padded tokens of the epoch."""
        return sum(shape.size * shape.length * number for shape, number in self.shapes)


def plan_from_settings(settings: Settings) -> BatchPlan:
    """The plan of a workload of which only sizes are known: `data.examples` and perhaps `data.mean_tokens`.

    `fixed` pads every sample to the sequence length. Other paddings need the lengths; where only their mean is known
    they are taken as geometric, cut at the sequence length, and where nothing is known as all at the sequence length.
    Both assumptions are stated in the plan. A sample without tokens has the length 1.

    Raises:
        InvalidSettings: neither `data.examples` nor `schedule.max_steps` gives the run a length.
    """
    batch, examples = settings.batch, settings.data.examples
    if examples is None:
        if settings.schedule.max_steps is None:
            raise InvalidSettings(
                "data.examples: the length of the run is unknown; found neither data.examples nor schedule.max_steps. "
                "Set one of them."
            )
        examples = settings.schedule.max_steps * settings.global_batch_size
    longest = 1 if settings.workload in WITHOUT_TOKENS else batch.sequence_length
    mean = settings.data.mean_tokens or longest
    sequences, length, assumptions = examples, longest, ()
    if batch.padding == "packed":
        sequences = max(1, math.ceil(examples * mean / batch.sequence_length))
        assumptions = ("padding: packed sequences are taken as full.",)
    elif batch.padding != "fixed" and settings.data.mean_tokens is None:
        assumptions = ("data.mean_tokens is not given: every sample is taken as long as batch.sequence_length.",)
    elif batch.padding != "fixed":
        size = batch.micro_batch_size if batch.padding == "longest" else 1
        samples = SampleLengths(mean, batch.sequence_length, drops=settings.data.too_long == "drop")
        length = min(batch.sequence_length, round(samples.expected_longest(size)))
        shape = "as exponential up to batch.sequence_length" if samples.drops else "as geometric"
        assumptions = (f"sample lengths are taken {shape} around data.mean_tokens.",)
    if settings.workload in DENOISING:
        assumptions = (AHEAD,)
    full, rest = divmod(sequences, batch.micro_batch_size)
    shapes = Counter({BatchShape(batch.micro_batch_size, length): full})
    if rest:
        shapes[BatchShape(rest, length)] += 1
    if length != longest:
        shapes[BatchShape(batch.micro_batch_size, batch.sequence_length)] += 0
    tokens = 0.0 if settings.workload in WITHOUT_TOKENS else examples * mean
    return BatchPlan(tuple(sorted(shapes.items())), settings.steps_per_epoch(sequences), examples, tokens, assumptions)
