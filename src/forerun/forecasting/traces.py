"""Traces of a request's steps, kept on disk from one process to the next; PyTorch is imported only to make one.

A trace follows from the settings (but not from what says how many steps there are), the shape of a batch, the code,
the versions of the libraries that it runs, and what it asked of the GPU. Which facts those are is noted while it is
made: a card that answers them alike has the same trace. Price, memory, bandwidth and the allocator's options are asked
by the replays only.

Place: `$FORERUN_TRACES`, else `traces` in the cache (`disk_cache.py`); `FORERUN_TRACES=off` keeps none. Not kept:
recipes and own data (their batches follow from files), models of the hub that the catalogue does not have, the CPU (its
operators are timed), and what is traced in a process that changed PyTorch's switches.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.current_work import work
from forerun.data.plan import BatchShape
from forerun.disk_cache import CacheEntry, cache_root, cached, entries_of, kept_entry
from forerun.errors import FilesNotWritten
from forerun.forecasting.apart import torch_is_changed, trace_apart
from forerun.forecasting.made_with import package_digest, traced_with
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.shared_traces import watched_device
from forerun.forecasting.size_polynomials import ROUNDING, NotPolynomial, SizeBox, box_of, box_text, trace_at
from forerun.forecasting.trace_file import read_trace, trace_bytes
from forerun.hardware.catalogue import Device
from forerun.settings.media import WITHOUT_TOKENS
from forerun.settings.micro_batches import with_micro_batches
from forerun.settings.schema import Settings
from forerun.step.generic import GENERIC
from forerun.trace import Trace
from forerun.units import GIB, format_bytes

MOST_BYTES = 1 * GIB
VARIABLE, OFF, FILE = "FORERUN_TRACES", "off", "trace"
CONTENT = "traces of steps are kept here, some 100 KB each"
STEP: Mapping[str, Any] = {"part": "step", "frozen_encoder": False, "lines": False}
SIZES = ("micro_batch_size", "sequence_length")
LENGTH_OF_RUN = {"name", "schedule", "checkpoints", "evaluation", "data", "reliability"}
"""Sections of the settings that no step depends on, but for what `_content` takes of them."""


def step_trace(
    request: ForecastRequest, shape: BatchShape, *,
    settings: Settings | None = None, frozen_encoder: bool = False, keep_lines: bool = False,
) -> Trace:  # fmt: skip
    """The trace of one warm step of micro-batches of `shape`; `settings` stand for those of the request.

    Raises:
        UntraceableOp, InvalidSettings, NotSupported, UnknownModel: the step cannot be built or traced.
    """
    at = settings or request.settings
    how = "" if at.compile == "none" else ", compiled"
    how += "" if at.activation_checkpointing == "none" else ", with recomputation"

    def make(device: Device) -> Trace:
        from forerun.virtual.repeated_blocks import trace_step_by_blocks

        with work(f"tracing a step of {shape_text(at, shape)}{how}, for {request.device.name}"):
            return trace_apart(
                trace_step_by_blocks, device, at, request.workload, shape,
                frozen_encoder=frozen_encoder, keep_lines=keep_lines,
            )  # fmt: skip

    part = {**STEP, "frozen_encoder": frozen_encoder, "lines": keep_lines}
    return _trace(request, at, shape, part, make)


def stage_traces(
    request: ForecastRequest, settings: Settings, shape: BatchShape, counts: Sequence[int]
) -> list[list[Trace]]:
    """The traces of all stages of a pipeline, for each number of micro-batches in a step."""
    results: dict[tuple[int, int], tuple[Trace, set[str]]] = {}

    def make(count: int, stage: int, device: Device) -> Trace:
        from forerun.step.pipeline_stages import stages_like
        from forerun.virtual.trace_step import trace_stages

        if (count, stage) not in results:
            stages = [each for each in stages_like(settings, stage) if (count, each) not in results]
            watched, questions = watched_device(device)
            # a step of a zero-bubble schedule leaves memory to the next one of the same schedule
            together = [count] if settings.parallel.schedule == "zero-bubble" else counts
            alike = f", and {len(stages) - 1} like it" if len(stages) > 1 else ""
            with work(f"tracing stage {stages[0]} of the pipeline{alike}"):
                traces = trace_apart(trace_stages, watched, settings, request.workload, shape, stages, together)
            keys = [(number, each) for number in together for each in stages]
            results.update({key: (trace, questions) for key, trace in zip(keys, traces, strict=True)})
        trace, questions = results.pop((count, stage))
        for name in questions:  # who watches this device learns what the trace follows from
            getattr(device, name)
        return trace

    def of_count(count: int) -> list[Trace]:
        own = with_micro_batches(settings, count)
        return [
            _trace(request, own, shape, {"part": "stage", "stage": stage}, functools.partial(make, count, stage))
            for stage in range(settings.parallel.pipeline)
        ]

    return [of_count(count) for count in counts]


def scoring_trace(request: ForecastRequest, shape: BatchShape) -> Trace:
    """The trace of scoring one batch."""

    def make(device: Device) -> Trace:
        from forerun.virtual.token_loops import trace_scoring_by_tokens

        with work(f"tracing the scoring of {shape_text(request.settings, shape)}"):
            return trace_apart(trace_scoring_by_tokens, device, request.settings, request.workload, shape)

    return _trace(request, request.settings, shape, {"part": "scoring"}, make)


def generation_trace(request: ForecastRequest, shape: BatchShape) -> Trace | None:
    """The trace of generating for one batch; None for a model that does not generate token by token."""
    new = request.settings.evaluation.new_tokens
    if new == 0:
        return None

    def make(device: Device) -> Trace | None:
        from forerun.virtual.trace_evaluation import trace_generation

        with work(f"tracing the generation of {new} tokens"):
            return trace_apart(trace_generation, device, request.settings, request.workload, shape)

    if request.own_workload is None and request.settings.workload != "causal-lm":
        return make(request.device)  # preference has the head of a language model, the others answer None at once
    return _trace(request, request.settings, shape, {"part": "generation", "new_tokens": new}, make)  # type: ignore[arg-type]


def shape_text(settings: Settings, shape: BatchShape) -> str:
    """A micro-batch in words."""
    return f"{shape.size} samples" if settings.workload in WITHOUT_TOKENS else f"{shape.size} x {shape.length} tokens"


def kept_answer(key: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """The JSON document that `make` returns, kept for other processes of this code under all that it follows from."""
    root = traces_folder()
    if root is None or torch_is_changed():
        return make()
    key = {**key, "part": "answer", "package": package_digest(), "made_with": traced_with()}
    entry = kept_entry(key, root)
    if entry is not None:
        return json.loads((entry.folder / FILE).read_bytes())
    answer = make()

    def fill(folder: Path) -> dict[str, Any]:
        (folder / FILE).write_text(json.dumps(answer), encoding="utf-8")
        return {}

    with contextlib.suppress(FilesNotWritten):
        _write(key, fill, root)
    return answer


def traces_folder() -> Path | None:
    """Where traces are kept; None where they are not."""
    place = os.environ.get(VARIABLE)
    if place and place.strip().lower() == OFF:
        return None
    return Path(place) if place else cache_root() / "traces"


def describe_traces() -> str:
    """Where traces are kept, how many and how large, in words."""
    root = traces_folder()
    if root is None:
        return f"not kept ({VARIABLE}={OFF})"
    number, size = entries_of(root)
    return f"{root}: {number} entries, {format_bytes(size)} of at most {format_bytes(MOST_BYTES)}"


def _trace(
    request: ForecastRequest, settings: Settings, shape: BatchShape, part: Mapping[str, Any],
    make: Callable[[Device], Trace],
) -> Trace:  # fmt: skip
    root = traces_folder()
    if request.device.kind != "cuda" or torch_is_changed():
        return make(request.device)
    key = {**_content(settings), **part, "shape": [shape.size, shape.length]}
    if root is None or request.own_workload is not None:
        return request.shared.trace(json.dumps(key, sort_keys=True), request.own_workload, request.device, make)
    key |= {"made_with": traced_with()}
    entry, _ = _entry_for(key, request.device, root)
    if entry is not None:
        return read_trace((entry.folder / FILE).read_bytes())
    if (trace := _worked_out(settings, part, shape, request.device, root)) is not None:
        return trace
    watched, questions = watched_device(request.device)
    trace = make(watched)
    if is_lasting(settings.model.name):
        _keep(key, request.device, questions, trace_bytes(trace), root)
    return trace


def _entry_for(key: Mapping[str, Any], device: Device, root: Path) -> tuple[CacheEntry | None, set[str]]:
    """The entry of a key for a device, and the names of the facts of the device that it follows from."""
    names: set[str] = set()
    while (entry := kept_entry(_of_device(key, device, names), root)) is not None:
        if not entry.facts["asks"]:
            break
        names |= set(entry.facts["asks"])
    return entry, names


def _worked_out(
    settings: Settings, part: Mapping[str, Any], shape: BatchShape, device: Device, root: Path
) -> Trace | None:
    """The trace by polynomials that were proven for such sizes; None where none were."""
    if not is_whole_batch(settings, shape):
        return None
    for name in (line_name(shape.length), plane_name(shape)):
        entry, _ = _entry_for(polynomial_key(settings, part, name), device, root)
        if entry is None or (box := box_of(entry.facts["box"])) is None or not box.holds(shape.size, shape.length):
            continue
        with contextlib.suppress(NotPolynomial):
            return trace_at((entry.folder / FILE).read_bytes(), box, shape.size, shape.length)
    return None


def is_whole_batch(settings: Settings, shape: BatchShape) -> bool:
    """Whether a shape is that of the settings themselves, and not of one batch among others."""
    return (shape.size, shape.length) == (settings.batch.micro_batch_size, settings.batch.sequence_length)


def line_name(length: int) -> str:
    """Name of the polynomials over batches of one length."""
    return f"length {length}"


def plane_name(shape: BatchShape) -> str:
    """Name of the polynomials over lengths of one remainder, and over all batches but that of one sample."""
    return f"remainder {shape.length % ROUNDING}{', one sample' * (shape.size == 1)}"


def polynomial_key(settings: Settings, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What polynomials follow from, but for the device: the settings without the sizes that they are over."""
    content = _content(settings)
    batch = {n: v for n, v in content["settings"]["batch"].items() if n not in SIZES}
    content["settings"] = {**content["settings"], "batch": batch}
    return {**content, **part, "polynomials": name, "made_with": traced_with()}


def kept_step(request: ForecastRequest, settings: Settings, shape: BatchShape) -> tuple[Trace, set[str]]:
    """A step's trace, made (and kept) where it is not there, and the names of what it asked of the device."""
    root = traces_folder()
    trace = step_trace(request, shape, settings=settings)
    key = {**_content(settings), **STEP, "shape": [shape.size, shape.length], "made_with": traced_with()}
    return trace, set() if root is None else _entry_for(key, request.device, root)[1]


def keep_polynomials(
    settings: Settings, device: Device, name: str, questions: set[str], box: SizeBox | None, file: bytes
) -> None:
    """Keep an overlay of steps, or with no box that there is none."""
    root = traces_folder()
    if root is not None:
        _keep(polynomial_key(settings, STEP, name), device, questions, file, root, box=box)


def has_polynomials(settings: Settings, device: Device, name: str) -> bool:
    """Whether the overlay of such a name is kept, or that there is none."""
    root = traces_folder()
    return root is None or _entry_for(polynomial_key(settings, STEP, name), device, root)[0] is not None


def _keep(
    key: Mapping[str, Any], device: Device, questions: set[str], file: bytes, root: Path, box: SizeBox | None = None
) -> None:
    """Keep a file below all that was asked of the device, and before that a hint which facts to look at."""

    def hint(folder: Path) -> dict[str, Any]:
        return {"asks": sorted(questions)}

    def fill(folder: Path) -> dict[str, Any]:
        (folder / FILE).write_bytes(file)
        return {"asks": [], "box": box_text(box)}

    _, names = _entry_for(key, device, root)
    with contextlib.suppress(FilesNotWritten):  # a forecast does not need its trace to be kept
        if not questions <= names:
            _write(_of_device(key, device, names), hint, root)
        _write(_of_device(key, device, names | questions), fill, root)


def _write(key: Mapping[str, Any], fill: Callable[[Path], dict[str, Any]], root: Path) -> CacheEntry:
    return cached(key, fill, root, content=CONTENT, most_bytes=MOST_BYTES)


def _of_device(key: Mapping[str, Any], device: Device, names: set[str]) -> dict[str, Any]:
    facts = device.model_dump(mode="json", include=names) if names else {}
    return {**key, "device": facts}


def _content(settings: Settings) -> dict[str, Any]:
    """What of the settings a step depends on; the rest only says how many there are."""
    content = settings.model_dump(mode="json", exclude=LENGTH_OF_RUN)
    del content["optimizer"]["learning_rate"]
    folder = config_digest(settings.model.name)
    refusals = settings.schedule.frozen_encoder_epochs > 0, settings.evaluation.examples > 0
    return {"settings": content, "mean_tokens": settings.data.mean_tokens, "config": folder, "refusals": refusals}


def config_digest(name: str) -> str | None:
    """Digest of the configuration in a local folder; None where there is none."""
    try:
        return hashlib.sha256((Path(name) / "config.json").read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def is_kept(settings: Settings) -> bool:
    """Whether what follows from such settings may be kept: no data, and a model that stays what it is."""
    return settings.workload in GENERIC and settings.data.source is None and is_lasting(settings.model.name)


def is_lasting(name: str) -> bool:
    """Whether a model's configuration is known to be what it was: the catalogue's, or of a folder whose bytes count."""
    from forerun.models.rows import row_of

    return row_of(name) is not None or config_digest(name) is not None
