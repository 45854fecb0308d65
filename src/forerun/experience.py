"""What is known from before: what a device was measured to do, and what past runs say of the next.

Both come out of the ledger and go into a forecast as arguments.
"""

from typing import Literal

from pydantic import Field

from forerun.records import Record

CALIBRATION_SCHEMA = "forerun.calibration/1"


class TimedProduct(Record):
    """One matrix product, `batch` of m × k by k × n, as timed."""

    dtype: str
    batch: int
    m: int
    k: int
    n: int
    seconds: float


class TimedAttention(Record):
    """One attention call over (batch, heads, length, head_size), as timed; causal."""

    dtype: str
    batch: int
    heads: int
    length: int
    head_size: int
    forward_seconds: float
    backward_seconds: float


class DeviceCalibration(Record):
    """What one device and its machine were measured to do. Speeds are bytes per second, times are seconds."""

    schema_: Literal["forerun.calibration/1"] = Field(default=CALIBRATION_SCHEMA, alias="schema")
    gpu: str
    """Catalogue name, or `cpu`."""
    device_name: str
    """Name that the device reports of itself."""
    threads: int
    """Threads that PyTorch's operators run on, on a CPU."""
    products: list[TimedProduct]
    attention: list[TimedAttention]
    copy_bytes_per_second: dict[int, float]
    """Bytes read and written per second by a copy, by bytes of the copied tensor."""
    fresh_page_seconds_per_byte: float
    """Seconds that a byte costs when the operating system hands it out anew; 0 on a GPU."""
    operator_host_seconds: float
    """Seconds of Python and autograd around one operator."""
    compiled_random_seconds: float | None = None
    """Seconds of a random number in a compiled kernel; null where nothing can be compiled, and on a GPU."""
    compile_seconds: float | None = None
    """Seconds of the first compilation of a small function, which starts the compiler's parts."""
    disk_write_bytes_per_second: float
    disk_read_bytes_per_second: float
    tokenised_bytes_per_second: float
    import_seconds: float
    """Seconds of a fresh process until torch and transformers are imported."""
    took_seconds: float
    versions: dict[str, str] = {}

    @property
    def memory_bytes_per_second(self) -> float:
        """Bytes read and written per second by the largest copy."""
        return self.copy_bytes_per_second[max(self.copy_bytes_per_second)]

    def peak_flops_per_second(self, dtype: str) -> float | None:
        """FLOP per second of the fastest product in `dtype`; None where none was timed."""
        speeds = [2 * p.batch * p.m * p.k * p.n / p.seconds for p in self.products if p.dtype == dtype]
        return max(speeds, default=None)


class CorrectionTerm(Record):
    """What past runs say of one term of a forecast, and how sure that is."""

    factor: float = 1.0
    """Measured over forecast time of runs that were not quite the same."""
    measured_seconds: float | None = None
    """Seconds of runs with the same settings."""
    trust: float = 0.0
    """Weight of `measured_seconds` against the corrected forecast, from 0 to 1, on a logarithmic scale."""
    spread: float
    """Standard deviation of the logarithm of the next run's ratio."""
    runs: int = 0


class Correction(Record):
    """Experience with runs like this one, by term: step, data, startup, compile, evaluation, checkpoint."""

    terms: dict[str, CorrectionTerm] = {}
    said: str = ""
    """Which runs it comes from, in words."""

    def factor(self, term: str, expected: float) -> float:
        """Factor on a forecast of `expected` seconds for `term`."""
        fitted = self.terms.get(term)
        if fitted is None:
            return 1.0
        if fitted.measured_seconds is None or expected <= 0:
            return fitted.factor
        # a geometric mean: errors of forecasts multiply
        return fitted.factor ** (1 - fitted.trust) * (fitted.measured_seconds / expected) ** fitted.trust


class StepObservation(Record):
    """A step as a user's own log has it, outside any run of the ledger."""

    seconds: float | None = None
    """Seconds of one optimizer step, waiting for data included; null where the log has none."""
    memory: dict[str, int] = {}
    """Bytes by what they count: `allocated` (`torch.cuda.max_memory_allocated`), `reserved` (`max_memory_reserved`),
    `device` (nvidia-smi), or `peak` where the log does not say which; at least one number of either kind is there."""
