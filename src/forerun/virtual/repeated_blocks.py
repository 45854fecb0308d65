"""Traces of deep models from three shallow ones, where the blocks repeat; else of the model as it is."""

import contextlib
from collections.abc import Callable

from forerun.data.plan import BatchShape
from forerun.errors import ForerunError, NotSupported
from forerun.hardware.catalogue import Device
from forerun.models.build import config_of
from forerun.models.layer_lists import period
from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload
from forerun.step.workload import Workload
from forerun.trace import Trace
from forerun.virtual.lengthen import Lengthened, NotRepeating
from forerun.virtual.token_loops import trace_by_tokens
from forerun.virtual.trace_step import trace_step

SHALLOWEST, SHALLOWEST_DECODER = 2, 1
"""Blocks of the shallowest model: a first one and a last one, which may differ from those between. In a decoder on one
card they do not; where they did, the traces would not prove each other."""
TRACES = 3
"""That prove each other; where the shallowest is still too special, a fourth takes its place."""
WORTH_IT = 1.5
"""Blocks of the model over those of the three traced ones from which that is the quicker way."""


def trace_step_by_blocks(
    settings: Settings, workload: Workload, device: Device, shape: BatchShape, *,
    frozen_encoder: bool = False, keep_lines: bool = False,
) -> Trace:  # fmt: skip
    """What `trace_step` gives, in less time where the model has many equal blocks.

    Raises:
        UntraceableOp, InvalidSettings, NotSupported, UnknownModel: as `trace_step`; NotSupported of a pipeline, whose
            ranks differ.
    """
    if settings.parallel.pipeline > 1:
        raise NotSupported(
            f"parallel.pipeline: plans and explanations look at one rank, and stages differ; found "
            f"{settings.parallel.pipeline}. Forecast it (forerun forecast), or set parallel.pipeline to 1."
        )

    def traced(at: Settings) -> Trace:
        return trace_step(at, workload, device, shape, frozen_encoder=frozen_encoder, keep_lines=keep_lines)

    depths = shallow_depths(settings) if isinstance(workload, HeadWorkload) else None
    if settings.compile != "none":
        return _by_blocks(settings, depths, traced)
    return trace_by_tokens(settings, workload, shape.length, lambda: _by_blocks(settings, depths, traced))


def _by_blocks(
    settings: Settings, depths: tuple[list[Settings], int] | None, traced: Callable[[Settings], Trace]
) -> Trace:
    """The trace of a model worked out from shallower ones, where `depths` names them and they prove each other."""
    if depths is None:
        return traced(settings)
    shallow, more = depths
    traces: list[Trace] = []
    for at in shallow:
        with contextlib.suppress(NotRepeating, ForerunError):  # a ForerunError: it cannot be built so shallow
            traces.append(traced(at))
            if len(traces) >= TRACES:
                return Lengthened(*traces[-TRACES:]).at(more - len(traces) + TRACES)
    return traced(settings)


def shallow_depths(settings: Settings) -> tuple[list[Settings], int] | None:
    """Settings of shallow models, each a period of blocks deeper, and by how many the model is deeper than the first.

    None where the model is spread over ranks but by FSDP, has no one stack of blocks, or is too shallow for this to be
    quicker, and where it is compiled: as a whole its parts do not repeat, in blocks nearly all the time goes to the
    first.
    """
    config = config_of(settings)
    # DDP's and ZeRO's buckets hold parts of several blocks, as many as their bytes say
    is_even = settings.parallel.is_alone or settings.parallel.kind == "fsdp"
    if not is_even or settings.compile != "none" or config.is_encoder_decoder:
        return None
    blocks = getattr(config, "num_hidden_layers", None)  # a model of text and images has them in its parts
    if blocks is None:
        return None
    field = type(config).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    lists = {n: v for n, v in config.to_dict().items() if isinstance(v, list | tuple) and len(v) == blocks}
    step = max((period(values) for values in lists.values()), default=1)
    first = SHALLOWEST_DECODER if settings.workload == "causal-lm" and settings.parallel.is_alone else SHALLOWEST
    least = first + (blocks - first) % step
    if not settings.parallel.is_alone:
        least += step  # FSDP gathers the next block beside this one, so that the last but one is special too
    depths = range(least, least + (TRACES + 1) * step, step)
    if blocks < WORTH_IT * sum(depths[:TRACES]):
        return None

    def at(depth: int) -> Settings:
        changes = {field: depth} | {name: list(values[:depth]) for name, values in lists.items()}
        model = settings.model.model_copy(update={"config": {**settings.model.config, **changes}})
        return settings.model_copy(update={"model": model})

    return [at(depth) for depth in depths], (blocks - least) // step
