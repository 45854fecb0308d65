"""Warnings about kernels: those whose cost is uncertain, and fall-backs that cost more than the kernel asked for."""

import math

from forerun.clock.costs import Costs
from forerun.clock.recurrent import CAUTION, has_recurrent
from forerun.memory.overhead import uses_cudnn
from forerun.trace import Call, Trace
from forerun.units import format_bytes, format_seconds

MATH = "aten._safe_softmax"
"""Operator that only PyTorch's plain attention has (`attention.cpp`, `_scaled_dot_product_attention_math`, 2.13)."""

TRIED = (
    "torch.backends.cudnn.benchmark: at the first step of each shape cuDNN tries its algorithms in what memory is free "
    "and gives it back. PyTorch's peak counts that, this forecast does not: a wide ResNet in fp32 on an H100 peaked at "
    "2.4 times what its steps need. With torch.backends.cudnn.benchmark = False both are alike."
)
"""2.78 GB forecast, 6.54 measured (benchmarks/truth, `sharpness_wide_resnet`)."""
DETERMINISTIC = (
    "torch.use_deterministic_algorithms: sums by index are made in another way and new memory is filled, at a cost "
    "that is not modelled; take the step as the least. torch.utils.deterministic.fill_uninitialized_memory = False "
    "leaves out the filling."
)
LOOPED = (
    "Assumed: each block's recurrence is a loop over its {tokens} tokens in Python, which is what transformers runs on "
    "a GPU too unless the packages kernels and ninja are installed. With them one CUDA kernel runs, which is much "
    "faster, takes less memory and is not modelled."
)
"""Source: `rwkv_linear_attention`, transformers 5.24, modeling_rwkv.py."""


def kernel_warnings(trace: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast; none where every kernel is the one asked for, priced by measurements."""
    cautions = [CAUTION] if has_recurrent(trace.calls) else []
    if trace.is_deterministic:
        cautions.append(DETERMINISTIC)
    if trace.tries_algorithms and uses_cudnn(trace):
        cautions.append(TRIED)
    if trace.looped_tokens:
        cautions.append(LOOPED.format(tokens=trace.looped_tokens))
    fall_back = _math_attention(trace, costs)
    return cautions + ([fall_back] if fall_back else [])


def _math_attention(trace: Trace, costs: Costs) -> str:
    """What attention by plain arithmetic costs a step, why it is, and which setting avoids it."""
    scores = {_elements(call): call for call in trace.calls if call.name.startswith(MATH)}
    calls = list(trace.warm_calls())
    attended = [(call, times) for call, times in calls if call.name.startswith(MATH)]
    if not attended:
        return ""
    seconds = sum(times * costs.device_seconds(call) for call, times in calls if _touches(call, scores))
    most, number = max(call.bytes_written for call, _ in attended), sum(times for _, times in attended)
    reasons = list(dict.fromkeys(trace.math_attention)) or ["no fused kernel takes these inputs"]
    return (
        f"Attention falls back to plain arithmetic (math) in {number} calls a step: {'; '.join(reasons)}. "
        f"Its scores take {format_bytes(most)} a call and {format_seconds(seconds)} a step. {_remedy(reasons[0])}"
    )


def _remedy(reason: str) -> str:
    if "asks for math" in reason or "takes no attention mask" in reason or "16 bits only" in reason:
        return "Set model.attention to auto, or to flash_attention_2 where the GPU and the model have it."
    if "bf16" in reason:
        return "Set precision to fp16-mixed."
    if "multiple of" in reason:
        return "Set model.attention to flash_attention_2, which pads heads, or choose heads of a multiple of 8."
    return "flash_attention_2, which groups heads by itself, avoids it: in 16 bits, from compute capability 8.0 on."


def _elements(call: Call) -> int:
    return math.prod(call.outputs[0].shape) if call.outputs else 0


def _touches(call: Call, scores: dict[int, Call]) -> bool:
    """Whether an operator reads or writes scores: as many elements, between the same tokens."""
    for spec in (*call.inputs, *call.outputs):
        softmax = scores.get(math.prod(spec.shape))
        if softmax is not None and spec.shape[-2:] in (softmax.outputs[0].shape[-2:], softmax.outputs[0].shape[:-3:-1]):
            return True
    return False
