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
    """As the device calls itself."""
    threads: int
    """That PyTorch's operators run on, on a CPU."""
    products: list[TimedProduct]
    attention: list[TimedAttention]
    copy_bytes_per_second: dict[int, float]
    """Read and written, by bytes of the copied tensor."""
    fresh_page_seconds_per_byte: float
    """What memory costs that the operating system hands out anew; 0 on a GPU."""
    operator_host_seconds: float
    """Python and autograd around one operator."""
    compiled_random_seconds: float | None = None
    """A random number in a compiled kernel; null where nothing can be compiled, and on a GPU."""
    compile_seconds: float | None = None
    """The first compilation of a small function, which starts the compiler's parts."""
    disk_write_bytes_per_second: float
    disk_read_bytes_per_second: float
    tokenised_bytes_per_second: float
    import_seconds: float
    """A fresh process until torch and transformers are imported."""
    took_seconds: float
    versions: dict[str, str] = {}

    @property
    def memory_bytes_per_second(self) -> float:
        """Of the largest copy."""
        return self.copy_bytes_per_second[max(self.copy_bytes_per_second)]

    def peak_flops_per_second(self, dtype: str) -> float | None:
        """Of the fastest product in `dtype`; None where none was timed."""
        found = [2 * p.batch * p.m * p.k * p.n / p.seconds for p in self.products if p.dtype == dtype]
        return max(found, default=None)


class CorrectionTerm(Record):
    """What past runs say of one term of a forecast, and how sure that is."""

    factor: float = 1.0
    """Measured over forecast, of runs that were not quite the same."""
    measured_seconds: float | None = None
    """Of runs with the same settings."""
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
        """Multiply a forecast of `expected` seconds by this."""
        found = self.terms.get(term)
        if found is None:
            return 1.0
        if found.measured_seconds is None or expected <= 0:
            return found.factor
        return found.factor ** (1 - found.trust) * (found.measured_seconds / expected) ** found.trust
