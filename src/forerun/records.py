"""The nouns that cross stages: Forecast, Measurement, StepReport, Verdict.

Predicted and measured values share field names and units (bytes, seconds, FLOP), so verifying is a subtraction. Every
record is frozen, serialises to JSON with `model_dump_json()`, and reads back with `model_validate_json()`.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

FORECAST_SCHEMA = "forerun.forecast/1"
MEASUREMENT_SCHEMA = "forerun.measurement/1"
VERDICT_SCHEMA = "forerun.verdict/1"


class Record(BaseModel):
    """A frozen record that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Range(Record):
    """Three scenarios of one quantity, in order."""

    optimistic: float
    expected: float
    conservative: float


class ParameterCounts(Record):
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
    """Seconds of the parts of one warm optimizer step; they sum to the step."""

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
    """Seconds of the parts of a run; they sum to the run."""

    startup_seconds: float = 0.0
    compile_seconds: float = 0.0
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


class RunReliability(Record):
    """A run that is interrupted: means over what may happen, checkpoints as set and as often as is best."""

    source: str
    """Where the rate of failures comes from."""
    seconds_between_interruptions: float | None
    """Of the whole job: failures of its GPUs and machines that are taken away; null where there are none."""
    interruptions: float | None
    """How many are expected; this and the times are null where the run never ends."""
    restart_seconds: float
    checkpoint_wait_seconds: float
    """Training stands still for one checkpoint."""
    checkpoint_write_seconds: float
    """From its moment until it is durable."""
    seconds: float | None
    """The run with checkpoints as set."""
    goodput: float
    """Fraction of that time in which the run gets on: training that is not done again, and scoring."""
    repeated_seconds: float | None
    """Work that is lost and done again."""
    every_steps: int
    best_every_steps: int
    """Steps between checkpoints that make the run shortest."""
    best_seconds: float | None
    """The run with those."""
    best_goodput: float
    cost: float | None
    """Dollars of `seconds` at the price that is paid; null where no price is known."""
    on_demand_cost: float | None
    """The same where no machine is taken away, at the full price."""
    energy_joules: float | None
    """Of the GPUs at their board's limit, machines and cooling aside; null where that is unknown."""


class RunForecast(Record):
    """A whole run. `checkpoint_bytes` is the size of one checkpoint; `cost` is null where no price is known."""

    steps_per_epoch: int
    total_steps: int
    checkpoints_written: int
    checkpoint_bytes: int
    seconds: Range
    phases: RunPhases
    cost: float | None
    reliability: RunReliability | None = None
    """Where `reliability` of the settings says something; else the key is left out."""

    @model_serializer(mode="wrap")
    def _leave_out(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = dump(self)
        return content if self.reliability is not None else {k: v for k, v in content.items() if k != "reliability"}


class OperatorTime(Record):
    """Time of one operator class in one warm step."""

    name: str
    phase: str
    calls: int
    seconds: float


class ForecastDetail(Record):
    """Details that a report draws and a verdict explains with; not part of the output contract."""

    timeline: list[TimelinePoint] = []
    operators: list[OperatorTime] = []
    rates: str = ""
    """Source of the operator rates, in words."""
    traced_lengths: list[int] = []
    padded_tokens_per_step: float = 0.0
    device_name: str = ""
    price: str = ""
    """Dollars an hour behind the cost, who asks them, and since which day; empty where no price is known."""
    versions: dict[str, str] = {}
    corrected_by: dict[str, float] = {}
    """Factor of each term that past runs taught."""
    final_evaluation_seconds: float = 0.0
    """Seconds of the evaluation that follows training."""


class RankKind(Record):
    """Ranks that do the same."""

    ranks: str
    """Their numbers, such as "0-3,8-11"."""
    count: int
    stages: list[int]
    """Their places in the pipeline, from 0."""
    rank: int
    """The one that was run."""
    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    """Expected."""
    compute_seconds: float
    """Of the device in one step: forward, backward and update."""
    communication_seconds: float
    """Of the exchanges that it takes part in, as if nobody were late; those that are hidden included."""
    exposed_communication_seconds: float | None = None
    """Of a step of the job: the device waits for exchanges, its own or those of stages before and behind it."""
    bubble_seconds: float | None = None
    """Of those: because other stages come later. Both are null where one kind was run."""


class Forecast(Record):
    """Memory, time and cost of a run, before it starts."""

    schema_: Literal["forerun.forecast/1"] = Field(default=FORECAST_SCHEMA, alias="schema")
    settings_hash: str
    gpu: str
    world_size: int
    fits: bool
    parameters: ParameterCounts
    memory: MemoryForecast
    step: StepForecast
    run: RunForecast
    warnings: list[str] = []
    not_modelled: list[str] = []
    kinds: list[RankKind] = []
    """Ranks that do the same, of a job whose ranks differ; the forecast is that of the kind that needs most memory."""
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
    is_skipped: bool = False
    """Whether loss or gradients were not finite, so that nothing was updated."""
    out_of_memory: int = 0
    """Times that the step ran out of memory and was run again in smaller pieces."""
    peak_allocated_bytes: int | None = None
    """Peak of the GPU's allocator since the run began."""
    gpu_busy_share: float | None = None
    """Share of the driver's last sampling period in which any kernel ran (NVML's utilization)."""
    gpu_clock_share: float | None = None
    """Clock of the GPU over its highest."""
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
    stopped_early: str = ""
    """Where, by which score and after how long a wait the run stopped early; empty where it did not."""


class RunEvidence(Record):
    """Other events while a run trained; null where they cannot be seen."""

    padded_tokens_per_step: float | None = None
    compiled_graphs: int = 0
    """Graphs that `torch.compile` made; more than a few mean that shapes keep changing."""
    fresh_bytes_per_step: float | None = None
    """Bytes that the operating system handed out anew."""
    other_processes_share: float | None = None
    """Share of all processor time that other processes used."""
    stolen_share: float | None = None
    """Share of all processor time that the hypervisor gave to other machines."""
    threads: int | None = None
    """Threads of each operator on a CPU."""
    waiting_share: float | None = None
    """Time that threads of the run were ready and had no processor, summed over threads, over the run's time."""
    clock_share: float | None = None
    """Mean clock of the GPU over its highest."""
    throttled_share: float | None = None
    """Share of the steps after which the GPU reported that power or heat slowed it."""
    out_of_memory_steps: int = 0
    """Steps that ran again in smaller pieces."""
    out_of_memory_seconds: float = 0.0
    """Seconds that those steps took beyond the mean warm step."""
    skipped_steps: int = 0
    """Steps without a finite loss or gradient."""
    half_way_error: float | None = None
    """Error of the remaining time shown at half of the run: (shown - taken) / taken."""


class Measurement(Record):
    """Measured memory, time and metrics of a run; the same names as Forecast."""

    schema_: Literal["forerun.measurement/1"] = Field(default=MEASUREMENT_SCHEMA, alias="schema")
    settings_hash: str
    gpu: str
    parameters: ParameterCounts
    memory: MeasuredMemory
    step: MeasuredStep
    run: MeasuredRun
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}
    evidence: RunEvidence = RunEvidence()


class Cause(Record):
    """One cause that made a run longer (`seconds` above 0) or shorter than forecast, described in `said`."""

    name: str
    seconds: float
    said: str


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
    judged: bool = True
    """False where others took so much of the processors that a time says nothing; `rule` says how much."""
    open: str = ""
    """Why a pass settles nothing, and the remedy: the difference from the strongest baseline may be luck."""


class Verdict(Record):
    """Forecast and measurement compared."""

    schema_: Literal["forerun.verdict/1"] = Field(default=VERDICT_SCHEMA, alias="schema")
    run_id: str
    rows: list[VerdictRow]
    criteria: list[CriterionResult]
    first_cause: str
    """The first thing to look at, when something missed; empty when nothing did."""
    causes: list[Cause] = []
    """Causes of the difference in the run's time that the evidence accounts for, the largest first."""
    stopped_early: str = ""
    """As the measurement says; the run's time is then compared up to there."""
    better_baseline: str = ""
    """The strongest baseline that beats the model on a criterion's quantity, with both figures; empty without one."""
    passed: bool
