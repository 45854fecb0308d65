"""Attention without a causal mask: `python -m benchmarks.priors.bidirectional FOLDER_OF_DATA`.

A causal kernel computes whole blocks on the diagonal and throws half of them away, which costs most where sequences are
short; without a mask nothing is thrown away, and a share of peak that was fitted to causal passes is too low there.
AIConfigurator timed encoders' passes on an L40S and an RTX PRO 6000 (FlashAttention-2), H100 and H200 (-3). The same
curve as in `fit.py`, fitted to half of the shapes and judged on the others. A GPU that only causal passes were timed on
keeps its curve with the length at which half is reached that the middle of those GPUs has, measured in its own.
Writes `attention_bidirectional` and `attention_3_bidirectional` of `src/forerun/clock/priors.json`; takes a minute.
"""

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.priors.fit import TARGET, TENSOR_GPUS, WIDE_HEAD, fit_few
from benchmarks.priors.rows import chip_of

from forerun.clock.priors import HEAD_ROUNDING, table
from forerun.clock.products import Array
from forerun.units import MICRO

KERNELS = {"attention": "vllm_vit_flash_attn_fa2", "attention_3": "vllm_vit_flash_attn_fa3"}
SYSTEMS = TENSOR_GPUS | {"rtx_pro_6000_server": "rtx-pro-6000-server"}
LEAST_LENGTH, LEAST_FLOPS = 64, 3e8
"""What is smaller is the start of a kernel alone."""
START = [0.6, 100, 0.5, 5.0]


def seconds(c: Array, r: Array, flops: Array, multiprocessors: float, flops_per_second: float) -> Array:
    """Of a pass by the five coefficients (`PriorCosts._attention`)."""
    waves, sizes = r[:, 0] * r[:, 2] * np.ceil(r[:, 1] / 128) / multiprocessors, r[:, 3] / WIDE_HEAD
    share = c[0] * r[:, 1] / (r[:, 1] + c[1] / np.minimum(sizes, 1)) * waves / (waves + c[2]) * sizes ** c[4]
    return np.asarray(c[3] * MICRO + flops / (flops_per_second * share))


def fitted(rows: Array, name: str, power: float) -> list[float]:
    """Coefficients of one GPU from half of its shapes; prints the error on the other half.

    `power`, how wider heads do better, is that of causal passes: encoders' heads have 64 to 80 values, and say nothing
    of 128.
    """
    chip, heads = chip_of(name, "bfloat16"), np.ceil(rows[:, 3] / HEAD_ROUNDING) * HEAD_ROUNDING
    flops = 4 * rows[:, 0] * rows[:, 1] ** 2 * rows[:, 2] * heads  # kernels are compiled for a few sizes of a head
    rows, flops = rows[flops > LEAST_FLOPS], flops[flops > LEAST_FLOPS]
    order = np.random.default_rng(0).permutation(len(rows))

    def predict(x: Array, half: int = 0) -> Array:
        part = order[half::2]
        return seconds(np.append(x, power), rows[part], flops[part], chip.multiprocessors, chip.flops_per_second)

    measured = rows[:, 4] / 1e3
    c, error = fit_few(lambda x: predict(x), measured[order[::2]], START)
    misses = predict(c, 1) / measured[order[1::2]] - 1
    c = np.append(c, power)
    print(f"{name:20} {len(rows) // 2} rows {error:6.1%}, the other half {np.abs(misses).mean():6.1%} {np.round(c, 3)}")
    return [round(float(value), 4) for value in c]


def timed(folder: Path, kernel: str) -> dict[str, Array]:
    """Rows by GPU: batch, length, heads, size of a head, milliseconds."""
    by_gpu: dict[str, list[list[float]]] = {}
    names = ("batch_size", "isl", "num_heads", "head_dim", "latency_ms")
    with gzip.open(folder / "aiconfigurator" / "attention_bidir_fwd_bf16.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["kernel_source"] == kernel and row["system"] in SYSTEMS and int(row["isl"]) >= LEAST_LENGTH:
                by_gpu.setdefault(SYSTEMS[row["system"]], []).append([float(row[c]) for c in names])
    return {name: np.array(rows) for name, rows in by_gpu.items()}


def main(folder: Path) -> None:
    """Fit, print, write."""
    coefficients, ratios = table(), []
    causal = coefficients["attention"]["devices"] | coefficients["attention_3"]["devices"]
    for kind, kernel in KERNELS.items():
        powers = {name: values[-1] for name, values in causal.items()}
        middle = coefficients[kind]["unseen"][-1]
        devices = {
            name: fitted(rows, name, powers.get(name, middle)) for name, rows in sorted(timed(folder, kernel).items())
        }
        coefficients[f"{kind}_bidirectional"] = {"devices": devices}
        ratios += [values[1] / causal[name][1] for name, values in devices.items() if name in causal]
    ratio = float(np.exp(np.mean(np.log(ratios))))
    print(f"half of the share at {ratio:.3f} of the length of causal passes")
    for kind in KERNELS:
        entry: dict[str, Any] = coefficients[f"{kind}_bidirectional"]
        for name, (most, length, *rest) in coefficients[kind]["devices"].items():
            entry["devices"].setdefault(name, [most, round(length * ratio, 4), *rest])
        middle = np.exp(np.mean(np.log(np.maximum(list(entry["devices"].values()), 1e-4)), axis=0))
        entry["unseen"] = np.round(middle, 4).tolist()
    TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
