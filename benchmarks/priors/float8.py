"""How GPUs lean in float8: `python -m benchmarks.priors.float8 FOLDER_OF_DATA`.

AIConfigurator timed float8 products (vLLM 0.24.0, CUTLASS, one scale a tensor) with the cast of the activations before
them. One pass over these, which reads 2 bytes a value and writes 1, is taken out; what is left is learned as what a GPU
adds to the coefficients of its bfloat16 products, with float8's peak and width. Half of the timings have an odd number
of rows, which `torch._scaled_mm` takes of no gradient's factors: they are left out. Writes `float8_lean` of
`src/forerun/clock/priors.json`; prints errors on rows that were not learned, before and after. Takes 10 s.

Not covered: products of few rows, which a training step makes at its end only; scales by rows or blocks.
"""

import csv
import gzip
import json
import sys
from pathlib import Path

import numpy as np
from benchmarks.priors.fit import TARGET, TENSOR_GPUS
from benchmarks.priors.rows import chip_of, products

from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.priors import PriorCosts, table
from forerun.clock.products import Array, ProductPrior
from forerun.hardware.catalogue import device

WIDTH, LEARNED, JUDGED = 1.0, 600, 1000
LEAST = (2048, 512, 512)
"""Rows (tokens of a micro-batch), columns and inner length of a training step's products at least."""
MULTIPLE = 16
"""Of the rows of a product, which is the inner length of the one that makes the gradient of its weight."""
CAST_BYTES = 3
"""Bytes of the cast of one activation: two read, one written."""
LEAST_SHARE = 0.3
"""Share of a timing that is left to the product at least."""


def rows_of(folder: Path) -> dict[str, Array]:
    """Float8 products by GPU: batch, m, n, k, seconds with their cast."""
    by_gpu: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "aiconfigurator" / "gemm_fp8.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            shape = [float(row[name]) for name in ("m", "n", "k")]
            is_of_step = all(a >= b for a, b in zip(shape, LEAST, strict=True)) and shape[0] % MULTIPLE == 0
            if row["system"] in TENSOR_GPUS and is_of_step:
                name = TENSOR_GPUS[row["system"]]
                by_gpu.setdefault(name, []).append([1.0, *shape, float(row["latency_ms"]) / 1e3])
    return {name: np.array(rows) for name, rows in by_gpu.items()}


def without_cast(rows: Array, bytes_per_second: float) -> Array:
    """The same rows with the seconds of the product alone."""
    cast = KERNEL_SECONDS + CAST_BYTES * rows[:, 1] * rows[:, 3] / bytes_per_second
    alone = np.maximum(rows[:, 4] - cast, LEAST_SHARE * rows[:, 4])
    return np.column_stack([rows[:, :4], alone])


def main(folder: Path) -> None:
    """Learn, judge, write."""
    coefficients = table()
    prior, leans = ProductPrior.read(coefficients["products"]["tensor"]), {}
    for name, rows in sorted(rows_of(folder).items()):
        chip = chip_of(name, "float8")
        order = np.random.default_rng(0).permutation(len(rows))
        alone = without_cast(rows, chip.bytes_per_second * PriorCosts(device(name))._share())
        learned, judged = alone[order[:LEARNED]], alone[order[LEARNED : LEARNED + JUDGED]]
        lean = prior.learn(chip, products(learned, WIDTH), learned[:, 4], prior.lean[name])
        errors = [prior.seconds(chip, products(judged, WIDTH), each) / judged[:, 4] - 1 for each in (None, lean)]
        before, after = (float(np.median(np.abs(each))) for each in errors)
        print(f"float8 {name:12} {len(rows):6} rows, median of {JUDGED} not learned {before:6.1%} -> {after:6.1%}")
        leans[name] = [round(float(value), 5) for value in lean]
    coefficients["products"]["tensor"]["float8_lean"] = leans
    TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
