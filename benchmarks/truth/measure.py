"""Ground truth on one CUDA GPU: memory and warm step seconds of models from scratch, and products in float8.

    python3 benchmarks/truth/measure.py OUT.csv [SECONDS [ROWS.csv]]

Needs PyTorch and transformers alone, not this package. Each row is one process-wide fresh state: caches are emptied, a
model of transformers is built from its configuration, `WARM` steps are made (forward, backward, clipping, fused AdamW)
and the median of `TIMED` is taken, each between synchronisations. Rows: allocated and reserved peaks of the allocator,
device bytes that the driver counts as used, of the whole card. Ends after SECONDS (150).
Rows that ROWS.csv has are not measured again.
"""

import csv
import gc
import itertools
import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
import transformers

WARM, TIMED = 3, 5
LLAMA = {"vocab_size": 32000, "num_key_value_heads": 8, "max_position_embeddings": 4096}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2-medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "bert-base": ("bert", {}),
    "llama-300m": ("llama", LLAMA | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16}),  # noqa: E501
    "llama-1b": ("llama", LLAMA | {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32}),  # noqa: E501
}  # fmt: skip
SHAPES = [(4, 512), (8, 1024), (2, 1024), (1, 4096)]
PRECISIONS = ("bf16-mixed", "fp32", "bf16-true")
FIELDS = ("kind", "model", "batch", "length", "precision", "checkpointing", "attention", "allocated_bytes",
          "reserved_bytes", "device_bytes", "step_seconds", "gpu", "torch", "transformers")  # fmt: skip


def step_row(name: str, batch: int, length: int, precision: str, checkpointing: bool, attention: str) -> dict[str, Any]:
    """One measured step; raises torch.OutOfMemoryError where it does not fit."""
    kind, sizes = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **sizes, attn_implementation=attention)
    build = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    model = build.from_config(config).cuda().train()
    model.config.use_cache = False
    if precision == "bf16-true":
        model = model.bfloat16()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(WARM + TIMED):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
            logits = model(input_ids=ids).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    free, total = torch.cuda.mem_get_info()
    return {
        "kind": "step", "model": name, "batch": batch, "length": length, "precision": precision,
        "checkpointing": checkpointing, "attention": attention,
        "allocated_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_bytes": total - free, "step_seconds": statistics.median(times[WARM:]),
    }  # fmt: skip


def product_rows() -> list[dict[str, Any]]:
    """Seconds of products (M, K) x (K, N) in bfloat16, and in float8 with one scale or one for each row."""
    rows = []
    for m, k, n in [(8192, 4096, 4096), (8192, 4096, 14336), (8192, 14336, 4096), (8192, 8192, 8192)]:
        a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        halves = a.bfloat16(), b.bfloat16()
        eighths = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one, many = torch.ones((), device="cuda"), (torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda"))
        kinds = {
            "bfloat16": lambda: halves[0] @ halves[1].t(),  # noqa: B023
            "tensorwise": lambda: torch._scaled_mm(eighths[0], eighths[1].t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),  # noqa: B023, E501
            "rowwise": lambda: torch._scaled_mm(eighths[0], eighths[1].t(), *many, out_dtype=torch.bfloat16, use_fast_accum=True),  # noqa: B023, E501
        }  # fmt: skip
        for kind, call in kinds.items():
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(30):
                call()
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - begin) / 30
            rows.append({"kind": "product", "model": f"{m}x{k}x{n}", "precision": kind, "step_seconds": seconds})
    return rows


def main() -> None:
    """Measure and write, row by row."""
    begin, most = time.perf_counter(), float(sys.argv[2]) if len(sys.argv) > 2 else 150.0
    done: set[tuple[str, ...]] = set()
    if len(sys.argv) > 3:
        with open(sys.argv[3], encoding="utf-8") as file:
            done = {tuple(row[field] for field in FIELDS[1:7]) for row in csv.DictReader(file)}
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__}
    asked = [
        (name, *shape, precision, checkpointing, "sdpa")
        for precision, shape, name, checkpointing in itertools.product(PRECISIONS, SHAPES, MODELS, (False, True))
        if shape[1] <= (512 if name == "bert-base" else 1024 if name.startswith("gpt2") else 4096)
    ]
    asked = asked[::2] + [("llama-300m", 4, 1024, "bf16-mixed", False, "eager")] + asked[1::2]
    asked = [each for each in asked if tuple(map(str, each)) not in done]
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in product_rows() if not done else []:
            writer.writerow(row | facts)
        for each in asked:
            gc.collect()
            torch.cuda.empty_cache()
            if time.perf_counter() - begin > most:
                break
            try:
                row = step_row(*each)
            except torch.OutOfMemoryError:
                continue
            writer.writerow(row | facts)
            file.flush()


if __name__ == "__main__":
    main()
