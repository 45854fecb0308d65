"""Claims about how large something is: parameters, the parts of memory, and whether it all fits a device."""

import math
import re
from typing import Literal

from forerun.audit.architecture import BYTES_OF, count_architecture
from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding, verdict_of
from forerun.audit.quantities import AGREEMENTS, Number, Quantity, Size, compare_quantities, compare_sizes, show_bytes
from forerun.models.catalogue import architecture as catalogue_row
from forerun.models.catalogue import architectures
from forerun.units import KILO, MEGA, format_percent

PARAMETER_SHARE = 0.03
"""Share by which a parameter count may differ (R08)."""
LAYER_BYTES, SCORE_BYTES = 34, 5
"""Bytes kept by a 16-bit layer for each token and unit of width, and for each attention score of a head where scores
are formed (Korthikanti et al. 2022, equation 2)."""
LOGIT_BYTES = 2 + 4 + 4
"""Bytes of each logit: in 16 bits, in fp32 for the loss, and its gradient."""
FORMULA_SHARE = 0.35
"""Share by which a claim may differ from the formula for activations, which knows neither gated layers nor models
without dropout."""
OPTIMIZER_BYTES = {
    "adamw": 8.0,
    "paged-adamw": 8.0,
    "adamw-8bit": 2.0,
    "paged-adamw-8bit": 2.0,
    "lion": 4.0,
    "sgd": 0.0,
}
"""Bytes of optimizer state for each trained fp32 parameter."""


class ParametersClaim(Check):
    """The number of parameters of a model."""

    kind: Literal["parameters"]
    claimed: Number
    model: str | None = None
    """Name of the model, where not the configuration's."""
    basis: Literal["all", "non-embedding"] = "all"


def check_parameters(claim: ParametersClaim, context: Context) -> Finding:
    """R08: parameters of the model, every tensor counted once.

    A published model may be called by its name, or by the count of its paper where that has a shared embedding twice
    (T5). For a model of one's own that reading is no excuse, and leaving the embedding out never is.
    """
    model = (
        count_architecture(claim.model)
        if claim.model
        else count_architecture(context.run.model.name, _overrides(context))
    )
    right, formula = _millions(model.total), f"{model.name} on meta, every tensor once"
    is_total, is_untied, is_bare = (
        compare_quantities(claim.claimed, count, share=PARAMETER_SHARE) == "agree"
        for count in (model.total, model.untied, model.non_embedding)
    )
    if claim.basis == "non-embedding":
        remark = "" if is_bare else f"not {claim.claimed.text}"
        bare = _millions(model.non_embedding)
        return finding("R08", "consistent" if is_bare else "wrong", right=bare, formula=formula, remark=remark)
    if is_total:
        return finding("R08", "consistent", right=right, formula=formula)
    if is_untied and is_published(model.name):
        remark = "counts the shared embedding twice"
        return finding("R08", "consistent", right=right, formula=formula, remark=remark)
    if is_published(model.name) and _is_named(claim.claimed, model.name):
        return finding("R08", "consistent", right=right, formula=formula, remark="is its name rather than its count")
    remark = "is the count without embeddings" if is_bare else f"{claim.claimed.text} is no count of this model"
    return finding("R08", "wrong", right=right, formula=formula, remark=remark)


def is_published(name: str) -> bool:
    """Whether a name is one of the catalogue, or an alias there."""
    return any(name.lower() in (row.name, *row.aliases) for row in architectures())


def _is_named(claimed: Quantity, name: str) -> bool:
    """Whether a size such as 2B is part of a model's name."""
    size = re.escape(claimed.text.strip().lstrip("~").lower())
    return re.search(rf"(?<![\d.]){size}\b", name.lower()) is not None


def _overrides(context: Context) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(context.run.model.config.items()))


def _millions(count: float) -> str:
    return f"{count / MEGA:,.1f}M" if count < KILO * MEGA else f"{count / MEGA / KILO:,.3f}B"


class Family(Check):
    """A model said to be of the size that a family's name stands for."""

    kind: Literal["family"]
    named: str
    """Catalogue name of the model that it is compared with."""
    claimed: Number | None = None
    """Parameters of the model, where not those of the configuration."""


def check_family(claim: Family, context: Context) -> Finding:
    """R09: the size of the named model, and which of its family has the size in question."""
    row = catalogue_row(claim.named)
    size = context.architecture.total if claim.claimed is None else claim.claimed.middle
    right = f"{row.name}: {_millions(row.parameters)}"
    if _is_size(size, row.parameters):
        return finding("R09", "consistent", right=right, formula=f"parameters of {row.name}")
    other = next((r.name for r in architectures() if r.family == row.family and _is_size(size, r.parameters)), None)
    remark = f"{_millions(size)} is {other or 'no model of that family'}, not {row.name}"
    return finding("R09", "wrong", right=right, formula=f"parameters of {row.name}", remark=remark)


def _is_size(size: float, of: float) -> bool:
    return abs(size / of - 1) <= PARAMETER_SHARE


class MemoryPart(Check):
    """One part of a memory budget."""

    kind: Literal["memory-part"]
    part: Literal["weights", "adapter", "gradients", "optimizer-state", "activations"]
    claimed: Size


def check_memory_part(claim: MemoryPart, context: Context) -> Finding:
    """R05: parameters x bytes; activations by Korthikanti et al., with the logits where the model scores words."""
    low, high, formula = _part(claim.part, context)
    share = FORMULA_SHARE if claim.part == "activations" else None
    agreement = compare_sizes(claim.claimed, low, high, share)
    remark = "" if agreement == "agree" else f"not {claim.claimed.text}"
    return finding("R05", verdict_of(agreement), right=show_bytes(high), formula=formula, remark=remark)


def _part(part: str, context: Context) -> tuple[float, float, str]:
    run, model = context.run, context.architecture
    adapter = model.adapter_parameters(run.adapter)
    # Adapters stay in fp32 beside weights in 16 bits, as peft makes them (`autocast_adapter_dtype`).
    trained, true16 = adapter or model.total, run.precision.endswith("-true") and not adapter
    if part == "weights":
        stored = f"{run.precision}, {run.quantization}" if run.quantization != "none" else run.precision
        size = model.weight_bytes(run.precision, run.quantization)
        return size, size, f"{_millions(model.total)} as {stored}"
    if part == "adapter":
        return 4.0 * adapter, 4.0 * adapter, f"{_millions(adapter)} x 4 B"
    if part == "gradients":
        width = 2.0 if true16 else 4.0
        return width * trained, width * trained, f"{_millions(trained)} x {width:g} B"
    if part == "optimizer-state":
        if run.optimizer.name not in OPTIMIZER_BYTES:
            raise ValueError(f"part: the state of {run.optimizer.name} depends on shapes; use kind: forecast instead")
        width = OPTIMIZER_BYTES[run.optimizer.name] / (2.0 if true16 else 1.0)
        return width * trained, width * trained, f"{_millions(trained)} x {width:g} B"
    return _activations(context)


def _activations(context: Context) -> tuple[float, float, str]:
    run, model = context.run, context.architecture
    b, s, h, a = run.batch.micro_batch_size, run.batch.sequence_length, model.width, model.heads
    wider = 2.0 if run.precision in ("fp32", "tf32") else 1.0
    layer = LAYER_BYTES * s * b * h + (SCORE_BYTES * a * s * s * b if run.model.attention == "eager" else 0)
    size = wider * model.layers * layer
    formula = f"{model.layers} x ({LAYER_BYTES} s b h" + (" + 5 a s² b" if run.model.attention == "eager" else "") + ")"
    if model.has_logits:
        size += LOGIT_BYTES * b * s * model.vocabulary
        formula += f" + {LOGIT_BYTES} b s V"
    return size, size, f"{formula}, s={s} b={b} h={h} a={a}" + (f" V={model.vocabulary}" if model.has_logits else "")


class Tensor(Check):
    """One tensor that a program keeps."""

    name: str
    shape: list[int]
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    @property
    def bytes(self) -> float:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * BYTES_OF[self.dtype]


class Buffers(Check):
    """A peak of memory beside tensors that are certainly alive at once."""

    kind: Literal["buffers"]
    tensors: list[Tensor]
    claimed: Size | None = None
    """Peak of memory; without it only the device's memory counts."""
    source: str
    """Place where the program makes these tensors."""


def check_buffers(claim: Buffers, context: Context) -> Finding:
    """R06: the sum of their sizes is a lower bound of the peak."""
    least, has = sum(tensor.bytes for tensor in claim.tensors), context.device.memory_bytes
    formula = " + ".join(f"{t.name} {show_bytes(t.bytes)}" for t in claim.tensors)
    right = f"at least {show_bytes(least)}"
    if least > has:
        remark = f"{context.device.name} has {show_bytes(has)}"
        return finding("R06", "impossible", right=right, formula=formula, remark=remark, source=claim.source)
    if claim.claimed is not None and claim.claimed.high * (1 + claim.claimed.tolerance) < least:
        remark = f"more than {claim.claimed.text}"
        return finding("R06", "wrong", right=right, formula=formula, remark=remark, source=claim.source)
    return finding("R06", "consistent", right=right, formula=formula, source=claim.source)


class Fits(Check):
    """Memory of the whole configuration: that it fits, its peak on the device, or what is left."""

    kind: Literal["fits"]
    peak: Size | None = None
    headroom: Size | None = None


def check_fits(claim: Fits, context: Context) -> Finding:
    """R06: our own forecast of the configuration, from its optimistic to its conservative end."""
    memory = context.forecast().memory
    band, has = memory.device_bytes, memory.capacity_bytes
    right = f"{show_bytes(band.expected)} of {show_bytes(has)}"
    share = format_percent(band.expected / has)
    formula = f"forerun forecast {context.run.model.name} on {context.device.name}: {share} of the card"
    if band.optimistic > has:
        return finding("R06", "impossible", right=right, formula=formula, remark="it does not fit")
    agreements = [compare_sizes(claim.peak, band.optimistic, band.conservative)] if claim.peak is not None else []
    if claim.headroom is not None:
        agreements.append(compare_sizes(claim.headroom, max(0.0, has - band.conservative), has - band.optimistic))
    worst = AGREEMENTS[max(map(AGREEMENTS.index, agreements), default=0)]
    verdict: Verdict = "unsupported" if band.conservative > has and worst == "agree" else verdict_of(worst)
    remark = (
        "only the expected case fits" if verdict == "unsupported" else "" if verdict == "consistent" else "not as said"
    )
    return finding("R06", verdict, right=right, formula=formula, remark=remark)


CHECKS = {
    ParametersClaim: check_parameters, Family: check_family, MemoryPart: check_memory_part, Buffers: check_buffers,
    Fits: check_fits,
}  # fmt: skip
