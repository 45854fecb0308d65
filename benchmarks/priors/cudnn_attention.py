"""cuDNN's attention, which PyTorch takes by itself on Hopper and data-centre Blackwell: `python -m
benchmarks.priors.cudnn_attention [--write]`.

`cudnn_attention.csv` has passes in bf16 with cuDNN 9.19 (PyTorch 2.11 ships 9.19, 2.12 and 2.13 ship 9.20) as NVIDIA
published them: NVIDIA/cudnn-frontend (Apache-2.0), benchmark/sdpa_benchmark_training/results, `h200_919_only_cudnn`,
`gb200_919_only_cudnn` and `gb300_919_only_cudnn`, at df737645 and afa9f7c0; median of ten, backward passes of
DeepSeek-V3 deterministic. Split by model before anything was fitted: Llama 3.1's heads are learned, DeepSeek-V3's (192
beside 128) are only judged. The curve is that of `fit.py`, one for each pass. Each row has a thousand blocks of heads
of 128 at least, so that how few blocks fill a GPU is FlashAttention-3's, and narrow heads are of other sources.
`--write` writes the entries `attention_cudnn…` of `src/forerun/clock/priors.json`.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.priors.fit import TARGET, fit_few
from benchmarks.priors.rows import chip_of

from forerun.clock.priors import PriorCosts, table
from forerun.clock.products import Array
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec
from forerun.units import MICRO, MILLI

ROWS = Path(__file__).with_name("cudnn_attention.csv")
LEARNED = "llama-3.1"
KIND = "attention_cudnn"
START = [0.8, 300.0]
"""Share of the peak, and length at which half of it is reached."""
FIRST_MICROSECONDS = 5.0
"""Of a kernel before its first block: what encoders' passes of FlashAttention-2 take (`bidirectional.py`: 4.6 and 5.1).
Rows here are too long to say; left free it came out as 0 on two GPUs and 9 on one."""
POWER = {"forward": 0.51, "backward": 0.10}
"""Of the size of a head below 128: heads of 64 against 128 on an H100, beyond what the half length says, in the mean of
six and three lengths without a mask (Shah et al. 2024, arXiv:2407.08608, figures 5 and 6)."""
POWER_OF_BLACKWELL = 0.66
"""Forward: 980 to 1,157 TFLOP/s with heads of 64 (Dao-AILab/flash-attention, pull request 2605), beside 1,593 to 1,781
here."""
Row = dict[str, str]


def rows_of(path: Path = ROWS) -> list[Row]:
    """All rows."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def call_of(row: Row) -> Call:
    """The operator that a row timed."""
    batch, length, heads, size, value_size = (
        int(row[name]) for name in ("batch", "length", "query_heads", "head_size", "value_size")
    )
    query, value = (
        TensorSpec((batch, heads, length, each), (), "bfloat16", 2 * batch * heads * length * each)
        for each in (size, value_size)
    )
    is_backward, is_causal = row["pass"] == "backward", row["mask"] == "causal"
    sizes = 3 * size + 2 * value_size if is_backward else size + value_size
    name = "aten._scaled_dot_product_cudnn_attention" + ("_backward" if is_backward else "")
    first, place = ((query,) * 3, 14) if is_backward else ((query, query, value), 6)
    arguments = (*first, *(None,) * (place - len(first)), is_causal)
    flops = 2 * batch * heads * length**2 * sizes
    return Call(f"{name}.default", arguments, (), (query, query, value), (value,), flops, 0, 0)


def curve_of(row: Row) -> str:
    """Entry of the priors."""
    has_mask, is_backward = row["mask"] != "none", row["pass"] == "backward"
    return KIND + ("" if has_mask else "_bidirectional") + ("_backward" if is_backward else "")


def fitted(rows: list[Row], name: str) -> list[float]:
    """Coefficients of one GPU, one mask and one pass."""
    chip, phase, gpu = chip_of(name, "bfloat16"), rows[0]["pass"], device(name)
    lengths, heads, batches = (np.array([float(row[c]) for row in rows]) for c in ("length", "query_heads", "batch"))
    flops = np.array([float(call_of(row).flops) for row in rows]) / (2 if rows[0]["mask"] == "causal" else 1)
    measured = np.array([float(row["milliseconds"]) for row in rows]) * MILLI
    entry = table()[curve_of(rows[0]).replace(KIND, "attention_3").removesuffix("_backward")]
    half_wave = entry["devices"].get(name, entry["unseen"])[2]
    waves = batches * heads * np.ceil(lengths / 128) / chip.multiprocessors

    def predict(c: Array) -> Array:
        share = c[0] * lengths / (lengths + c[1]) * waves / (waves + half_wave)
        return np.asarray(FIRST_MICROSECONDS * MICRO + flops / (chip.flops_per_second * share))

    (most, half_length), _ = fit_few(predict, measured, START)
    is_blackwell = (gpu.compute_capability or (0, 0))[0] == 10
    power = POWER_OF_BLACKWELL if is_blackwell and phase == "forward" else POWER[phase]
    return [round(float(value), 4) for value in (most, half_length, half_wave, FIRST_MICROSECONDS, power)]


def judge() -> None:
    """Errors of today's priors, by GPU, model, mask and pass."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows_of():
        error = PriorCosts(device(row["gpu"])).device_seconds(call_of(row)) / (float(row["milliseconds"]) * MILLI) - 1
        groups.setdefault(tuple(row[name] for name in ("gpu", "model", "mask", "pass")), []).append(error)
    for key, errors in groups.items():
        worst = max(errors, key=abs)
        print(f"{' '.join(key):44} {len(errors)} rows, median {np.median(errors):+6.1%}, worst {worst:+.1%}")
    summary = {}
    for word, is_learned in (("learned", True), ("judged", False)):
        errors = [abs(error) for key, listed in groups.items() if (key[1] == LEARNED) is is_learned for error in listed]
        summary[word] = round(float(np.median(errors)), 4)
    print(json.dumps({"benchmark": "cudnn_attention", "median_error": summary}))


def main(writes: bool) -> None:
    """Fit and write on request; print how today's priors do."""
    if writes:
        coefficients = table()
        learned = [row for row in rows_of() if row["model"] == LEARNED]
        for kind in sorted({curve_of(row) for row in learned}):
            of_kind = [row for row in learned if curve_of(row) == kind]
            gpus = sorted({row["gpu"] for row in of_kind})
            devices = {gpu: fitted([row for row in of_kind if row["gpu"] == gpu], gpu) for gpu in gpus}
            entry: dict[str, Any] = {"devices": devices}
            entry["unseen"] = np.round(np.exp(np.mean(np.log(list(devices.values())), axis=0)), 4).tolist()
            coefficients[kind] = entry
            print(kind, devices)
        TARGET.write_text(json.dumps(coefficients, indent=1) + "\n", encoding="utf-8")
    judge()


if __name__ == "__main__":
    main("--write" in sys.argv)
