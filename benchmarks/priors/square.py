"""How GPUs lean that people timed: `python -m benchmarks.priors.square [FOLDER_OF_DATA]`.

`square_products.csv` has what square products of `torch.mm` reached, the middle over who reported it, as published in
zzc0721/torch-performance-test-data (its issues by number; `database`: its table at 0785868, best of the five sizes
1,024 to 10,240). Few products say little, so GPUs of one architecture and rate are learned together: each starts from
the middle of all. Printed first: GPUs of the other half (`split.py`) as their class says, learned from the one half.
Then all GPUs are learned and written to `lean` of `src/forerun/clock/priors.json`, beside those of other sources; with
the folder also those that AIConfigurator timed and the shared coefficients were fitted to under other names.

Left out: a Titan RTX whose rates fell to half while it was timed, overclocked boards, those shared with others.
"""

import csv
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.priors.fit import OTHERS, TARGET
from benchmarks.priors.rows import chip_of, products
from benchmarks.split import in_test_half

from forerun.clock.alike import example_of, rate
from forerun.clock.priors import table
from forerun.clock.products import LEANINGS, Array, ProductPrior
from forerun.hardware.catalogue import device
from forerun.units import TERA

ROWS = Path(__file__).with_name("square_products.csv")
KINDS = {"tensor": (("float16", "bfloat16"), 2.0), "simt": (("float32",), 4.0)}
"""Of each prior: the dtypes that are learned, which share a peak, and the bytes of a value."""
BETTER_KNOWN = ("a40",)
"""GPUs of the table whose products another source timed in full (`more_gpus.py`): they are judged, not learned."""
ROUNDS, LEARNED = 4, 400
SYSTEMS = dict(zip(OTHERS, ("b300", "gb200", "gb300", "rtx-pro-6000-server"), strict=True))
"""AIConfigurator's names of GPUs that have joined the catalogue since the fit."""
Timed = dict[str, Array]
"""By GPU: rows of batch, m, n, k, seconds."""


def timed(dtypes: tuple[str, ...]) -> Timed:
    """Square products of these dtypes."""
    rows: dict[str, list[list[float]]] = defaultdict(list)
    with ROWS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["dtype"] in dtypes:
                n = float(row["size"])
                rows[row["gpu"]].append([1.0, n, n, n, 2 * n**3 / (float(row["tera"]) * TERA)])
    return {name: np.array(listed) for name, listed in rows.items()}


def class_of(name: str, dtype: str) -> tuple[Any, ...]:
    """Architecture and rate."""
    gpu = device(name)
    return gpu.compute_capability, round(float(np.log2(rate(gpu, dtype))) * 2)


def learned(prior: ProductPrior, rows: Timed, dtype: str, width: float) -> tuple[Timed, dict[Any, Array]]:
    """The lean of each GPU, and the middle of each class: what the prior already knows of it, or nothing, at first."""
    classes: dict[Any, list[str]] = defaultdict(list)
    for name in rows:
        classes[class_of(name, dtype)].append(name)
    leans: Timed = {}
    middles: dict[Any, Array] = {}
    for each, names in classes.items():
        known = prior.lean.get(example_of(device(names[0]), [n for n in prior.lean if n not in rows], dtype) or "")
        middles[each] = np.zeros(len(LEANINGS)) if known is None else known
        for _ in range(ROUNDS):
            for name in names:
                chip, few = chip_of(name, dtype), rows[name]
                leans[name] = prior.learn(chip, products(few, width), few[:, 4], middles[each])
            middles[each] = np.mean([leans[name] for name in names], axis=0)
    return leans, middles


def errors_of(prior: ProductPrior, name: str, rows: Array, lean: Array | None, dtype: str, width: float) -> Array:
    """Relative errors of the seconds."""
    return np.abs(prior.seconds(chip_of(name, dtype), products(rows, width), lean) / rows[:, 4] - 1)


def judge(prior: ProductPrior, rows: Timed, others: Timed, dtype: str, width: float, title: str) -> None:
    """Mean errors of the other half's GPUs: as before, and as those of their class in this half say."""
    leans, middles = learned(prior, rows, dtype, width)
    known = prior.lean | leans
    before, nearest, middle = [], [], []
    for name, listed in others.items():
        old = prior.lean.get(example_of(device(name), prior.lean, dtype) or "")
        like = known.get(example_of(device(name), [n for n in known if n != name], dtype) or "")
        each = middles.get(class_of(name, dtype), like)
        for errors, lean in ((before, old), (nearest, like), (middle, each)):
            errors.append(float(errors_of(prior, name, listed, lean, dtype, width).mean()))
    figures = [f"{np.mean(errors):.1%}" for errors in (before, nearest, middle)]
    print(f"{title}: {len(others)} GPUs that were not learned, mean error before {figures[0]}, like the nearest of its "
          f"class {figures[1]}, like the middle of it {figures[2]}")  # fmt: skip


def print_left_out(prior: ProductPrior, rows: Timed, dtype: str, width: float, title: str) -> None:
    """Of each class, mean errors of its GPUs: where none of these was known, and as the nearest of the others say."""
    errors: dict[Any, list[list[float]]] = defaultdict(list)
    for name, listed in rows.items():
        rest = {other: each for other, each in rows.items() if other != name}
        leans = (prior.lean, prior.lean | learned(prior, rest, dtype, width)[0])
        likes = [lean.get(example_of(device(name), lean, dtype) or "") for lean in leans]
        each = [float(errors_of(prior, name, listed, like, dtype, width).mean()) for like in likes]
        errors[class_of(name, dtype)].append(each)
    for (capability, half_octaves), listed in sorted(errors.items()):
        (before, after), count = np.mean(listed, axis=0), len(listed)
        what = f"{title} left out: capability {capability}, {2 ** (half_octaves / 2):.0f} FLOP a cycle"
        print(f"{what}, {count:2} GPUs: {before:.1%} -> {after:.1%}")


def fitted_under_other_names(prior: ProductPrior, folder: Path) -> Timed:
    """Leans of the GPUs of `SYSTEMS`, with the catalogue's rates."""
    rows: dict[str, list[list[float]]] = defaultdict(list)
    with gzip.open(folder / "aiconfigurator" / "gemm_bf16.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["system"] in SYSTEMS:
                shape = [1.0, *(float(row[c]) for c in ("m", "n", "k")), float(row["latency_ms"]) / 1e3]
                rows[SYSTEMS[row["system"]]].append(shape)
    leans = {}
    for name, listed in rows.items():
        order, every = np.random.default_rng(0).permutation(len(listed)), np.array(listed)
        some, rest = every[order[:LEARNED]], every[order[LEARNED : 4 * LEARNED]]
        leans[name] = prior.learn(chip_of(name, "bfloat16"), products(some, 2.0), some[:, 4])
        errors = [errors_of(prior, name, rest, lean, "bfloat16", 2.0).mean() for lean in (None, leans[name])]
        print(f"bf16 {name}: {len(listed)} rows, mean error of those not learned {errors[0]:.1%} -> {errors[1]:.1%}")
    return leans


def main() -> None:
    """Judge, learn, write."""
    coefficients = table()
    for kind, (dtypes, width) in KINDS.items():
        entry, dtype = coefficients["products"][kind], dtypes[0]
        prior, rows = ProductPrior.read(entry), timed(dtypes)
        better = {name: rows.pop(name) for name in BETTER_KNOWN if kind == "tensor"}
        fresh = ProductPrior(**{**vars(prior), "lean": {n: v for n, v in prior.lean.items() if n not in rows}})
        halves = [{n: r for n, r in rows.items() if in_test_half(f"products/{n}") == half} for half in (False, True)]
        judge(fresh, halves[0], halves[1], dtype, width, f"{kind}, learned from the fitted half")
        for name, listed in better.items():
            error = errors_of(prior, name, listed, prior.lean[name], dtype, width).mean()
            print(f"{kind}: {name} as other timings say, mean error {error:.1%}")
        print_left_out(fresh, rows, dtype, width, kind)
        leans, _ = learned(fresh, rows, dtype, width)
        own = np.mean([errors_of(prior, n, rows[n], leans[n], dtype, width).mean() for n in rows])
        print(f"{kind}: {len(rows)} GPUs learned, mean error on what was learned {own:.1%}")
        if kind == "tensor" and len(sys.argv) > 1:
            leans = fitted_under_other_names(prior, Path(sys.argv[1])) | leans
        entry["lean"] |= {name: np.round(lean, 5).tolist() for name, lean in leans.items()}
    TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
