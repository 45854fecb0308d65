"""How long a matrix product takes on a GPU: tiles, waves, splits and bytes, then a learned correction.

The analytic part follows how cuBLAS works: the result is cut into tiles, each computed by one streaming multiprocessor;
whole waves of tiles cost time, the last one whether it is full or not; a long inner dimension may be split; operands
come through L2. A small network, fitted to measured products, corrects what that leaves, from the same quantities
relative to the GPU, so that it carries over to GPUs never measured. Coefficients and errors: `priors.json`, made by
`benchmarks/priors/fit.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
LIMIT = 0.7
"""The learned correction is at most a factor of e to this, either way: outside the data it may not run away."""


@dataclass(frozen=True)
class Chip:
    """What of a GPU a product depends on: FLOP/s, bytes/s, multiprocessors, bytes of L2."""

    flops_per_second: float
    bytes_per_second: float
    multiprocessors: float
    l2_bytes: float


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

    @property
    def flops(self) -> Array:
        """FLOP."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> Array:
        """Bytes of operands and result."""
        return self.width * self.batch * (self.m * self.k + self.n * self.k + self.m * self.n)


def analytic_seconds(coefficients: Array, chip: Chip, p: Products) -> Array:
    """Seconds by tiles and waves; the nine coefficients are logarithms of positive numbers."""
    start, compute, l2, tile, memory, sharpness, split, cache, small = np.exp(coefficients)
    per_sm = chip.flops_per_second / chip.multiprocessors * compute
    rows, columns = TILES[:, 0][:, None, None], TILES[:, 1][:, None, None]
    splits = SPLITS[None, :, None]
    waves = np.ceil(p.batch * np.ceil(p.m / rows) * np.ceil(p.n / columns) * splits / chip.multiprocessors)
    arithmetic = 2 * rows * columns / per_sm * (1 + small * 4096 / (rows * columns))
    loading = p.width * (rows + columns) / (chip.bytes_per_second / chip.multiprocessors * l2)
    adding = (splits > 1) * (2 * p.width * p.batch * p.m * p.n * splits / (chip.bytes_per_second * split) + MICRO / 2)
    computing = (waves * ((p.k / splits) * np.maximum(arithmetic, loading) + tile * MICRO) + adding).min((0, 1))
    slow = 1 / (chip.bytes_per_second * memory)
    per_byte = np.full_like(computing, slow)
    if p.is_cached:
        held = p.width * (LAYERS_IN_CACHE * p.n * p.k + p.m * p.k + p.m * p.n)
        resident = 1 / (1 + (held / (chip.l2_bytes * cache)) ** 3)
        per_byte = (1 - resident) * slow + resident / (chip.bytes_per_second * max(l2, memory))
    moving = p.bytes * per_byte
    return start * MICRO + (computing**sharpness + moving**sharpness) ** (1 / sharpness)


def features(chip: Chip, p: Products, seconds: Array) -> Array:
    """What the correction looks at, (products, 14): logarithms relative to the GPU."""
    found = []
    for rows, columns in WAVE_TILES:
        waves = p.batch * np.ceil(p.m / rows) * np.ceil(p.n / columns) / chip.multiprocessors
        found += [np.log(waves), np.clip(np.log(np.ceil(waves) / waves), 0, 4)]
    balance = chip.flops_per_second / chip.bytes_per_second
    held = p.width * p.batch * (LAYERS_IN_CACHE * p.n * p.k + p.m * p.k + p.m * p.n) / chip.l2_bytes
    found += [
        np.log(p.k), np.log(p.m / p.n), np.log(np.minimum(p.m, p.n)), np.log(p.flops / p.bytes / balance),
        np.log(held), np.log(p.flops / chip.flops_per_second / MICRO), np.log(p.bytes / chip.bytes_per_second / MICRO),
        np.log(seconds / MICRO),
    ]  # fmt: skip
    return np.stack(found, axis=1)


@dataclass(frozen=True)
class ProductPrior:
    """Fitted coefficients: analytic part, network, and for each measured GPU how its residual leans."""

    analytic: Array
    mean: Array
    scale: Array
    layers: tuple[tuple[Array, Array], ...]
    lean: dict[str, Array]
    """By GPU: coefficients on (1, arithmetic intensity, estimated seconds), standardised."""

    @classmethod
    def read(cls, table: dict[str, Any]) -> "ProductPrior":
        """From the entry of the coefficient file."""
        layers = tuple((np.array(weight), np.array(bias)) for weight, bias in table["layers"])
        lean = {name: np.array(values) for name, values in table["lean"].items()}
        return cls(np.array(table["analytic"]), np.array(table["mean"]), np.array(table["scale"]), layers, lean)

    def seconds(self, chip: Chip, p: Products, lean: Array | None = None) -> Array:
        """Seconds of each product; `lean` is that of the GPU that it runs on, or is like."""
        base, z = self._standard(chip, p)
        own = 0.0 if lean is None else leaning(z) @ lean
        return base * np.exp(np.clip(self.correction(z) + own, -LIMIT, LIMIT))

    def learn(self, chip: Chip, p: Products, seconds: Array) -> Array:
        """The lean of a GPU on which these products took so long; about 20 are enough."""
        base, z = self._standard(chip, p)
        return fit_lean(z, np.log(seconds / base) - self.correction(z))

    def _standard(self, chip: Chip, p: Products) -> tuple[Array, Array]:
        base = analytic_seconds(self.analytic, chip, p)
        return base, (features(chip, p, base) - self.mean) / self.scale

    def correction(self, z: Array) -> Array:
        """Logarithm of what the network adds."""
        value = z
        for number, (weight, bias) in enumerate(self.layers):
            value = value @ weight.T + bias
            if number < len(self.layers) - 1:
                value = np.tanh(value)
        return value[:, 0]


def leaning(z: Array) -> Array:
    """Columns that a GPU's own correction is linear in."""
    return np.stack([np.ones(len(z)), z[:, 9], z[:, 13]], axis=1)


def fit_lean(z: Array, residual: Array, *, weight: float = 1.0) -> Array:
    """The correction of one GPU from measured products, pulled towards none: 20 products are enough."""
    columns = leaning(z)
    pull = weight * np.diag([0.3, 2.0, 2.0])
    found = np.linalg.solve(columns.T @ columns + pull, columns.T @ np.clip(residual, -0.5, 0.5))
    return np.asarray(found, dtype=np.float64)
