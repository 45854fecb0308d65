"""How GPUs lean that only other sources timed: T4 and V100 by DeepBench, A40 by Vidur, all FP16 on tensor cores.

The network and the shared coefficients do not see these rows; only what the GPU adds is learned from them, judged on
the half that it was not learned from.
"""

import csv
import gzip
from pathlib import Path

import numpy as np
from benchmarks.priors.rows import chip_of, products, some

from forerun.clock.products import Array, Chip, ProductPrior

DEEPBENCH_GPUS = {"NV_T4": "t4", "NV_V100": "v100-32gb"}
ROWS, WIDTH = 400, 2.0


def leanings(prior: ProductPrior, folder: Path) -> dict[str, Array]:
    """Coefficients that each of these GPUs adds; prints errors without them, and of halves learned from the other."""
    devices = {}
    for name, rows in (deepbench_rows(folder) | {"a40": vidur_rows(folder, "a40")}).items():
        chip, order = chip_of(name, "float16"), np.random.default_rng(0).permutation(len(rows))
        halves = rows[order[::2]], rows[order[1::2]]
        crossed = [error(prior, chip, there, learned(prior, chip, here)) for here, there in (halves, halves[::-1])]
        print(f"fp16 {name:22} {len(rows):6} rows, not learned {error(prior, chip, rows, None):6.1%}, "
              f"the other half learned {np.mean(crossed):6.1%}")  # fmt: skip
        devices[name] = learned(prior, chip, rows)
    return devices


def learned(prior: ProductPrior, chip: Chip, rows: Array) -> Array:
    """The lean by so many of the rows."""
    few = some(rows, ROWS, np.random.default_rng(0))
    return prior.learn(chip, products(few, WIDTH), few[:, 4])


def error(prior: ProductPrior, chip: Chip, rows: Array, lean: Array | None) -> float:
    """Mean relative error."""
    return float(np.abs(prior.seconds(chip, products(rows, WIDTH), lean) / rows[:, 4] - 1).mean())


def deepbench_rows(folder: Path) -> dict[str, Array]:
    """FP16 products of DeepBench by GPU: batch, m, n, k, seconds."""
    by_gpu: dict[str, list[list[float]]] = {}
    with (folder / "deepbench" / "gemm.csv").open() as file:
        for row in csv.DictReader(file):
            name = DEEPBENCH_GPUS.get(row["gpu"])
            if name and "FP16" in row["sheet"]:
                shape = [1.0, *(float(row[c]) for c in ("m", "n", "k")), float(row["time_ms"]) / 1e3]
                by_gpu.setdefault(name, []).append(shape)
    return {name: np.array(rows) for name, rows in by_gpu.items()}


def vidur_rows(folder: Path, gpu: str) -> Array:
    """Products of one transformer layer on one rank as Vidur timed them: batch, m, n, k, seconds."""
    products: list[list[float]] = []
    with gzip.open(folder / "vidur" / "llm_layer_ops_fp16.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["gpu"] != gpu:
                continue
            names = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
            heads, groups, width, inner, tokens, ranks = (float(row[name]) for name in names)
            projected = (heads / ranks + 2 * max(1.0, groups / ranks)) * width / heads
            up = (2 if row["use_gated_mlp"] == "True" else 1) * inner / ranks
            shapes = {
                "attn_pre_proj_ms": (projected, width), "attn_post_proj_ms": (width, width / ranks),
                "mlp_up_proj_ms": (up, width), "mlp_down_proj_ms": (width, inner / ranks),
            }  # fmt: skip
            products += [[1.0, tokens, n, k, float(row[c]) / 1e3] for c, (n, k) in shapes.items() if float(row[c] or 0)]
    return np.array(products)
