"""Fused kernels in place of a model's own layers and loss: `model.kernels: liger` (linkedin/Liger-Kernel, 0.6 to 0.8).

RMS normalisation, gated feed-forward layers and rotary positions are replaced in the model; the output layer and the
loss become one function that works through the tokens in chunks, so that logits never exist as a whole. A model with
values gets the package's kernels. The virtual GPU gives one without them its stand-ins (`virtual/fused_kernels.py`).

Not covered: split layers and stages, `torch.compile` around these kernels, heads other than a causal language model's.
"""

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, MissingExtra, NotSupported
from forerun.settings.schema import Settings
from forerun.step.parallel import unwrapped

FUSED_LOSS = "fused_linear_loss"
"""Attribute of a model whose loss is fused: a `FusedLoss`."""
FusedLoss = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""Cross-entropy summed over labels of hidden states (N, D), weight (V, D), labels (N,), bias, cap of the logits."""
LIGER_TYPES = frozenset({
    "exaone4", "gemma", "gemma2", "gemma3_text", "granite", "hunyuan_v1_dense", "llama", "ministral", "mistral",
    "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3",
})  # fmt: skip
"""Model types (`model_type`) that are known here; Liger has more."""
OLDEST = (7, 0)
"""Least compute capability of Triton's kernels."""


def require_kernels(settings: Settings, model: nn.Module, workload: str) -> None:
    """Refuse fused kernels where the model or other settings leave no place for them; `workload` is the head's.

    Raises:
        NotSupported: the model, its head or another setting has none, by name.
    """
    if settings.model.kernels == "none":
        return
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    obstacles = [
        (workload != "causal-lm", f"have a loss for causal language models only; found workload {workload!r}"),
        (kind not in LIGER_TYPES, f"are known here for {', '.join(sorted(LIGER_TYPES))}; found {kind!r}"),
        (settings.compile != "none", f"are no part of compiled graphs here; found compile={settings.compile!r}"),
        (settings.cross_entropy == "chunked", "bring their own loss in chunks; found cross_entropy='chunked'"),
    ]
    for applies, text in obstacles:
        if applies:
            raise NotSupported(f"model.kernels: Liger's kernels {text}. Set model.kernels to none, or change that.")


def require_device(settings: Settings, capability: tuple[int, int] | None) -> None:
    """Refuse fused kernels on a device that cannot run Triton's.

    Raises:
        InvalidSettings: it is no CUDA GPU of capability 7.0 or more.
    """
    if settings.model.kernels != "none" and (capability is None or capability < OLDEST):
        device = "a device that is no CUDA GPU" if capability is None else f"{capability[0]}.{capability[1]}"
        raise InvalidSettings(
            f"model.kernels: Liger's kernels need compute capability 7.0; found {device}. Set model.kernels to none."
        )


def take_kernels(model: nn.Module, settings: Settings, capability: tuple[int, int] | None) -> None:
    """Give a model with values the package's kernels and loss, where the settings say so.

    Raises:
        InvalidSettings: the device cannot run them.
        MissingExtra: the package is not installed.
    """
    if settings.model.kernels == "none":
        return
    require_device(settings, capability)
    try:
        liger = importlib.import_module("liger_kernel.transformers")
        patches = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError as error:
        raise MissingExtra(
            "model.kernels: running Liger's kernels needs liger-kernel, which is not installed (a forecast does not). "
            "Install it with `pip install liger-kernel`."
        ) from error
    base: Any = unwrapped(model)
    patches._apply_liger_kernel_to_instance(model=base, cross_entropy=False, fused_linear_cross_entropy=False)

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, cap: float) -> Tensor:
        fused = liger.LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED, reduction="sum", softcap=cap or None)
        return fused(weight, hidden, labels, bias)

    setattr(base, FUSED_LOSS, loss)
