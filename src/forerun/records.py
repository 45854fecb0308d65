"""The nouns that cross stages: Forecast, Measurement, StepReport, Verdict.

Predicted and measured values share field names and units (bytes, seconds, FLOP), so verifying is a subtraction. Every
record is frozen, serialises to JSON with `model_dump_json()`, and reads back with `model_validate_json()`.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORECAST_SCHEMA = "forerun.forecast/1"
MEASUREMENT_SCHEMA = "forerun.measurement/1"
VERDICT_SCHEMA = "forerun.verdict/1"
CALIBRATION_SCHEMA = "forerun.calibration/1"


class Record(BaseModel):
    """Frozen, closed record."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Range(Record):
    """Three scenarios of one quantity, in order."""

    optimistic: float
    expected: float
    conservative: float


class Parameters(Record):
    """Parameter counts, each shared tensor once."""

    total: int
    trainable: int


class MemoryBreakdown(Record):
    """What the peak of allocated bytes is made of; the parts sum to it."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    activation_bytes: int
    temporary_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        return sum(self.model_dump().values())


class TimelinePoint(Record):
    """Live bytes by category at one moment of a step (`seconds` from its start)."""

    seconds: float
    phase: str
    bytes: MemoryBreakdown


class MemoryForecast(Record):
    """Peak memory of a run on one device."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: Range
    context_bytes: int
    capacity_bytes: int
    breakdown: MemoryBreakdown
    phase_peaks: dict[str, int] = {}
    """Peak allocated bytes of `training`, and where the run evaluates of `scoring` and `generation`."""


class StepPhases(Record):
    """Where the time of one warm optimizer step goes; the parts sum to the step."""

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    data_seconds: float = 0.0
    communication_seconds: float = 0.0
    host_seconds: float = 0.0


class StepForecast(Record):
    """One warm optimizer step."""

    seconds: Range
    phases: StepPhases
    model_flops: float
    hardware_flops: float
    mfu: float
    tokens_per_second: float
    samples_per_second: float


class RunPhases(Record):
    """Where the time of a run goes; the parts sum to the run."""

    startup_seconds: float = 0.0
    compile_seconds: float = 0.0
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


class RunForecast(Record):
    """A whole run. `checkpoint_bytes` is the size of one checkpoint; `cost` is null where no price is known."""

    steps_per_epoch: int
    total_steps: int
    checkpoints_written: int
    checkpoint_bytes: int
    seconds: Range
    phases: RunPhases
    cost: float | None


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
    """Experience with runs like this one, by term: step, data, evaluation, checkpoint, startup."""

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


class OperatorTime(Record):
    """Time of one operator class in one warm step."""

    name: str
    phase: str
    calls: int
    seconds: float


class ForecastDetail(Record):
    """What a report draws and a verdict explains with; not part of the contract."""

    timeline: list[TimelinePoint] = []
    operators: list[OperatorTime] = []
    rates: str = ""
    """Where the operator rates come from, in words."""
    traced_lengths: list[int] = []
    device_name: str = ""
    versions: dict[str, str] = {}
    corrected_by: dict[str, float] = {}
    """What each term was multiplied by, for past runs."""


class LiveTensor(Record):
    """One allocation that is alive at the peak."""

    bytes: int
    category: str
    module: str
    operator: str
    """The aten overload that made it; empty for what was there before the step."""
    phase: str
    line: str
    """File and line of the program that called the operator; of the backward pass, the call that started it."""


class Lever(Record):
    """One change of settings and what it would do to the peak."""

    change: str
    """As `--set` takes it."""
    saves_bytes: int
    """Of the peak allocated; negative when it would cost memory."""
    changes_method: bool
    """It changes what is trained, not only how."""


class Explanation(Record):
    """What is alive at the peak, and what would lower it."""

    phase: str
    """Part of the step in which the peak falls."""
    module: str
    operator: str
    largest: list[LiveTensor]
    modules: dict[str, dict[str, int]]
    """Bytes by module path, with block numbers as *, and category."""
    largest_micro_batch_size: int | None = None
    """That fits the card at the longest length, 0 when none does; null on the host."""
    levers: list[Lever]


class Forecast(Record):
    """What a run will need, before it starts."""

    schema_: Literal["forerun.forecast/1"] = Field(default=FORECAST_SCHEMA, alias="schema")
    settings_hash: str
    gpu: str
    world_size: int
    fits: bool
    parameters: Parameters
    memory: MemoryForecast
    step: StepForecast
    run: RunForecast
    warnings: list[str] = []
    not_modelled: list[str] = []
    detail: ForecastDetail = ForecastDetail()

    def require_fit(self) -> None:
        """Raise NothingFits when the conservative device total exceeds the capacity."""
        from forerun.errors import NothingFits
        from forerun.units import format_bytes

        if not self.fits:
            raise NothingFits(
                f"The run needs {format_bytes(self.memory.device_bytes.conservative)} on {self.gpu}, which has "
                f"{format_bytes(self.memory.capacity_bytes)}. Lower batch.micro_batch_size or "
                f"batch.sequence_length, or set activation_checkpointing to blocks."
            )


class StepReport(Record):
    """One optimizer step as it happened. `step` counts from 1."""

    step: int
    epoch: float
    loss: float
    learning_rate: float
    step_seconds: float
    phases: StepPhases
    samples: int
    tokens: int
    """Non-padding tokens."""
    padded_tokens: int
    gradient_norm: float | None = None
    is_warm: bool = True
    details: dict[str, float] = {}
    """Further numbers of the workload, such as the parts of its loss."""


class MeasuredMemory(Record):
    """Peak memory as measured. `method` says how; a byte count is null where the device has no such number."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    device_bytes: int | None
    method: str


class MeasuredStep(Record):
    """Median of the warm optimizer steps."""

    seconds: float
    phases: StepPhases
    tokens_per_second: float
    samples_per_second: float


class MeasuredRun(Record):
    """The whole run."""

    steps_per_epoch: int
    total_steps: int
    checkpoints_written: int
    checkpoint_bytes: int
    seconds: float
    phases: RunPhases
    cost: float | None = None


class Measurement(Record):
    """What a run did need; the same names as Forecast."""

    schema_: Literal["forerun.measurement/1"] = Field(default=MEASUREMENT_SCHEMA, alias="schema")
    settings_hash: str
    gpu: str
    parameters: Parameters
    memory: MeasuredMemory
    step: MeasuredStep
    run: MeasuredRun
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}


class VerdictRow(Record):
    """One quantity, forecast against measured. `relative_error` = (forecast - measured) / measured."""

    field: str
    unit: Literal["bytes", "seconds", "count", "per second"]
    forecast: float
    measured: float
    relative_error: float | None
    inside_range: bool | None = None


class CriterionResult(Record):
    """One success criterion of a recipe: `value` against `rule`."""

    name: str
    rule: str
    value: float
    passed: bool


class Verdict(Record):
    """Forecast and measurement compared."""

    schema_: Literal["forerun.verdict/1"] = Field(default=VERDICT_SCHEMA, alias="schema")
    run_id: str
    rows: list[VerdictRow]
    criteria: list[CriterionResult]
    first_cause: str
    """The first thing to look at, when something missed; empty when nothing did."""
    passed: bool


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


class Calibration(Record):
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
