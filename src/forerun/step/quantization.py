"""Frozen linear layers in 8 or 4 bits: bitsandbytes' layers where the step really runs, stand-ins where it is traced.

A stand-in holds the bytes of the real layer (packed weights, scales of blocks of 64, and with `nf4-double` the scales
of scales) and runs the operators of its forward and backward pass on them: dequantise, multiply, and nothing kept but
the packed weights. bitsandbytes' own layers cannot be built without storage, and a forecast must not need the library.
Source: `bitsandbytes/autograd/_functions.py`, `functional.py`, `nn/modules.py`, 0.43 to 0.50; Dettmers et al. 2022
(LLM.int8()) and 2023 (QLoRA). Output heads and embeddings stay as they are, as in transformers.

Not covered: outlier columns of int8 (their number depends on the data), the CPU's repacked inference format.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.utils.flop_counter import register_flop_formula

from forerun.errors import MissingExtra, NotSupported

Kind = Literal["int8", "nf4", "nf4-double"]
BLOCK, SCALE_BLOCK = 64, 256
"""Weights that share a scale, and scales that share one of their own (bitsandbytes' defaults, 0.50)."""
CODE_LENGTH, SCALE_CODE_LENGTH = 16, 256
OUTLIER_THRESHOLD = 6.0
"""LLM.int8(): columns with a larger entry are multiplied in 16 bits; the default of transformers."""
INT8_MAX = 127.0

library = torch.library.Library("forerun", "DEF")
library.define("dequantize_4bit(Tensor packed, Tensor scales, int[] shape, ScalarType dtype) -> Tensor")
library.define("dequantize_scales(Tensor scales, Tensor outer) -> Tensor")
library.define("quantize_rows(Tensor rows) -> (Tensor, Tensor)")
library.define("multiply_int8(Tensor rows, Tensor weight) -> Tensor")
library.define("read_flag(Tensor flag) -> ()")


@torch.library.register_fake("forerun::dequantize_4bit", lib=library)
def _(packed: Tensor, scales: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=packed.device)


@torch.library.register_fake("forerun::dequantize_scales", lib=library)
def _(scales: Tensor, outer: Tensor) -> Tensor:
    return torch.empty(scales.shape, dtype=torch.float32, device=scales.device)


@torch.library.register_fake("forerun::quantize_rows", lib=library)
def _(rows: Tensor) -> tuple[Tensor, Tensor]:
    whole = torch.empty(rows.shape, dtype=torch.int8, device=rows.device)
    return whole, torch.empty(rows.shape[0], dtype=torch.float32, device=rows.device)


@torch.library.register_fake("forerun::read_flag", lib=library)
def _(flag: Tensor) -> None:
    """The host waits for it; what it reads is known."""


@torch.library.register_fake("forerun::multiply_int8", lib=library)
def _(rows: Tensor, weight: Tensor) -> Tensor:
    return torch.empty(rows.shape[0], weight.shape[0], dtype=torch.int32, device=rows.device)


@register_flop_formula(torch.ops.forerun.multiply_int8)
def _(rows: list[int], weight: list[int], *args: Any, **kwargs: Any) -> int:
    """Integer operations of (M, K) x (N, K): as many as the FLOP of the same product."""
    return 2 * rows[0] * rows[1] * weight[0]


class QuantizedLinear(nn.Linear):
    """A quantised linear layer without values: its tensors and operators; `weight` is the packed one."""

    def __init__(self, in_features: int, out_features: int, bias: nn.Parameter | None, compute_dtype: torch.dtype):
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self.compute_dtype = compute_dtype
        self.bias = bias


class Linear4bit(QuantizedLinear):
    """NF4, with scales in fp32 or quantised themselves."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: nn.Parameter | None,
        compute_dtype: torch.dtype,
        *,
        double: bool,
        storage: torch.dtype = torch.uint8,
    ):
        super().__init__(in_features, out_features, bias, compute_dtype)
        elements = in_features * out_features
        scales = -(-elements // BLOCK)
        packed = torch.empty(-(-elements // (2 * storage.itemsize)), 1, dtype=storage)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.has_outer_scales = double
        self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8 if double else torch.float32))
        self.register_buffer("code", torch.empty(CODE_LENGTH))
        if double:
            self.register_buffer("outer_scales", torch.empty(-(-scales // SCALE_BLOCK)))
            self.register_buffer("outer_code", torch.empty(SCALE_CODE_LENGTH))
            self.register_buffer("offset", torch.empty(()))

    @classmethod
    def of(
        cls, packed: Tensor, shape: torch.Size, scales: Tensor, code: Tensor, outer: tuple[Tensor, ...] | None
    ) -> "Linear4bit":
        """The layer of a packed weight of `shape` (out, in); `outer`: scales of the scales, their code and offset."""
        layer = cls.__new__(cls)
        QuantizedLinear.__init__(layer, shape[1], shape[0], None, torch.bfloat16)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.has_outer_scales = outer is not None
        names = ("outer_scales", "outer_code", "offset")
        for name, tensor in [("scales", scales), ("code", code), *zip(names, outer or (), strict=False)]:
            layer.register_buffer(name, tensor)
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) → (…, out) in the dtype of the input, computed in `compute_dtype`."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        return _Multiply4bit.apply(input.to(self.compute_dtype), self, bias).to(input.dtype)  # type: ignore[no-any-return]

    def dequantized(self) -> Tensor:
        """The weight (out, in) in `compute_dtype`."""
        scales = self.scales
        if self.has_outer_scales:
            scales = torch.ops.forerun.dequantize_scales(scales, self.outer_scales)
            scales += self.offset
        shape = [self.out_features, self.in_features]
        return torch.ops.forerun.dequantize_4bit(self.weight, scales, shape, self.compute_dtype)


class _Multiply4bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, layer: Linear4bit, bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        # bitsandbytes/backends/cuda/ops.py:951-964 (0.50): few rows take a fused kernel, training's many take this way
        return F.linear(rows, layer.dequantized(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return torch.matmul(gradient, ctx.layer.dequantized().to(gradient.dtype)), None, None


class Linear8bit(QuantizedLinear):
    """LLM.int8(): rows and weights in 8 bits with a scale for each row."""

    def __init__(self, in_features: int, out_features: int, bias: nn.Parameter | None, compute_dtype: torch.dtype):
        super().__init__(in_features, out_features, bias, compute_dtype)
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.int8), requires_grad=False)
        self.register_buffer("scales", torch.empty(out_features))

    @classmethod
    def of(cls, rows: Tensor, scales: Tensor) -> "Linear8bit":
        """The layer of a weight (out, in) that is in 8 bits already, with a scale for each of its rows."""
        layer = cls.__new__(cls)
        QuantizedLinear.__init__(layer, rows.shape[1], rows.shape[0], None, torch.bfloat16)
        layer.weight = nn.Parameter(rows, requires_grad=False)
        layer.register_buffer("scales", scales)
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) → (…, out) in the dtype of the input, under autocast, too: bitsandbytes' function does not cast."""
        return _Multiply8bit.apply(input, self, self.bias)  # type: ignore[no-any-return]


class _Multiply8bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: Linear8bit, bias: Tensor | None) -> Tensor:
        # bitsandbytes/autograd/_functions.py:101 (0.50), MatMul8bitLt: its input stays alive as `ctx.tensors`
        ctx.layer, ctx.shape, ctx.input = layer, input.shape, input
        rows = input.reshape(-1, input.shape[-1])
        half = rows.to(torch.float16)
        outliers = half.abs().ge(OUTLIER_THRESHOLD)
        torch.ops.forerun.read_flag(outliers.any())  # `if outliers.any()`: none, of which the columns are told below
        quantized, _ = torch.ops.forerun.quantize_rows(half)
        quantized[:, torch.empty(0, dtype=torch.int64, device=rows.device)] = 0
        del half, outliers
        product = torch.ops.forerun.multiply_int8(quantized, layer.weight)
        out = product.to(torch.float16)
        if bias is not None:
            out = out + bias.to(out.dtype)
        return out.to(input.dtype).reshape(*input.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
        dtype = ctx.input.dtype
        # bitsandbytes/autograd/_functions.py:237 (0.50): a copy, so that the 8-bit weight itself stays
        scales = ctx.layer.scales.unsqueeze(1).mul(1.0 / INT8_MAX)
        weight = ctx.layer.weight.to(dtype, copy=True).mul_(scales)
        return torch.matmul(gradient.to(dtype), weight).view(ctx.shape), None, None


def quantize(
    model: nn.Module, kind: Kind, compute_dtype: torch.dtype, storage: torch.dtype = torch.uint8, *,
    packs_own_classes: bool = False,
) -> nn.Module:  # fmt: skip
    """Replace the linear layers of `model`, heads apart: by stand-ins where it has no values, else by bitsandbytes'.

    `storage` is the dtype that packed weights of 4 bits have for others (`bnb_4bit_quant_storage`). Layers of a class
    of the model's own that is a kind of `nn.Linear` stay as they are, unless `packs_own_classes`.

    Raises:
        MissingExtra: the step is to run and bitsandbytes is not installed.
        NotSupported: the step is to run with packed weights that are no bytes.
    """
    heads = _heads(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            is_linear = isinstance(child, nn.Linear) if packs_own_classes else type(child) is nn.Linear
            if child in heads or not (is_linear or type(child).__name__ == "Conv1D"):
                continue
            weight, bias = _linear_weight(child), getattr(child, "bias", None)
            if bias is not None:
                bias.requires_grad_(False)
            build = _stand_in if _has_no_values(weight) else _real
            setattr(parent, name, build(weight, bias, kind, compute_dtype, storage))
    if not any(_has_no_values(p) for p in model.parameters()):
        setattr(model, "is_loaded_in_8bit" if kind == "int8" else "is_loaded_in_4bit", True)  # noqa: B010 (for peft)
    return model


def parameter_count(model: nn.Module) -> int:
    """Parameters that a model stands for: packed weights count as many as they hold."""
    stored = sum(p.numel() for p in model.parameters())
    layers = [m for m in model.modules() if isinstance(m, QuantizedLinear)]
    return stored + sum(layer.in_features * layer.out_features - layer.weight.numel() for layer in layers)


def quantization_scales(model: nn.Module) -> list[Tensor]:
    """Buffers of stand-ins beside their packed weights: scales and code books."""
    return [b for m in model.modules() if isinstance(m, QuantizedLinear) for b in m.buffers(recurse=False)]


def unpacked_expert_bytes(model: nn.Module) -> int:
    """Bytes of frozen weights of three dimensions: experts, which transformers 5 holds as one tensor, not as layers."""
    return sum(p.nbytes for p in model.parameters() if p.ndim == 3 and p.is_floating_point() and not p.requires_grad)


def narrow_bytes(model: nn.Module) -> int:
    """Bytes of 16-bit weights that are not packed and not trained."""
    packed = {id(layer.weight) for layer in model.modules() if isinstance(layer, QuantizedLinear)}
    return sum(
        p.nbytes
        for p in model.parameters()
        if p.dtype in (torch.float16, torch.bfloat16) and not p.requires_grad and id(p) not in packed
    )


def lora_layers() -> dict[type[nn.Module], type[nn.Module]]:
    """Adapter layer for each kind of stand-in, as peft wants them (`LoraConfig._register_custom_module`)."""
    from peft.tuners.lora import Linear as LoraLinear

    class LoraQuantized(LoraLinear):
        """peft's adapter around bitsandbytes' layers: no cast of the input under autocast, 4-bit results cloned."""

        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            base: Any = self.base_layer
            result = base(x)
            if isinstance(base, Linear4bit):
                result = result.clone()  # peft/tuners/lora/bnb.py:533 (0.21)
            name = self.active_adapters[0]
            down: Any = self.lora_A[name]
            up: Any = self.lora_B[name]
            dtype = result.dtype
            converts = not torch.is_autocast_enabled()
            if converts:
                x = x.to(down.weight.dtype)
            output = up(down(self.lora_dropout[name](x))) * self.scaling[name]
            return result + (output.to(dtype) if converts else output)

    return {QuantizedLinear: LoraQuantized}


def _has_no_values(tensor: Tensor) -> bool:
    return tensor.device.type == "meta" or is_fake(tensor)


def _heads(model: nn.Module) -> set[nn.Module]:
    """Layers that are not quantised: output embeddings, classifiers, what transformers keeps in fp32 (T5's `wo`)."""
    named = {m for n, m in model.named_children() if n in ("score", "classifier", "lm_head", "cls")}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    inside = {m for top in named for m in top.modules()}
    # transformers/models/t5/modeling_t5.py:537 (5.23): T5's `wo` stays in fp32
    wide = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    full_precision = {m for n, m in model.named_modules() if wide & set(n.split("."))}
    return named | inside | full_precision | ({head} if head is not None else set())


def _linear_weight(layer: nn.Module) -> Tensor:
    weight: Any = layer.weight
    return weight.data if isinstance(layer, nn.Linear) else weight.data.t()


def _stand_in(
    weight: Tensor, bias: nn.Parameter | None, kind: Kind, compute_dtype: torch.dtype, storage: torch.dtype
) -> nn.Module:
    out_features, in_features = weight.shape
    with torch.device(weight.device):
        if kind == "int8":
            return Linear8bit(in_features, out_features, bias, compute_dtype)
        return Linear4bit(in_features, out_features, bias, compute_dtype, double=kind == "nf4-double", storage=storage)


def _real(
    weight: Tensor, bias: nn.Parameter | None, kind: Kind, compute_dtype: torch.dtype, storage: torch.dtype
) -> nn.Module:
    if storage != torch.uint8:
        raise NotSupported(
            "parallel.kind: a step with sharded packed weights is forecast, not run, by this version; found 'fsdp' "
            f"with quantization={kind!r}. Train it with accelerate, or set parallel.kind to ddp."
        )
    bnb = import_bitsandbytes("quantization")
    out_features, in_features = weight.shape
    if kind == "int8":
        layer = bnb.nn.Linear8bitLt(
            in_features, out_features, bias=False, has_fp16_weights=False, threshold=OUTLIER_THRESHOLD
        )
        layer.weight = bnb.nn.Int8Params(weight.contiguous(), requires_grad=False, has_fp16_weights=False)
    else:
        layer = bnb.nn.Linear4bit(in_features, out_features, bias=False, compute_dtype=compute_dtype)
        layer.weight = bnb.nn.Params4bit(
            weight.contiguous(), requires_grad=False, compress_statistics=kind == "nf4-double", quant_type="nf4"
        )
        # bitsandbytes 0.50 repacks weights when a CPU scores, and trains on them afterwards without a gradient
        layer.support_avx512bf16_for_cpu = False
    layer.bias = bias
    return layer.to(weight.device)


def import_bitsandbytes(setting: str) -> Any:
    """The library.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingExtra(
            f"{setting}: running it needs bitsandbytes, which is not installed (a forecast does not). "
            f"Install it with `pip install forerun[quantization]`."
        ) from error
    return bitsandbytes
