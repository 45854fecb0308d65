"""Is it alive? What a run that learns nothing would look like, found in its first steps.

- Every trainable tensor gets a gradient in the first steps and has moved some steps later. An adapter that was left out
  of the graph, a head that nothing reads and an encoder that was frozen by mistake all train without complaint.
- Matrices of adapters that start from zero are zero no more: a saved adapter of zeros changes nothing.
- The loss is below what a constant answer would have, by a quarter of the run (`TrivialLoss`).

Reading every trainable value twice in a run is the whole cost.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forerun.records import StepReport
from forerun.step.parallel import local
from forerun.step.training_step import TrainingStep

LOOKED_AT = 50
"""Steps after which everything trainable must have moved; earlier where the run is shorter."""
PIECE = 2**22
"""Values looked at together."""
TRIVIAL_PART, RECENT = 4, 10
"""After this part of the run, the mean loss of so many steps is compared with the trivial one."""
NAMED = 3
"""Tensors named in a finding; the others are counted."""


@dataclass(frozen=True)
class TrivialLoss:
    """The loss of an answer that looks at nothing: an entropy of the labels."""

    value: float
    """Mean loss of that answer, in nats."""
    description: str
    """Name of that answer in messages, e.g. `a coin`."""
    part: str = "loss"
    """The loss, or the detail of it, that is compared."""


def label_entropy(labels: Iterable[int], smoothing: float = 0.0) -> float:
    """Least mean cross-entropy of a constant answer to `labels`, in nats; with label smoothing over the labels seen."""
    return count_entropy(list(Counter(labels).values()), smoothing)


def count_entropy(counts: Iterable[int], smoothing: float = 0.0) -> float:
    """`label_entropy` of labels that occur so often; labels that do not occur count for nothing."""
    own = [int(count) for count in counts if count]
    whole = sum(own)
    shares = [(1 - smoothing) * count / whole + smoothing / len(own) for count in own]
    return -sum(share * math.log(share) for share in shares)


class AliveCheck:
    """Watches one run; `findings` are sentences, empty while all is well."""

    def __init__(self, step: TrainingStep, total_steps: int, trivial: TrivialLoss | None = None):
        self.step = step
        self.trivial, self.judged_at = trivial, max(LOOKED_AT, total_steps // TRIVIAL_PART)
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.total_steps = total_steps
        self.last = min(LOOKED_AT, total_steps)
        self.findings: list[str] = []
        self._start: dict[str, tuple[float, float]] = {}
        self._without_gradient: set[str] = set()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def begin(self, steps: int) -> None:
        """Watch gradients from now on; `steps` optimizer steps are done.

        Called before the first step of a process, and again when the schedule thaws the encoder.
        """
        self._remove()
        self.last = min(steps + LOOKED_AT, self.total_steps)
        trainable = self._trainable()
        self._without_gradient = set(trainable)
        for name, parameter in trainable.items():
            self._start.setdefault(name, _fingerprint(parameter))
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient_hook(name)))

    def step_done(self, step: int, *, is_skipped: bool) -> None:
        """Conclude when enough steps have passed; `step` counts from 1."""
        if step < self.last or is_skipped:
            if is_skipped:
                self.last = max(self.last, step + 1)
            return
        if step == self.last:
            self._conclude()
        self._remove()

    def check_loss(self, report: StepReport) -> None:
        """Add a finding if the mean loss is not below the trivial one by a quarter of the run."""
        if self.trivial is None or report.is_skipped or report.step > self.judged_at:
            return
        self._recent.append(report.loss if self.trivial.part == "loss" else report.details[self.trivial.part])
        if report.step < self.judged_at or len(self._recent) < RECENT:
            return
        mean = sum(self._recent) / RECENT
        if mean >= self.trivial.value:
            self.findings.append(
                f"{self.trivial.part.replace('_', ' ')} is {mean:.4f} in the mean of the last {RECENT} steps at step "
                f"{report.step}; {self.trivial.description} has {self.trivial.value:.4f}. Nothing has been learned "
                f"from the inputs."
            )

    def _conclude(self) -> None:
        trainable = self._trainable()
        self._find("got no gradient", sorted(self._without_gradient & set(trainable)))
        moving = {
            name: p for name, p in trainable.items() if name in self._start and name not in self._without_gradient
        }
        still = [name for name, p in moving.items() if _fingerprint(p) == self._start[name]]
        self._find("did not move", still)

    def _find(self, what: str, names: list[str]) -> None:
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            self.findings.append(
                f"{len(names)} of {len(self._start)} trainable tensors {what} in {self.last} steps: "
                f"{', '.join(names[:NAMED])}{more}."
            )

    def _trainable(self) -> dict[str, nn.Parameter]:
        updated = {id(p) for group in self.step.optimizer.param_groups for p in group["params"]}
        parameters = self.step.model.named_parameters()
        return {name: p for name, p in parameters if p.requires_grad and id(p) in updated}

    def _gradient_hook(self, name: str) -> Callable[[Tensor], None]:
        return lambda parameter: self._without_gradient.discard(name)

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _fingerprint(parameter: Tensor) -> tuple[float, float]:
    """Two sums that change when any value does, but for a coincidence; in pieces, so that no copy of it all is made."""
    total = weighted = 0.0
    for number, piece in enumerate(local(parameter.detach()).flatten().split(PIECE), start=1):
        values = piece.double()
        places = torch.arange(1, len(values) + 1, device=values.device, dtype=torch.float64)
        total += float(values.sum())
        weighted += number * float((values * places).sum())
    return total, weighted
