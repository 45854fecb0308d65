"""Which attention kernels a step runs: those that its settings name, and one for packed documents where it exists.

A packed batch knows where its documents begin (`documents.py`). FlashAttention takes those offsets: it reads no mask,
stores none, and does no work between documents. Where the device or the settings rule it out, block masks do the same
with a slower kernel (`documents.py`); `kernel_of_documents` says which and why, for the step and its forecast alike.

The operator is `aten::_flash_attention_forward` with offsets, which `torch.nn.attention.varlen.varlen_attn` calls too
(PyTorch 2.11 to 2.13), and PyTorch's own nested tensors. `varlen_attn` fixes dropout at zero, and BERT's and GPT-2's
configurations have dropout in attention, so it is called directly.

Not covered: kernels for older GPUs or fp32 that take offsets, windows around a token of an encoder, AMD's.
"""

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.decoder_types import MASKS_ONLY
from forerun.step.precision import policy_of

NAME = "documents"
"""Name under which transformers finds this attention."""
OFFSETS, LONGEST_ARGUMENT = "cu_seq_lens_q", "max_length_q"
"""Arguments of a model's call that reach its attention; transformers' names (`FlashAttentionKwargs`)."""
HALF = (torch.float16, torch.bfloat16)
OLDEST, SMALL_CHIPS = (8, 0), ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
HEAD_MULTIPLE, LARGEST_HEAD, LARGEST_ON_SMALL_CHIPS = 8, 256, 192
"""Limits of FlashAttention (`sdp_utils.cpp`, 2.13); on small chips larger heads have no backward pass with dropout."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
FORCED: dict[str, tuple[str, ...]] = {
    "sdpa:flash": ("FLASH_ATTENTION", "MATH"), "sdpa:efficient": ("EFFICIENT_ATTENTION", "MATH"),
    "sdpa:cudnn": ("CUDNN_ATTENTION", "MATH"), "sdpa:math": ("MATH",),
}  # fmt: skip
"""Names of `torch.nn.attention.SDPBackend`; math takes what the kernel asked for does not."""


WITH_OFFSETS = ("auto", "sdpa:flash", "flash_attention_2")
"""Settings under which packed documents take FlashAttention-2, which PyTorch carries."""
PACKAGES = {"flash_attention_2": ((8, 0), (99, 9)), "flash_attention_3": ((9, 0), (9, 9))}
"""Least and most compute capability (README of github.com/Dao-AILab/flash-attention)."""


@dataclass(frozen=True)
class DocumentKernel:
    """How packed documents are kept apart."""

    kind: Literal["offsets", "masks"]
    why: str

    @property
    def description(self) -> str:
        """How documents are kept apart and why, for the reader of a forecast or a log."""
        method = "variable-length attention" if self.kind == "offsets" else "block masks"
        return f"Packed documents are kept apart by {method}: {self.why}."


def kernel_of_documents(
    settings: Settings, config: Any, capability: tuple[int, int] | None, *, is_plain: bool = True
) -> DocumentKernel:
    """How a model of `config` keeps packed documents apart on a GPU of that compute capability; None is a CPU.

    Attention is plain where PyTorch's own kernels compute it: without caps of its scores or sinks.
    """
    dtype = policy_of(settings).compute_dtype
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    most = LARGEST_ON_SMALL_CHIPS if capability in SMALL_CHIPS else LARGEST_HEAD
    obstacles = [
        (settings.model.attention not in WITH_OFFSETS, f"model.attention is {settings.model.attention}"),
        (capability is None, "only GPUs have the kernel"),
        (capability is not None and capability < OLDEST, "the kernel needs compute capability 8.0"),
        (dtype not in HALF, f"the kernel computes in 16 bits, and precision is {settings.precision}"),
        (head % HEAD_MULTIPLE != 0 or head > most, f"the kernel has no heads of {head}"),
        (
            getattr(config, "v_head_dim", None) not in (None, getattr(config, "qk_head_dim", None)),
            "the kernel has heads of one size, and values have another",
        ),
        (not is_plain, "the model's attention has caps, sinks or biases, which the kernel has not"),
        (getattr(config, "model_type", None) in MASKS_ONLY, "the model hands no offsets on to its attention"),
        (
            (getattr(config, "attention_chunk_size", None) or settings.batch.sequence_length)
            < settings.batch.sequence_length,
            "the kernel knows no chunks, and rows are longer than one",
        ),
        (settings.compile in GRAPH_MODES, f"CUDA graphs (compile: {settings.compile}) want the same shapes each step"),
    ]
    reason = next((reason_text for applies, reason_text in obstacles if applies), None)
    if reason is not None:
        return DocumentKernel("masks", reason)
    return DocumentKernel("offsets", "FlashAttention takes where each begins")


def take_package(model: nn.Module, settings: Settings, capability: tuple[int, int] | None) -> None:
    """Let `model` use the attention of transformers that the settings name, on a GPU of that compute capability.

    Raises:
        InvalidSettings: the GPU or the precision has no such kernel.
        NotSupported: the model has none, or the package is not installed.
    """
    name = settings.model.attention
    if name == "flex_attention" and not _has_values(model):
        raise NotSupported(
            "model.attention: flex_attention is compiled for each mask, and its cost is not modelled; found "
            "'flex_attention'. Set it to sdpa or flash_attention_2 for a forecast."
        )
    if name not in (*PACKAGES, "flex_attention"):
        return
    if name in PACKAGES:
        _refuse(settings, capability)
    if not getattr(model, "_supports_flash_attn", True) and name in PACKAGES:
        raise NotSupported(f"model.attention: {type(model).__name__} has no {name} in transformers. Set it to sdpa.")
    if _has_values(model):
        base: Any = getattr(model, "get_base_model", lambda: model)()
        try:
            base.set_attn_implementation(name)
        except (ImportError, ValueError) as error:  # transformers says what is missing
            raise NotSupported(f"model.attention: {name} cannot be used here: {error} Set it to sdpa.") from error
    else:
        for module in model.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "_attn_implementation"):
                config._attn_implementation = name


def runs_package(settings: Settings, capability: tuple[int, int] | None) -> bool:
    """Whether the settings name a package's attention and the GPU and the precision have it."""
    if settings.model.attention not in PACKAGES:
        return False
    try:
        _refuse(settings, capability)
    except InvalidSettings:
        return False
    return True


def _has_values(model: nn.Module) -> bool:
    return not any(is_fake(each) or each.device.type == "meta" for each in model.parameters())


def _refuse(settings: Settings, capability: tuple[int, int] | None) -> None:
    """Refuse a package's kernel by name where the GPU or the precision has none."""
    name = settings.model.attention
    least, most = PACKAGES[name]
    if capability is None or not least <= capability <= most:
        found_on = "a device that is no CUDA GPU" if capability is None else f"{capability[0]}.{capability[1]}"
        rule = "compute capability 9.0 (Hopper)" if most[0] == least[0] else f"compute capability {least[0]}.{least[1]}"
        raise InvalidSettings(
            f"model.attention: {name} needs {rule}; found {found_on}. Set it to sdpa, which has a kernel for every GPU."
        )
    if policy_of(settings).compute_dtype not in HALF:
        raise InvalidSettings(
            f"model.attention: {name} computes in 16 bits; found precision={settings.precision!r}. Set precision to "
            f"bf16-mixed, or model.attention to sdpa."
        )
    if settings.batch.padding == "packed" and name == "flash_attention_3":
        raise InvalidSettings(
            "model.attention: packed documents take FlashAttention-2's kernel; found flash_attention_3 with "
            "batch.padding=packed. Set model.attention to flash_attention_2 or auto."
        )


def capability_of(device_type: str) -> tuple[int, int] | None:
    """Compute capability of the CUDA device at hand; None for CPUs, AMD's, and where PyTorch has no such kernel."""
    if device_type != "cuda" or torch.version.hip is not None or not torch.backends.cuda.is_flash_attention_available():
        return None
    return torch.cuda.get_device_capability()


def take_offsets(model: nn.Module, settings: Settings, capability: tuple[int, int] | None) -> DocumentKernel | None:
    """Let a model of packed documents use `attend_within` where it can; None where nothing is packed.

    Raises:
        InvalidSettings: masks are needed, and the attention that the settings name takes none.
    """
    if settings.batch.padding != "packed":
        return None
    base: Any = getattr(model, "get_base_model", lambda: model)()
    config: Any = base.config
    kernel = kernel_of_documents(settings, config, capability, is_plain=getattr(base, "_supports_sdpa", True))
    if kernel.kind == "masks" and settings.model.attention in (*PACKAGES, "flex_attention"):
        raise InvalidSettings(
            f"batch.padding: packed documents need masks here ({kernel.why}); found {settings.model.attention}, which "
            f"takes none. Set model.attention to auto, or batch.padding to bucketed."
        )
    if kernel.kind == "offsets":
        _register()
        config._attn_implementation = NAME  # read at each call; setting it after the model is built is enough
    return kernel


def takes_offsets(model: nn.Module) -> bool:
    """Whether the model's attention wants offsets rather than a mask."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None) == NAME


def _register() -> None:
    """Tell transformers of this attention; its masks, for batches that are not packed, are those of PyTorch's."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend_within)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend_within(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, of (B, H, T, D) to (B, T, H, D); within documents where there are offsets.

    Without offsets it is PyTorch's own, with `attention_mask`.
    """
    offsets, longest = more.get(OFFSETS), more.get(LONGEST_ARGUMENT)
    if offsets is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **more
        )  # type: ignore[return-value]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = more.get("sliding_window")
    reach = {} if window is None or window >= longest else {"window_size_left": window - 1, "window_size_right": 0}
    batch, _, length, _ = query.shape
    rows = [_as_rows(tensor, _half(value)) for tensor in (query, key, value)]
    # torch/nn/attention/varlen.py (2.13) calls it too, with dropout_p fixed at 0.0 (line 101)
    out = torch.ops.aten._flash_attention_forward(
        *rows, offsets, offsets, longest, longest, dropout, causal, False, scale=scaling, **reach
    )[0]
    return out.unflatten(0, (batch, length)), None


def _half(value: Tensor) -> torch.dtype:
    """Dtype that autocast would compute attention in; autocast_mode.h (2.13) does not list this operator."""
    kind = value.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype


def _as_rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, T, D) as rows laid end to end, (B T, H, D)."""
    return tensor.transpose(1, 2).flatten(0, 1).to(dtype)


def kernels_of(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """Around forward and backward passes: PyTorch's attention takes the kernel that the settings name."""
    names = FORCED.get(settings.model.attention)
    if names is None:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, name) for name in names])
