"""Seconds from the start of a program to its first step, where nobody timed them: imports, device, weights.

Tokenising is left out: a data set that is read again is kept (`data/`, Hugging Face's `datasets`), and one that is not
is read here before the run, where it is timed.
"""

IMPORT_SECONDS = 4.7
"""PyTorch and transformers, 4.5 to 4.9 s on two cores (docs/benchmarks.md, 2026-11-22)."""
DEVICE_SECONDS = 4.0
"""CUDA's context and the first tensor (pytorch/pytorch issue 22583, 4 s; LaurentMazare/tch-rs issue 61, 4.1 s)."""
STORED_BYTES_PER_PARAMETER = 2
"""Published weights of most models are in 16 bits; they are read whole, quantised ones too."""


def stated_startup_seconds(parameters: int, kind: str, disk_bytes_per_second: float) -> float:
    """Seconds of start-up on a device of `kind`; each rank reads all `parameters`, side by side."""
    reading = parameters * STORED_BYTES_PER_PARAMETER / disk_bytes_per_second
    return IMPORT_SECONDS + (DEVICE_SECONDS if kind == "cuda" else 0.0) + reading
