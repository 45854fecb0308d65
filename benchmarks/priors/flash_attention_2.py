"""FlashAttention-2 on data-centre Blackwell: `python -m benchmarks.priors.flash_attention_2 [--write]`.

`flash_attention_2.csv` has causal passes in bf16 of PyTorch's copy of the kernel and of its package, as NVIDIA
published them beside cuDNN's: NVIDIA/cudnn-frontend (Apache-2.0), benchmark/sdpa_benchmark_training/artifacts,
`sdpa_bf16_benchmark_results_NVIDIA_{B200,GB200,GB300}.csv` at bb37575d and d48a60eb; medians of ten and thirty, 128
heads of 128 over 8 of keys. Split before anything was fitted: PyTorch's kernel at every second length is learned, its
other lengths, the package's kernel and the whole B200 are only judged. Passes of the B200 and GB300 are timed with
their launch, which covers the kernel below 4,096 tokens: those lengths are left out.

Nothing there has another size of head or no mask. The power of the size is such that heads of 64 reach what one other
source has without a mask; the length at which half the share is reached is shorter there as on other GPUs
(`bidirectional.py`). `--write` writes `attention_blackwell` and `attention_blackwell_bidirectional` of
`src/forerun/clock/priors.json`.
"""

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
from benchmarks.priors.fit import TARGET, fit_few
from benchmarks.priors.rows import chip_of

from forerun.clock.priors import OF_BLACKWELL, PriorCosts, table
from forerun.clock.products import Array
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec
from forerun.units import MICRO, MILLI

ROWS = Path(__file__).with_name("flash_attention_2.csv")
LEARNED_GPUS = ("gb200", "gb300")
LEAST_LENGTH = {"b200": 4096, "gb200": 512, "gb300": 4096}
FIRST_MICROSECONDS = 5.0
"""Of a kernel before its first block: what encoders' passes take (`bidirectional.py`: 4.6 and 5.1)."""
NARROW = 354 / 2250
"""Share of a B200's peak with heads of 64, forward, no mask: mean of five lengths from 1,024
(Dao-AILab/flash-attention, issue 1589)."""
NARROW_LENGTHS = (1024, 2048, 4096, 8192, 16384)
START = [0.2, 500.0]
"""Share of the peak, and length at which half of it is reached."""
Row = dict[str, str]


def rows_of(path: Path = ROWS) -> list[Row]:
    """Rows whose time is that of the kernel."""
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["length"]) >= LEAST_LENGTH[row["gpu"]]]


def is_learned(row: Row) -> bool:
    """Every second length of a forward pass of PyTorch's kernel on one of the learned GPUs."""
    is_second = int(math.log2(int(row["length"]))) % 2 == 0
    return row["gpu"] in LEARNED_GPUS and row["kernel"] == "pytorch" and row["pass"] == "forward" and is_second


def call_of(row: Row) -> Call:
    """The operator that a row timed."""
    batch, length, heads, size = (int(row[name]) for name in ("batch", "length", "query_heads", "head_size"))
    each = TensorSpec((batch, heads, length, size), (), "bfloat16", 2 * batch * heads * length * size)
    is_backward = row["pass"] == "backward"
    name = "aten._scaled_dot_product_flash_attention" + ("_backward" if is_backward else "")
    arguments = (
        (*(each,) * 5, None, None, None, length, length, 0.0, True) if is_backward else (*(each,) * 3, 0.0, True)
    )
    flops = 2 * batch * heads * length**2 * size * (5 if is_backward else 2)
    return Call(f"{name}.default", arguments, (), (each,) * 3, (each,), flops, 0, 0)


def fitted(rows: list[Row], name: str, shorter: float) -> tuple[list[float], list[float]]:
    """Coefficients of one GPU with a mask and without; the latter's half length is `shorter` times the former's."""
    chip, (*_, half_wave, _, _) = chip_of(name, "bfloat16"), table()["attention"]["unseen"]
    lengths, heads = (np.array([float(row[column]) for row in rows]) for column in ("length", "query_heads"))
    flops = np.array([float(call_of(row).flops) for row in rows]) / 2
    measured = np.array([float(row["milliseconds"]) for row in rows]) * MILLI
    waves = heads * np.ceil(lengths / 128) / chip.multiprocessors

    def predict(c: Array) -> Array:
        share = c[0] * lengths / (lengths + c[1]) * waves / (waves + half_wave)
        return np.asarray(FIRST_MICROSECONDS * MICRO + flops / (chip.flops_per_second * share))

    (most, half_length), error = fit_few(predict, measured, START)
    print(f"{name:8} {len(rows)} rows, mean error {error:.1%}")
    narrow = np.mean([most * n / (n + 2 * half_length * shorter) for n in NARROW_LENGTHS])
    power = float(np.log2(narrow / NARROW))
    causal = [most, half_length, half_wave, FIRST_MICROSECONDS, power]
    plain = [most, half_length * shorter, half_wave, FIRST_MICROSECONDS, power]
    return [round(float(value), 4) for value in causal], [round(float(value), 4) for value in plain]


def judge() -> None:
    """Errors of today's priors, by GPU, kernel and pass."""
    groups: dict[tuple[str, ...], list[float]] = {}
    summary: dict[str, list[float]] = {"learned": [], "judged": []}
    for row in rows_of():
        error = PriorCosts(device(row["gpu"])).device_seconds(call_of(row)) / (float(row["milliseconds"]) * MILLI) - 1
        groups.setdefault(tuple(row[name] for name in ("gpu", "kernel", "pass")), []).append(error)
        summary["learned" if is_learned(row) else "judged"].append(abs(error))
    for key, errors in groups.items():
        worst = max(errors, key=abs)
        print(f"{' '.join(key):28} {len(errors)} rows, median {np.median(errors):+6.1%}, worst {worst:+.1%}")
    medians = {word: round(float(np.median(errors)), 4) for word, errors in summary.items()}
    print(json.dumps({"benchmark": "flash_attention_2", "median_error": medians}))


def main(writes: bool) -> None:
    """Fit and write on request; print how today's priors do."""
    if writes:
        coefficients = table()
        plain, causal = coefficients["attention_bidirectional"]["devices"], coefficients["attention"]["devices"]
        shorter = plain["a100-80gb"][1] / causal["a100-80gb"][1]
        for name in LEARNED_GPUS:
            rows = [row for row in rows_of() if is_learned(row) and row["gpu"] == name]
            for kind, values in zip(
                (OF_BLACKWELL, OF_BLACKWELL + "_bidirectional"), fitted(rows, name, shorter), strict=True
            ):
                coefficients.setdefault(kind, {"devices": {}})["devices"][name] = values
                of_kind = list(coefficients[kind]["devices"].values())
                coefficients[kind]["unseen"] = np.round(np.exp(np.mean(np.log(of_kind), axis=0)), 4).tolist()
        TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")
    judge()


if __name__ == "__main__":
    main("--write" in sys.argv)
