"""Claims about devices: what a card has, what it can do, how two compare, and how code asks for its abilities."""

import inspect
from typing import Literal

import torch

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding, verdict_of
from forerun.audit.quantities import Number, Size, compare_quantities, compare_sizes, show_bytes, show_number
from forerun.hardware.catalogue import Device, device, device_of_name_string, devices
from forerun.units import TERA


class DeviceClaim(Check):
    """What a device is: by catalogue name, or by the string that a driver prints."""

    kind: Literal["device"]
    name: str
    memory: Size | None = None
    capability: float | None = None


def check_device(claim: DeviceClaim, context: Context) -> Finding:
    """Memory as CUDA reports it (decimal or binary GB), and compute capability."""
    card = device_of_name_string(claim.name) or device(claim.name)
    capability = float(".".join(map(str, card.compute_capability or (0, 0))))  # 0 for AMD, which has none
    wrong = []
    if claim.memory is not None and compare_sizes(claim.memory, card.memory_bytes) != "agree":
        wrong.append(f"not {claim.memory.text}")
    if claim.capability is not None and claim.capability != capability:
        wrong.append(f"not capability {claim.capability}")
    right = f"{card.name}: {show_bytes(card.memory_bytes)}, capability {capability}"
    verdict: Verdict = "wrong" if wrong else "consistent"
    return finding("device", verdict, right=right, formula="total that CUDA reports", remark="; ".join(wrong))


class Peaks(Check):
    """Peak rates of several devices set side by side."""

    kind: Literal["peaks"]
    tera: dict[str, float]
    """Catalogue name → TFLOP/s."""


def check_peaks(claim: Peaks, context: Context) -> Finding:
    """R14: all are the rates of one number format."""
    formats = [_formats(device(name), tera) for name, tera in claim.tera.items()]
    unknown = [name for name, matches in zip(claim.tera, formats, strict=True) if not matches]
    common = set.intersection(*formats)
    cards = [device(name) for name in claim.tera]
    alike = [
        f"{dtype} " + " / ".join(f"{card.peak_flops_per_second[dtype] / TERA:g}" for card in cards)
        for dtype in cards[0].peak_flops_per_second if all(dtype in card.peak_flops_per_second for card in cards)
    ]  # fmt: skip
    problems = [f"no peak of {', '.join(unknown)}"] if unknown else []
    problems += ["peaks of different number formats"] if not common and not unknown else []
    formula = " / ".join(claim.tera)
    return finding(
        "R14",
        "wrong" if problems else "consistent",
        right=", ".join(alike),
        formula=formula,
        remark="; ".join(problems),
    )


def _formats(card: Device, tera: float) -> set[str]:
    rates = card.peak_flops_per_second
    return {
        "16 bits" if d in ("float16", "bfloat16") else d
        for d, rate in rates.items()
        if abs(rate / TERA / tera - 1) < 0.03
    }


class DeviceRatio(Check):
    """How much faster one device is than another."""

    kind: Literal["device-ratio"]
    faster: str
    slower: str
    claimed: Number
    dtypes: tuple[str, str] = ("float16", "float16")
    """Number format on the faster and on the slower one."""


def check_device_ratio(claim: DeviceRatio, context: Context) -> Finding:
    """R14: ratio of dense peaks; a claim may be below it, since nothing runs at its peak everywhere."""
    over, under = device(claim.faster).peak(claim.dtypes[0]), device(claim.slower).peak(claim.dtypes[1])
    ratio = over / under
    formula = f"{over / TERA:g} / {under / TERA:g} TFLOP/s in {' and '.join(dict.fromkeys(claim.dtypes))}"
    right = f"at most {show_number(ratio)}x"
    if claim.claimed.low > ratio * (1 + claim.claimed.tolerance):
        return finding("R14", "impossible", right=right, formula=formula, remark="faster than the arithmetic allows")
    agreement = compare_quantities(claim.claimed, ratio)
    remark = "" if agreement == "agree" else "possible; not measured"
    return finding("R14", verdict_of(agreement, worst="unsupported"), right=right, formula=formula, remark=remark)


class Capability(Check):
    """From which compute capability on devices have a number format."""

    kind: Literal["capability"]
    dtype: Literal["float16", "bfloat16", "tfloat32", "float8", "int8"]
    at_least: float | None = None
    """Least compute capability; None means all CUDA devices."""


def check_capability(claim: Capability, context: Context) -> Finding:
    """Every card of the catalogue with tensor cores at or above has a dense peak for it, and none below."""
    cards = {
        card.name: float(".".join(map(str, card.compute_capability)))
        for card in devices()
        if card.compute_capability is not None and card.has_tensor_cores and card.segment != "slice"
    }
    with_it = {name for name in cards if claim.dtype in device(name).peak_flops_per_second}
    lowest, first = min(cards.values()), min(cards[name] for name in with_it)
    right = f"in hardware from {first} on"
    formula = f"{len(with_it)} of {len(cards)} cards with tensor cores in the catalogue"
    if claim.at_least is None:
        if len(with_it) < len(cards):
            without = ", ".join(sorted(set(cards) - with_it))
            return finding("device", "wrong", right=right, formula=formula, remark=f"not on {without}")
        remark = f"the catalogue begins at {lowest}; whether older cards gain anything by it is not known here"
        return finding("device", "unsupported", right=right, formula=formula, remark=remark)
    above = {name for name, capability in cards.items() if capability >= claim.at_least}
    if above == with_it:
        return finding("device", "consistent", right=right, formula=formula, remark=_torch_caveat(claim.dtype))
    return finding("device", "wrong", right=right, formula=formula, remark=f"not from {claim.at_least} on")


def _torch_caveat(dtype: str) -> str:
    if dtype != "bfloat16" or not _counts_emulation():
        return "a baseline called FP32 may be TF32 on such cards" if dtype == "tfloat32" else ""
    return "torch.cuda.is_bf16_supported() also says yes to emulation on older cards"


def _counts_emulation() -> bool:
    """Whether `torch.cuda.is_bf16_supported` counts emulation by default."""
    # torch/cuda/__init__.py:191 (2.13): the default is True; older releases have no such parameter.
    parameters = inspect.signature(torch.cuda.is_bf16_supported).parameters
    return "including_emulation" in parameters and parameters["including_emulation"].default is True


class PrecisionChoice(Check):
    """Code that picks bf16 by asking PyTorch for it."""

    kind: Literal["precision-choice"]
    asks: Literal["torch.cuda.is_bf16_supported()", "torch.cuda.is_bf16_supported(including_emulation=False)"]
    older: list[str]
    """Catalogue names of the cards that are to get fp16."""


def check_precision_choice(claim: PrecisionChoice, context: Context) -> Finding:
    """The answer of the installed PyTorch on cards without bf16 in hardware."""
    without = [name for name in claim.older if not device(name).has_bf16]
    says_yes = _counts_emulation() and "False" not in claim.asks
    formula = f"{claim.asks} on {', '.join(claim.older)}"
    source = f"torch {torch.__version__}: torch.cuda.is_bf16_supported; GPU catalogue"
    right = "device(…).has_bf16: False on " + (", ".join(without) or "none of them")
    if without and says_yes:
        remark = "it says yes to emulation, so these cards take the slow path"
        return finding("device", "wrong", right=right, formula=formula, remark=remark, source=source)
    return finding("device", "consistent", right=right, formula=formula, source=source)


CHECKS = {
    DeviceClaim: check_device, Peaks: check_peaks, DeviceRatio: check_device_ratio, Capability: check_capability,
    PrecisionChoice: check_precision_choice,
}  # fmt: skip
