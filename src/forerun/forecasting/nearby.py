"""Before somebody asks: traces at a few sizes from which those of other batches and lengths are worked out exactly.

Boxes around the question (`size_polynomials.py`): a line of batches at its length, the plane of batches and of lengths
that leave the same remainder, and the same lengths for a batch of one sample, whose dimension broadcasts. Their
corners are traced like any step, and kept; a box answers once further traces, at sizes that are no corner of it, are
equal to what it gives in every field. Where they are not, that is kept as well, and every size is traced. Each trace
is kept by itself: whoever ends this and starts it again loses one.

Not covered: compiled steps, packed rows, ranks that share a model, frozen encoders, scoring, lengths below
`LEAST_LENGTH`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forerun.data.plan import BatchShape
from forerun.errors import ForerunError
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.size_polynomials import ROUNDING, NotPolynomial, SizeBox, overlay, trace_at
from forerun.forecasting.traces import (
    has_polynomials,
    is_kept,
    keep_polynomials,
    kept_step,
    line_name,
    plane_name,
)
from forerun.settings.media import WITHOUT_TOKENS
from forerun.settings.schema import Settings
from forerun.trace import Trace

SMALLEST_BATCH, LARGEST_BATCH = 2, 256
LEAST_LENGTH, USUAL_LENGTH = 16, 4096
"""The shortest length of a plane, and how far one reaches at least, where the model goes so far."""


@dataclass(frozen=True)
class Proof:
    """A box, and sizes that are no corner of it, at which it has to give what tracing gives."""

    box: SizeBox
    tests: tuple[tuple[int, int], ...]


def trace_nearby(request: ForecastRequest) -> list[str]:
    """Trace what other batches and lengths of the request's step follow from; names of the boxes that now answer.

    Raises:
        UntraceableOp, InvalidSettings, NotSupported, UnknownModel: the step itself cannot be built or traced.
    """
    settings, device = request.settings, request.device
    batch = settings.batch
    own = BatchShape(batch.micro_batch_size, batch.sequence_length)
    if device.kind != "cuda" or request.own_workload is not None or not is_sized(settings):
        return []
    proven = []
    for name, proofs in boxes_around(settings, own):
        if not has_polynomials(settings, device, name) and _is_proven(request, name, own, proofs):
            proven.append(name)
    return proven


def is_sized(settings: Settings) -> bool:
    """Whether sizes of such a step may be worked out: see "not covered"."""
    return (
        is_kept(settings)
        and settings.compile == "none"
        and settings.parallel.is_alone
        and settings.batch.padding != "packed"
    )


def boxes_around(settings: Settings, own: BatchShape) -> Iterator[tuple[str, list[Proof]]]:
    """Names of boxes around a size, each with proofs to try in turn."""
    most = max(LARGEST_BATCH, 2 * own.size)
    batches, tests = (SMALLEST_BATCH, most), (SMALLEST_BATCH + 1, most // 2 + 1)
    yield line_name(own.length), [Proof(SizeBox(batches, (own.length,)), tuple((b, own.length) for b in tests))]
    if settings.workload in WITHOUT_TOKENS:
        return
    lengths = list(_lengths(settings, own.length))
    if not lengths:
        return
    yield (
        plane_name(own),
        [Proof(SizeBox(batches, three), tuple(zip(tests, others, strict=True))) for three, others in lengths],
    )
    yield (
        plane_name(BatchShape(1, own.length)),
        [Proof(SizeBox((1,), three), tuple((1, other) for other in others)) for three, others in lengths],
    )


def _lengths(settings: Settings, length: int) -> Iterator[tuple[tuple[int, ...], tuple[int, int]]]:
    """Three lengths of a plane and one or two others between them; the longest is the model's last position, or not.

    A step at the last position may leave out what shorter ones need (slices of learned positions).
    """
    limit = _positions(settings)
    reach = max(USUAL_LENGTH, 2 * length)
    remainder = length % ROUNDING
    low = remainder if remainder >= LEAST_LENGTH else remainder + ROUNDING
    ends = (reach,) if limit is None else (min(reach, limit), min(reach, limit - 1))
    for top in sorted({end - (end - remainder) % ROUNDING for end in ends}, reverse=True):
        between = range(low + ROUNDING, top, ROUNDING)
        if len(between) < 2:
            continue
        middle = length if length in between else between[len(between) // 2]
        others = [each for each in between if each != middle]
        yield (low, middle, top), (others[len(others) // 4], others[-1 - len(others) // 4])


def _positions(settings: Settings) -> int | None:
    from forerun.models.build import config_of

    return getattr(config_of(settings), "max_position_embeddings", None)


def _is_proven(request: ForecastRequest, name: str, own: BatchShape, proofs: list[Proof]) -> bool:
    questions: set[str] = set()

    def trace_of(batch: int, length: int) -> Trace:
        sizes = {"micro_batch_size": batch, "sequence_length": length}
        at = request.settings.model_copy(update={"batch": request.settings.batch.model_copy(update=sizes)})
        shape = BatchShape(batch, length)
        trace, facts = kept_step(request, at, shape)
        questions.update(facts)
        return trace

    trace_of(own.size, own.length)  # what cannot be traced at all is said, not kept
    for proof in proofs:
        file = overlay_of(proof, trace_of)
        if file is not None:
            keep_polynomials(request.settings, request.device, name, questions, proof.box, file)
            return True
    keep_polynomials(request.settings, request.device, name, questions, None, b"")
    return False


def overlay_of(proof: Proof, trace_of: Callable[[int, int], Trace]) -> bytes | None:
    """The overlay of a box; None where it does not give what tracing gives."""
    corners = proof.box.corners
    try:
        ends = [trace_of(*corners[n]) for n in (0, -1)]
        overlay(ends)  # a decision by size shows here already
        file = overlay([ends[0], *(trace_of(*corner) for corner in corners[1:-1]), ends[1]])
        is_exact = all(trace_at(file, proof.box, *size) == trace_of(*size) for size in proof.tests)
    except (NotPolynomial, ForerunError):  # a ForerunError: the model has no such length
        return None
    return file if is_exact else None
