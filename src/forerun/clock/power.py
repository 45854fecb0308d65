"""The clock that a GPU sustains under matrix products when its board's power limit holds it back.

Published timings of products are bursts of some 50 milliseconds, too short for the limit; a training step goes on. A
multiprocessor's power under tensor-core work grows as clock times voltage squared, and voltage grows with the clock: so
as the clock's cube, times the share of peak that the kernel reaches. Where that and what the board draws anyway are
over the limit, the clock falls by the cube root of the excess.

Not covered: architectures whose watts nobody measured here, products outside tensor cores, heat, the mean over kernels
of different power, data: zeros take less than numbers do.
"""

from forerun.hardware.catalogue import Device
from forerun.units import GIGA

WATTS: dict[tuple[int, int], tuple[float, float]] = {(8, 0): (88.0, 1.65), (9, 0): (100.0, 1.5)}
"""By compute capability: watts of the board without products, and watts of a multiprocessor at 1 GHz and peak rate.

A100: 88 W idle, and products of 8,192³ at 295 TFLOP/s of zeros and 257 of normal numbers under 400 W, so
1.65 × 108 × 1.41³ × (295 / 312) × (257 / 295)³ = 312 W (thonking.ai/p/strangely-matrix-multiplications, 2024).
H100: set by hand to llm-foundry's rows of 512 and 1,024 tokens, eight H100 of 700 W; judged by torchtitan's of 500."""


def sustained_share(gpu: Device, utilisation: float) -> float:
    """Share of the full clock at which `gpu` runs products that reach `utilisation` of its peak; 1 where unknown."""
    watts = WATTS.get(gpu.compute_capability or (0, 0))
    if watts is None or gpu.board_watts is None or gpu.sm_count is None:
        return 1.0
    resting, per_multiprocessor = watts
    demand = per_multiprocessor * gpu.sm_count * (gpu.boost_clock_hertz / GIGA) ** 3 * utilisation
    budget = gpu.board_watts - resting
    return 1.0 if demand <= budget else float((budget / demand) ** (1 / 3))
