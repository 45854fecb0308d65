"""Words of other tools that no setting takes, and why: a reader should not learn it from a list of what is allowed.

`VALUES` are values of settings that exist, `KEYS` settings that do not.
"""

KERNELS_OF_PACKED = (
    "which kernel multiplies its packed weights depends on package, card and batch, and is not modelled. nf4 holds "
    "about as many bytes"
)
FLOAT8 = (
    "products in float8 are torchao's, beside weights in bfloat16: set float8.recipe to tensorwise or rowwise and "
    "precision to bf16-mixed"
)
ENGINE = (
    "TransformerEngine's layers are not modelled: their casts, delayed scales and kept transposes decide memory and "
    "time. float8.recipe: tensorwise has the same products, by torchao"
)
VALUES: dict[str, dict[str, str]] = {
    "quantization": {
        "gptq": f"GPTQ: {KERNELS_OF_PACKED}",
        "awq": f"AWQ: {KERNELS_OF_PACKED}",
        "hqq": f"HQQ: {KERNELS_OF_PACKED}",
        "aqlm": f"AQLM: {KERNELS_OF_PACKED}",
        "fp4": "bitsandbytes' FP4 has the bytes and kernels of NF4: set it to nf4",
        "int4": f"4-bit integers: {KERNELS_OF_PACKED}",
        "nf4-torchao": (
            "torchao's NF4 unpacks weights by plain operators, fused only where they are compiled, which is not "
            "modelled. nf4-double holds the same bytes"
        ),
        "float8": FLOAT8,
    },
    "precision": {
        "float8": FLOAT8, "fp8": FLOAT8, "fp8-mixed": FLOAT8, "float8-mixed": FLOAT8, "transformer-engine": ENGINE,
    },
    "model.kernels": {
        "apex": (
            "apex's FusedLayerNorm is one kernel, as PyTorch's own layer normalisation is; for RMS "
            "normalisations set it to liger. A script that imports apex runs under forerun exec"
        ),
        "unsloth": "unsloth's kernels replace attention, loss and LoRA by code of its own, which is not modelled",
        "transformer-engine": ENGINE,
        "xformers": "xformers has attention, which model.attention sets: sdpa:efficient is its kernel",
    },
    "optimizer.implementation": {
        "apex": (
            "apex's FusedAdam moves the same bytes in as few launches as PyTorch's fused AdamW: set it to fused. A "
            "script that imports apex runs under forerun exec"
        ),
    },
    "optimizer.name": {
        "adam": "Adam has AdamW's state and kernels: set it to adamw",
        "galore": "GaLore projects gradients by a singular value decomposition every few hundred steps, which is not "
        "modelled",
        "lomo": "LOMO updates in the backward pass without state: set it to sgd with optimizer.in_backward, which "
        "keeps one momentum more",
        "adamw-4bit": "4-bit state of torchao is not modelled: adamw-8bit is bitsandbytes' and holds twice as much",
        "shampoo": "Shampoo's matrix roots are not modelled",
    },
    "parallel.kind": {
        "deepspeed": "DeepSpeed's stages are parallel.zero with parallel.kind: ddp",
        "zero": "DeepSpeed's stages are parallel.zero with parallel.kind: ddp",
    },
    "adapter.kind": {
        "qlora": "QLoRA is adapter.kind: lora with quantization: nf4-double and kbit_preparation: true",
        "dora": "DoRA is adapter.kind: lora with adapter.dora: true",
    },
}  # fmt: skip
KEYS: dict[str, str] = {
    "fp8": FLOAT8,
    "deepspeed": "DeepSpeed's stages are parallel.zero (1, 2 or 3) with parallel.kind: ddp and parallel.world_size, "
    "its offload parallel.offload, buckets that its file leaves to auto parallel.zero_buckets: auto",
    "liger": "Liger's kernels are model.kernels: liger",
    "use_liger_kernel": "Liger's kernels are model.kernels: liger",
    "gradient_checkpointing": "Recomputation is activation_checkpointing: blocks",
    "bf16": "Number formats are precision: bf16-mixed, with model.dtype: bfloat16 where the model is loaded in 16 bits",
    "fp16": "Number formats are precision: fp16-mixed",
    "torch_dtype": "The format of the weights is model.dtype",
}


def reason_of_value(path: str, value: object) -> str:
    """Why a setting does not take a value of other tools; empty for a value that nobody uses."""
    return VALUES.get(path, {}).get(str(value).lower(), "")


def reason_of_key(key: str) -> str:
    """What stands for a setting of other tools here, or why nothing does; empty for one that nobody has."""
    return KEYS.get(key.lower(), "")
