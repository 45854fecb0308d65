"""How long a matrix product takes on a GPU: tiles, waves, splits and bytes, then a learned correction.

The analytic part follows how cuBLAS works: the result is cut into tiles, each computed by one streaming multiprocessor;
whole waves of tiles cost time, the last one whether it is full or not; a long inner dimension may be split; operands
come through L2. GPUs share its coefficients, but each measured one adds a little of its own. A small network corrects
what that leaves, from quantities relative to the GPU, so that it carries over to GPUs never measured. From 20 products
measured on a GPU follows what it adds. Coefficients and errors: `priors.json`, made by `benchmarks/priors/fit.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.clock.costs import KERNEL_SECONDS
from forerun.units import MICRO

Array = NDArray[np.float64]
TILES = np.array(
    [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
     (32, 32), (16, 64), (16, 128)], dtype=float,
)  # fmt: skip
SPLITS = np.array([1, 2, 3, 4, 6, 8, 16], dtype=float)
WAVE_TILES = ((256, 128), (128, 128), (64, 64))
LAYERS_IN_CACHE = 6
"""The source measured six layers in turn, whose weights may stay in L2; a training step's do not."""
TYPICAL_HERTZ = 1.9e9
"""Clock that converts cycles to the microseconds of `ANALYTIC`."""
ANALYTIC = (
    "start microseconds", "share of FLOP/s", "bytes per cycle from L2", "tile microseconds", "share of bandwidth",
    "share of L2", "sharpness", "share of bandwidth of splits", "cost of small tiles",
)  # fmt: skip
"""What starts a kernel or a tile takes cycles (microseconds at `TYPICAL_HERTZ`), and L2 gives each multiprocessor bytes
per cycle: a faster clock makes both faster."""
OWN = 6
"""The first so many coefficients may differ from GPU to GPU."""
LEANINGS = (*ANALYTIC[:OWN], "network", "constant", "intensity", "duration")
SPREAD = np.array([0.4, 0.15, 0.25, 0.4, 0.15, 0.4, 0.4, 0.08, 0.06, 0.06])
"""Standard deviation between GPUs of the logarithm of each of `LEANINGS`."""
NOISE = 0.12
"""Standard deviation of the logarithm of a product's time that the model leaves on a measured GPU."""
INTENSITY, DURATION = 11, 13
"""Places among the features."""
NUDGE, LEARNING_STEPS = 0.05, 3
LIMIT = 0.7
"""The learned correction is at most a factor of e to this, either way: outside the data it may not run away."""


@dataclass(frozen=True)
class Chip:
    """What of a GPU a product depends on: FLOP/s, bytes/s, multiprocessors, bytes of L2, cycles per second."""

    flops_per_second: float
    bytes_per_second: float
    multiprocessors: float
    l2_bytes: float
    clock_hertz: float


@dataclass(frozen=True)
class Products:
    """Shapes of products (batch of m × k by k × n), one entry each, in elements of `width` bytes."""

    batch: Array
    m: Array
    n: Array
    k: Array
    width: float = 2.0
    is_cached: bool = False
    """The weights may be found in L2, as in the source's measurements."""
    moved_bytes: Array | None = None
    """Bytes of operands and result where that is not the matrices: a convolution's image stands in several rows."""

    @property
    def flops(self) -> Array:
        """FLOP of each product; a multiply-add counts two."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> Array:
        """Bytes of operands and result."""
        if self.moved_bytes is not None:
            return self.moved_bytes
        return self.width * self.batch * (self.m * self.k + self.n * self.k + self.m * self.n)


def analytic_seconds(coefficients: Array, chip: Chip, p: Products) -> Array:
    """Seconds by tiles and waves; the coefficients are logarithms of positive numbers, in the order of `ANALYTIC`."""
    start, compute, l2, tile, memory, cache, sharpness, split, small = np.exp(coefficients)
    count, cycle = chip.multiprocessors, TYPICAL_HERTZ / chip.clock_hertz
    rows, columns = TILES[:, 0][:, None, None], TILES[:, 1][:, None, None]
    splits = SPLITS[None, :, None]
    waves = np.ceil(p.batch * np.ceil(p.m / rows) * np.ceil(p.n / columns) * splits / count)
    arithmetic = 2 * rows * columns / (chip.flops_per_second / count * compute) * (1 + small * 4096 / (rows * columns))
    loading = p.width * (rows + columns) / (chip.clock_hertz * l2)
    adding = (splits > 1) * (2 * p.width * p.batch * p.m * p.n * splits / (chip.bytes_per_second * split) + MICRO / 2)
    per_wave = (p.k / splits) * np.maximum(arithmetic, loading) + tile * cycle * MICRO
    computing = (waves * per_wave + adding).min((0, 1))
    slow = 1 / (chip.bytes_per_second * memory)
    per_byte = np.full_like(computing, slow)
    if p.is_cached:
        working_set = p.width * (LAYERS_IN_CACHE * p.n * p.k + p.m * p.k + p.m * p.n)
        resident = 1 / (1 + (working_set / (chip.l2_bytes * cache)) ** 3)
        per_byte = (1 - resident) * slow + resident * min(slow, 1 / (chip.clock_hertz * l2 * count))
    moving = p.bytes * per_byte
    more, less = np.maximum(computing, moving), np.minimum(computing, moving)
    return start * cycle * MICRO + more * (1 + (less / more) ** sharpness) ** (1 / sharpness)


def features(chip: Chip, p: Products, coefficients: Array, seconds: Array) -> Array:
    """What the network looks at, (products, 14): shapes as far as they matter, all else relative to the GPU."""
    inputs = []
    for rows, columns in WAVE_TILES:
        waves = p.batch * np.ceil(p.m / rows) * np.ceil(p.n / columns) / chip.multiprocessors
        inputs += [np.clip(np.log(np.ceil(waves) / waves), 0, 4), np.clip(np.log(waves), -6, 5)]
    start, compute, _, _, memory = np.exp(coefficients[:5])
    starting = start * MICRO * TYPICAL_HERTZ / chip.clock_hertz
    computing = p.flops / (chip.flops_per_second * compute)
    moving = p.bytes / (chip.bytes_per_second * memory)
    layers = p.width * p.batch * (LAYERS_IN_CACHE * p.n * p.k + p.m * p.k + p.m * p.n) / chip.l2_bytes
    inputs += [
        np.log((computing + moving + starting) / seconds),
        np.clip(np.log(p.k), 3, 9.5), np.clip(np.log(p.m), 0, 7), np.clip(np.log(p.n), 3, 9),
        np.clip(np.log(p.m / p.n), -4, 4), np.clip(np.log(computing / moving), -5, 3), np.clip(np.log(layers), -4, 4),
        np.clip(np.log(seconds / starting), 0, 6),
    ]  # fmt: skip
    return np.stack(inputs, axis=1)


@dataclass(frozen=True)
class ProductPrior:
    """Fitted coefficients: analytic part, network, and for each measured GPU how it leans."""

    analytic: Array
    mean: Array
    scale: Array
    layers: tuple[tuple[Array, Array], ...]
    lean: dict[str, Array]
    """What each GPU adds to each of `LEANINGS`, by its name."""
    float8_lean: dict[str, Array] = field(default_factory=dict)
    """The same for products of float8, whose peak is another one (`benchmarks/priors/float8.py`)."""
    holds_launch: bool = False
    """The start of a kernel was fitted to timings that hold its launch by the host, which has a clock of its own: 21 to
    31 microseconds. All above `KERNEL_SECONDS` of it is left out."""

    @classmethod
    def read(cls, table: dict[str, Any]) -> "ProductPrior":
        """The prior that an entry of the coefficient file describes."""
        layers = tuple((np.array(weight), np.array(bias)) for weight, bias in table["layers"])
        lean, float8 = (
            {name: np.array(values) for name, values in table.get(key, {}).items()} for key in ("lean", "float8_lean")
        )
        analytic, mean, scale = (np.array(table[name]) for name in ("analytic", "mean", "scale"))
        return cls(analytic, mean, scale, layers, lean, float8, holds_launch=table.get("holds_launch", False))

    def seconds(self, chip: Chip, p: Products, lean: Array | None = None) -> Array:
        """Seconds of each product; `lean` is that of the GPU that it runs on, or is like."""
        own = np.zeros(len(LEANINGS)) if lean is None else lean
        base, z = self.standard(chip, p, own)
        correction = self.correction(z)
        beyond = own[OWN:] @ np.stack([correction, np.ones(len(z)), z[:, INTENSITY], z[:, DURATION]])
        start = np.exp(self.analytic[0] + own[0]) * MICRO * TYPICAL_HERTZ / chip.clock_hertz
        launch = max(0.0, start - KERNEL_SECONDS) if self.holds_launch else 0.0
        return (base - launch) * np.exp(np.clip(correction + beyond, -LIMIT, LIMIT))

    def learn(self, chip: Chip, p: Products, seconds: Array, start: Array | None = None) -> Array:
        """The lean of a GPU on which these products took so long: the likeliest, by Gauss and Newton; 20 are enough.

        `start` is the lean of the GPUs that it is like; few products say little, and what they leave open stays there.
        """
        first = np.zeros(len(LEANINGS)) if start is None else start
        own = first
        for _ in range(LEARNING_STEPS):
            now = np.log(self.seconds(chip, p, own))
            nudges = NUDGE * np.eye(len(LEANINGS))
            slopes = np.stack([np.log(self.seconds(chip, p, own + n)) - now for n in nudges], axis=1) / NUDGE
            target = np.log(seconds) - now + slopes @ (own - first)
            own = first + bayes(slopes, target)
        return own

    def standard(self, chip: Chip, p: Products, own: Array) -> tuple[Array, Array]:
        """Analytic seconds, and the network's standardised inputs."""
        coefficients = self.analytic.copy()
        coefficients[:OWN] += own[:OWN]
        base = analytic_seconds(coefficients, chip, p)
        z = (features(chip, p, coefficients, base) - self.mean) / self.scale
        return base, np.clip(z, -3, 3)

    def correction(self, z: Array) -> Array:
        """Logarithm of what the network adds."""
        value = z
        for number, (weight, bias) in enumerate(self.layers):
            value = value @ weight.T + bias
            if number < len(self.layers) - 1:
                value = np.tanh(value)
        return np.clip(value[:, 0], -LIMIT, LIMIT)


def bayes(slopes: Array, target: Array) -> Array:
    """Coefficients of a linear model with prior spread `SPREAD`; values far off, which kernels choose, weigh less."""
    # Huber's weights, min(1, noise / |residual|), by iteratively reweighted least squares
    weight, coefficients = np.ones(len(target)), np.zeros(slopes.shape[1])
    for _ in range(8):
        precision = slopes.T @ (weight[:, None] * slopes) / NOISE**2 + np.diag(1 / SPREAD**2)
        coefficients = np.linalg.solve(precision, slopes.T @ (weight * target) / NOISE**2)
        weight = np.minimum(1, NOISE / np.maximum(np.abs(target - slopes @ coefficients), 1e-9))
    return np.asarray(coefficients, dtype=np.float64)
