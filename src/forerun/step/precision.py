"""Number formats of a step: storage dtype of the weights, autocast dtype, loss scaling, TF32.

bf16 and fp16 by capability is checked by the caller against the hardware record; this file only carries the policy out.
"""

import contextlib
from dataclasses import dataclass, replace

import torch

from forerun.settings.schema import Precision, Settings


@dataclass(frozen=True)
class PrecisionPolicy:
    """How a step computes."""

    parameter_dtype: torch.dtype
    autocast_dtype: torch.dtype | None
    scales_loss: bool
    tf32: bool

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of matrix products."""
        return self.autocast_dtype or self.parameter_dtype

    def autocast(self, device_type: str) -> contextlib.AbstractContextManager[object]:
        """Context of the forward pass."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(device_type, dtype=self.autocast_dtype)


POLICIES: dict[Precision, PrecisionPolicy] = {
    "fp32": PrecisionPolicy(torch.float32, None, scales_loss=False, tf32=False),
    "tf32": PrecisionPolicy(torch.float32, None, scales_loss=False, tf32=True),
    "fp16-mixed": PrecisionPolicy(torch.float32, torch.float16, scales_loss=True, tf32=False),
    "bf16-mixed": PrecisionPolicy(torch.float32, torch.bfloat16, scales_loss=False, tf32=False),
    "fp16-true": PrecisionPolicy(torch.float16, None, scales_loss=False, tf32=False),
    "bf16-true": PrecisionPolicy(torch.bfloat16, None, scales_loss=False, tf32=False),
}


def policy_of(settings: Settings) -> PrecisionPolicy:
    """The policy of a run: DeepSpeed keeps the model in 16 bits and the fp32 weights in its optimizer, no autocast.

    Its loss scale of fp16 is one factor on the loss and one check of the gradients, which are left out. `model.dtype`
    says that weights are in 16 bits under autocast too.
    """
    policy = POLICIES[settings.precision]
    if settings.model.dtype != "auto":
        return replace(policy, parameter_dtype=getattr(torch, settings.model.dtype))
    if not settings.parallel.deepspeed_stage or policy.autocast_dtype is None:
        return policy
    return PrecisionPolicy(policy.autocast_dtype, None, scales_loss=False, tf32=False)
