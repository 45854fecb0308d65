"""Stand-ins of fused kernels for models of settings (`model.kernels`); a real step takes them from their package."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.hardware.catalogue import Device
from forerun.settings.schema import Settings
from forerun.step.fused_kernels import FUSED_LOSS, require_device
from forerun.step.parallel import unwrapped
from forerun.virtual.cuda.stand_ins import liger, liger_models
from forerun.virtual.recorder import Recorder


@contextlib.contextmanager
def fused_kernels(model: nn.Module, settings: Settings, device: Device, recorder: Recorder) -> Iterator[None]:
    """Let `model`, which has no values, run the stand-ins that its settings name.

    Raises:
        InvalidSettings: the device cannot run the kernels.
    """
    if settings.model.kernels == "none":
        yield
        return
    require_device(settings, device.compute_capability)
    base: Any = unwrapped(model)
    liger_models.apply_to_instance(base, cross_entropy=False, fused_linear_cross_entropy=False)

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, cap: float) -> Tensor:
        # The kernel counts valid labels on the host, which a sum does not use. A cap bends the logits of a chunk inside
        # the kernel of the loss (ops/cross_entropy.py), which moves no more.
        with recorder.answering(False):
            return liger.fused_linear_cross_entropy(hidden, weight, labels, bias, IGNORED)

    setattr(base, FUSED_LOSS, loss)
    try:
        yield
    finally:
        liger_models.restore()
