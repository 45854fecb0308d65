"""Rows of the user board that were found by a search for measured runs, not in the folder of data.

Written down with their settings on 2026-11-28, before any of them was forecast; their errors of that first forecast are
in `docs/log.md` of that day, and they are `seen` since. Only figures of sources whose licence allows it are here. Of a
third source, without a licence, 36 runs were asked too and left out: its loop computes a loss of its own, and is two
times slower than any settings say (the same place of the log).
"""

from collections.abc import Iterator
from typing import Any

VECTOR = "VectorInstitute/vectorlm 35b97b8d, docs/reference_throughput.md (MIT), median tokens per second"
OPEN_LM = "openlanguagemodel 575942c5, benchmarks/demo2026 (MIT), max_memory_allocated, mean of 200 steps"
RATES = {
    ("full", 1): (3550.48, 3461.64, 3204.21), ("full", 2): (6346.00, 6182.59, 5772.91),
    ("full", 4): (12688.44, 12249.74, 11463.46), ("lora", 1): (4079.28, 3682.15, 3528.93),
    ("lora", 2): (7182.97, 6955.58, 6452.96), ("lora", 4): (14299.47, 13834.43, 12769.23),
}  # fmt: skip
"""Tokens per second over all GPUs: Llama 3 8B on A100-SXM4-80GB, by kind of tuning and GPUs, of the shapes below."""
SHAPES = ((8, 2048), (4, 4096), (2, 8192))
LLAMA_400M = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": True, "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
}  # fmt: skip
STEPS = {1: (0.11482, 9.060877824e9), 2: (0.12743, 10.465641984e9), 4: (0.12651, 10.465641984e9)}
"""Seconds and peak bytes by GPUs."""


def stranger_rows() -> list[dict[str, Any]]:
    """Rows as arguments of `collect.row`."""
    return [*_vector(), *_open_lm()]


def _settings(model: dict[str, Any], batch: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    size, steps, length = batch
    shape = {"micro_batch_size": size, "gradient_accumulation_steps": steps, "sequence_length": length}
    content = {"name": "row", "workload": "causal-lm", "model": model, "batch": shape, "data": {"examples": 10**6}}
    return {"settings": content | more}


def _vector() -> Iterator[dict[str, Any]]:
    """FSDP of bf16 weights, four micro-batches, blocks recomputed, flash-attn 2.5.8, torch 2.2.1."""
    for (kind, ranks), rates in RATES.items():
        for (size, length), rate in zip(SHAPES, rates, strict=True):
            more: dict[str, Any] = {"parallel": {"kind": "fsdp", "world_size": ranks}} if ranks > 1 else {}
            if kind == "lora":
                more["adapter"] = {
                    "kind": "lora", "rank": 8, "alpha": 32, "dropout": 0.1, "targets": ["q_proj", "v_proj"]
                }  # fmt: skip
            model = {"name": "llama-3-8b", "attention": "flash_attention_2"}
            yield {
                "id": f"user-vector-{kind}-{ranks}-{length}", "source": VECTOR, "family": f"vectorlm/{kind}",
                "gpu": "a100-80gb", "seconds": size * length * 4 * ranks / rate, "specified": False, "seen": True,
                "settings": _settings(
                    model, (size, 4, length), precision="bf16-true", activation_checkpointing="blocks",
                    optimizer={"max_gradient_norm": 1.0}, versions={"torch": "2.2.1"}, **more,
                ),
                "note": "transformers' version is not stated; memory neither: one GPU held what is forecast not to fit",
            }  # fmt: skip


def _open_lm() -> Iterator[dict[str, Any]]:
    """Its own Llama of 348 million weights under DDP, bf16, AdamW, no compilation, torch 2.13."""
    for ranks, (seconds, allocated) in STEPS.items():
        more = {"parallel": {"kind": "ddp", "world_size": ranks}} if ranks > 1 else {}
        yield {
            "id": f"user-openlm-{ranks}", "source": OPEN_LM, "family": "openlm/llama400m", "gpu": "a100-80gb",
            "settings": _settings(
                {"name": "llama-7b", "config": LLAMA_400M}, (1, 1, 2048), precision="bf16-mixed", **more
            ),
            "seconds": seconds, "allocated": allocated, "specified": False, "seen": True,
            "note": "its own model code; bf16 taken as mixed precision",
        }  # fmt: skip
