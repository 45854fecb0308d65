"""What AMD's libraries reach: `python -m benchmarks.priors.rocm [--write]`.

`rocm_products.csv` has TFLOP/s of products in 16 bits. "turbo-1" and "turbo-2" are products of layers on an MI300X,
there and back (AMD-AGI/Primus-Turbo, MIT: output/baseline_gemm.csv at 221d75f1, gemm_turbo_bf16_20260305_MI300X.csv
at ca1f035f; two of its sessions, 7 % apart); "ml-engineering" the best product of two other cards
(stas00/ml-engineering 744d01e, compute/accelerator, CC BY-SA 4.0, two figures cited); "tinygrad" squares on an RX
7900 XTX (tinygrad/tinygrad#1000). They say how a GPU leans, as squares of others do (`square.py`); the models of the
"test" half are only judged. `rocm_float8.csv` has products alone in the layout that `torch._scaled_mm` takes (the same
repository, benchmark/ops/fp8_hipblaslt_results.csv at 176cd137).

`rocm_attention.csv` has TFLOP/s of attention. "aiter" are AMD's own kernels on an MI300X, with a mask and without
(Primus-Turbo, output/baseline_attention.csv); "pytorch" is PyTorch's kernel on an MI355X, forward
(facebookexperimental/triton#1782, FP16, June 2026). PyTorch's kernel takes as much longer on an MI300X as AMD says of
LLaMA-3.1-70B (`SHARES`). How the rate grows with the length is fitted to the MI300X; the MI355X has a share of its
own, and the MI300X's ratio of backward to forward.

`--write` writes `lean`, `float8_lean`, `attention_rocm` and `attention_rocm_bidirectional` of
`src/forerun/clock/priors.json`. Judged by published steps that nothing here was fitted to: LLaMA-3-8B by torchtitan on
eight MI300X (`benchmarks/clusters`, fit half).
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
from benchmarks.priors.fit import TARGET, fit_few
from benchmarks.priors.rows import chip_of
from benchmarks.priors.rows import products as as_products
from benchmarks.priors.square import Timed, errors_of, learned

from forerun.clock.priors import OF_ROCM, ROCM_BACKWARD_SHARE, WIDE_HEAD, table
from forerun.clock.products import Array, ProductPrior
from forerun.units import TERA

PRODUCTS, FLOAT8, ATTENTION = (
    Path(__file__).with_name(f"rocm_{name}.csv") for name in ("products", "float8", "attention")
)
WIDTH, FLOAT8_WIDTH = 2.0, 1.0
SHARES = {"forward": 1 - 0.47, "backward": 1 - 0.75}
"""PyTorch's rate over that of AMD's kernels: they cut its latency by 47 % and 75 % (rocm.blogs.amd.com, Deep Dive into
Primus, 2026-01-15; MI300X and MI325X)."""
START = [0.4, 500.0]
"""Share of the peak, and length at which half of it is reached."""
Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    """Lines of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def products(half: str) -> Timed:
    """By GPU: rows of batch, m, n, k, seconds; each product back of a layer takes half of what both do."""
    timed: dict[str, list[list[float]]] = defaultdict(list)
    for row in rows_of(PRODUCTS):
        m, n, k = (float(row[name]) for name in "mnk")
        shapes = {"forward": [(m, n, k)], "backward": [(m, k, n), (n, k, m)]}
        for name, listed in shapes.items():
            if row["half"] == half and row[name]:
                seconds = 2 * m * n * k / (float(row[name]) * TERA)
                timed[row["gpu"]] += [[1.0, *shape, seconds] for shape in listed]
    return {name: np.array(listed) for name, listed in timed.items()}


def float8_lean(prior: ProductPrior, start: Array) -> Array:
    """How an MI300X leans in float8, where it leans so in 16 bits."""
    halves = {}
    for half in ("fit", "test"):
        shapes = [
            [float(row[name]) for name in ("m", "n", "k", "tera")] for row in rows_of(FLOAT8) if row["half"] == half
        ]
        halves[half] = np.array([[1.0, m, n, k, 2 * m * n * k / (tera * TERA)] for m, n, k, tera in shapes])
    chip = chip_of("mi300x", "float8")
    lean = prior.learn(chip, as_products(halves["fit"], FLOAT8_WIDTH), halves["fit"][:, 4], start)
    for half, rows in halves.items():
        said = [prior.seconds(chip, as_products(rows, FLOAT8_WIDTH), each) for each in (start, lean)]
        before, after = (float(np.abs(each / rows[:, 4] - 1).mean()) for each in said)
        print(f"products in float8, {half}: {len(rows)}, mean error {before:.1%} -> {after:.1%}")
    return lean


def curve(rows: list[Row]) -> tuple[list[float], float]:
    """The most that forward passes of these rows reach of the peak, the length at half of it; and the mean error."""
    (name,) = {row["gpu"] for row in rows}
    chip, (*_, half_wave, _, power) = chip_of(name, "float16"), table()["attention"]["unseen"]
    batch, length, heads, size, tera = (
        np.array([float(row[column]) for row in rows])
        for column in ("batch", "length", "query_heads", "head_size", "forward")
    )
    waves = batch * heads * np.ceil(length / 128) / chip.multiprocessors
    measured = tera * TERA / chip.flops_per_second

    def predict(c: Array) -> Array:
        share = c[0] * length / (length + c[1] * WIDE_HEAD / size) * waves / (waves + half_wave)
        return share * (size / WIDE_HEAD) ** power

    fitted, error = fit_few(predict, measured, START)
    return [float(value) for value in fitted], error


def attention() -> dict[str, dict[str, list[float]]]:
    """Entries of the coefficient file: curves of PyTorch's kernel, with a mask and without."""
    rows = rows_of(ATTENTION)
    *_, half_wave, start, power = table()["attention"]["unseen"]
    by_mask = {}
    for causal in ("yes", "no"):
        (most, half), error = curve([row for row in rows if row["gpu"] == "mi300x" and row["causal"] == causal])
        print(f"AMD's kernel on an MI300X, mask {causal}: at most {most:.1%} of the peak, half at {half:.0f} tokens, "
              f"mean error {error:.1%}")  # fmt: skip
        by_mask[causal] = most, half
    (most, half), error = curve([row for row in rows if row["gpu"] == "mi355x"])
    print(f"PyTorch's kernel on an MI355X: at most {most:.1%} of the peak, half at {half:.0f} tokens, {error:.1%}")
    scale = {"mi300x": SHARES["forward"], "mi355x": most / by_mask["no"][0]}
    return {
        OF_ROCM + suffix: {
            gpu: [
                round(value, 4) for value in (by_mask[causal][0] * share, by_mask[causal][1], half_wave, start, power)
            ]
            for gpu, share in scale.items()
        }
        for suffix, causal in (("", "yes"), ("_bidirectional", "no"))
    }


def main() -> None:
    """Print what was learned beside what was timed, and write it where asked."""
    coefficients = table()
    tensor, timed = coefficients["products"]["tensor"], products("fit")
    others = {name: lean for name, lean in tensor["lean"].items() if name not in timed}
    prior = ProductPrior.read(tensor | {"lean": others})
    leans, _ = learned(prior, timed, "float16", WIDTH)
    for half, listed in (("fit", timed), ("test", products("test"))):
        for name, rows in listed.items():
            before, after = (
                errors_of(prior, name, rows, lean, "float16", WIDTH).mean() for lean in (None, leans[name])
            )
            print(f"products {name}, {half}: {len(rows)}, mean error {before:.1%} -> {after:.1%}")
    back = [float(row["backward"]) / float(row["forward"]) for row in rows_of(ATTENTION) if row["backward"]]
    ratio = fmean(back) * SHARES["backward"] / SHARES["forward"]
    print(f"backward over forward: {fmean(back):.2f} of AMD's kernels, {ratio:.2f} of PyTorch's "
          f"(`ROCM_BACKWARD_SHARE` is {ROCM_BACKWARD_SHARE})")  # fmt: skip
    float8 = float8_lean(prior, leans["mi300x"])
    entries = attention()
    if "--write" in sys.argv[1:]:
        tensor["lean"] |= {name: [round(float(value), 5) for value in lean] for name, lean in leans.items()}
        tensor["float8_lean"]["mi300x"] = [round(float(value), 5) for value in float8]
        for entry, by_gpu in entries.items():
            unseen = [round(float(value), 4) for value in np.mean(list(by_gpu.values()), axis=0)]
            coefficients[entry] = {"devices": by_gpu, "unseen": unseen}
        TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
