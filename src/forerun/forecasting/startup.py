"""Seconds from the start of a program to its first step, where nobody timed them: imports, device, weights.

Tokenising is left out: a data set that is read again is kept (`data/`, Hugging Face's `datasets`), and one that is not
is read here before the run, where it is timed.
"""

IMPORT_SECONDS = 4.7
"""PyTorch and transformers, 4.5 to 4.9 s on two cores (docs/benchmarks.md, 2026-11-22)."""
DEVICE_SECONDS = 4.0
"""CUDA's context and the first tensor (pytorch/pytorch issue 22583, 4 s; LaurentMazare/tch-rs issue 61, 4.1 s)."""
SHAPE_SECONDS = 0.19
"""The first step of each further shape: ten of a small BERT's run beside an H100 (PyTorch 2.11, 26 November 2026) took
0.16 to 0.28 s, and 13 ms from then on; its first two steps took 4.4 s, which are those of the device."""
STORED_BYTES_PER_PARAMETER = 2
"""Published weights of most models are in 16 bits; they are read whole, quantised ones too."""


def stated_startup_seconds(parameters: int, kind: str, disk_bytes_per_second: float, shapes: int = 1) -> float:
    """Seconds of start-up on a device of `kind`; each rank reads all `parameters`, side by side.

    On a GPU batches of so many `shapes` are slow once each.
    """
    reading = parameters * STORED_BYTES_PER_PARAMETER / disk_bytes_per_second
    return IMPORT_SECONDS + reading + (DEVICE_SECONDS + SHAPE_SECONDS * (shapes - 1) if kind == "cuda" else 0.0)
