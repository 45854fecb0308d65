"""Share of bandwidth of boards with error correction in GDDR memory: `python -m benchmarks.priors.copies [--write]`.

`copies.csv` has published figures. PyTorch's own kernels in FP32: `a.copy_(b)` of 0.4 GB, synchronized
(chsasank/device-benchmarks 02b8262e, README); copy, scale and add, of which an add's 467 GB/s keep the A10G's memory
busy for 92 % of the time (Tony Lee, CUDA Kernel Lab, "Memory primitive bandwidth", 2026-05). The L40S: weights of 1 to
2 GB that products of up to four rows read once, median of 47 (AIConfigurator 095f58a51, Apache-2.0). Boards without
such error correction are there for comparison: operators or image models of their own tell more.

Boards that have it (`inline_ecc` of the catalogue) take their own figure where no operators of theirs were timed, and
the mean of all that were measured stands for the others. `--write` writes `elementwise` of
`src/forerun/clock/priors.json`.
"""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from benchmarks.priors.fit import SIMT_GPUS, TARGET

from forerun.hardware.catalogue import device
from forerun.units import GIGA

FILE = Path(__file__).with_suffix(".csv")


def shares() -> dict[str, float]:
    """Share of bandwidth by GPU, the mean of its operations."""
    by_gpu: dict[str, list[float]] = defaultdict(list)
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            stated = device(row["gpu"]).bandwidth_bytes_per_second or 0.0
            by_gpu[row["gpu"]].append(float(row["gigabytes_per_second"]) * GIGA / stated)
    return {gpu: float(np.mean(some)) for gpu, some in by_gpu.items()}


def main() -> None:
    """Print, and write where asked."""
    table = json.loads(TARGET.read_text(encoding="utf-8"))
    entry = table["elementwise"]
    devices, start = entry["devices"], entry["unseen"][1]
    for gpu, share in shares().items():
        print(f"{gpu:12} {share:.3f} of the bandwidth by these figures, {devices.get(gpu, [0.0])[0]:.3f} before")
        if device(gpu).inline_ecc and gpu not in SIMT_GPUS.values():
            devices[gpu] = [round(share, 4), start]
    corrected = [share for gpu, (share, _) in devices.items() if device(gpu).inline_ecc]
    entry["inline_ecc"] = [round(float(np.exp(np.mean(np.log(corrected)))), 4), start]
    print(f"error correction in GDDR memory, {len(corrected)} cards: {entry['inline_ecc'][0]:.3f}; "
          f"cards of no known like {entry['unseen'][0]:.3f}")  # fmt: skip
    if "--write" in sys.argv:
        TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
