"""A trace replayed through two clocks: the host issues operators, the device executes them in order.

The device starts an operator when it is free and the host has issued it. Time in which the device waits for the host is
`host_seconds`; reads of values make the host wait for the device. Collectives run beside the device, on a stream of
their own; the device waits for gathered weights before it uses them and for all gradients before the update, which is
`communication_seconds`. While they run they hold some multiprocessors, and products beside them slow by that share. On
a host device (`cpu`) there is one clock. With gradient accumulation the second traced micro-step is repeated for all
later ones; its steady time is taken.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from forerun.clock.costs import Costs
from forerun.records import OperatorTime, StepPhases
from forerun.trace import AWAITED, BESIDE_HOST, BETWEEN_RANKS, OP, Op, Phase, Trace


@dataclass(frozen=True)
class StepTime:
    """One warm step: its phases, the FLOP it needs and executes, its operators, and when each traced op ended."""

    phases: StepPhases
    model_flops: float
    hardware_flops: float
    operators: tuple[OperatorTime, ...]
    ends: tuple[float, ...]
    """Seconds from the start of the step at which each op of `Trace.ops` in the warm step ended."""

    @property
    def seconds(self) -> float:
        """Sum of the phases."""
        return sum(self.phases.model_dump().values())


def replay_clock(trace: Trace, costs: Costs) -> StepTime:
    """Time of the warm step of `trace` at `costs`."""
    clocks = _Clocks(trace, costs)
    later = trace.accumulation - 1
    for ops, count, is_traced_once in _micro_steps(trace, later):
        traced_count = len(clocks.ends)
        clocks.run(ops, count)
        if not is_traced_once:
            del clocks.ends[traced_count:]
    clocks.join_ranks()
    clocks.run((op for op in _warm_ops(trace) if op.phase is Phase.OPTIMIZER), 1)
    clocks.finish()
    repeats = {0: 1, 1: later, -1: 1}
    flops = [(op, trace.calls[op.call].flops * repeats[op.micro_step]) for op in _warm_ops(trace)]
    return StepTime(
        phases=StepPhases(**{f"{name}_seconds": seconds for name, seconds in clocks.busy.items()}),
        model_flops=sum(count for op, count in flops if not op.recomputed),
        hardware_flops=sum(count for _, count in flops),
        operators=clocks.operators(),
        ends=tuple(clocks.ends),
    )


@dataclass(frozen=True, slots=True)
class OperatorSpan:
    """When one operator ran, in seconds from the start of the trace."""

    op: int
    """Index into `Trace.ops`."""
    issue_begin: float
    issue_end: float
    """The host issues it between these."""
    begin: float
    end: float
    """It runs between these; both are alike where it launches nothing."""
    is_collective: bool
    """Whether it runs beside the device, on the stream of the collectives."""


def operator_spans(trace: Trace, costs: Costs) -> list[OperatorSpan]:
    """Every operator of `trace`, in order, on the same two clocks as `replay_clock`; each as often as it was traced."""
    clocks, spans, phase = _Clocks(trace, costs), [], None
    for index in (index for kind, index in trace.events if kind == OP):
        op = trace.ops[index]
        if op.phase is Phase.OPTIMIZER and phase is not Phase.OPTIMIZER:
            clocks.join_ranks()
        phase = op.phase
        spans.append(clocks.span(index, op))
    return spans


def _warm_ops(trace: Trace) -> Iterable[Op]:
    """Operators of the warm step: a program's first run has backward passes and updates too."""
    warm = (trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP)
    return (op for op in warm if op.phase is not Phase.PREPARE)


def _micro_steps(trace: Trace, later: int) -> list[tuple[list[Op], int, bool]]:
    """Operators, how often they run, and whether these plays stand for traced ones: the first micro-step, then `later`
    ones like the second.

    What belongs to no micro-step (DDP's reductions) runs beside the last one only.
    """
    ops = [op for op in _warm_ops(trace) if op.phase is not Phase.OPTIMIZER]
    first, second = [op for op in ops if op.micro_step <= 0], [op for op in ops if op.micro_step == 1]
    if not second or all(op.micro_step >= 0 for op in ops):
        return [(first, 1, True), (second, later, True)]
    last = [op for op in ops if op.micro_step != 0]
    alone = [op for op in first if op.micro_step == 0]
    return [(alone, 1, True), (second, later - 1, False), (last, 1, True)]


@dataclass
class _Clocks:
    trace: Trace
    costs: Costs
    host: float = 0.0
    device: float = 0.0
    link: float = 0.0
    """When the last collective ends; collectives have a stream of their own."""
    gathered: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.device_seconds = [self.costs.device_seconds(call) for call in self.trace.calls]
        self.host_seconds = [self.costs.host_seconds(call) for call in self.trace.calls]
        self.communication_share: float = getattr(self.costs, "communication_share", 0.0)
        self.totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])

    def run(self, ops: Iterable[Op], repeats: int) -> None:
        """Play `ops` once; the time of further repeats is that of a second play."""
        played_ops = list(ops)
        if not played_ops or repeats < 1:
            return
        for op in played_ops:
            self._play(op, 1)
            self.ends.append(self.device)
        # A second play finds the clocks as a running step leaves them; further ones would repeat it.
        if repeats > 1:
            before = dict(self.busy)
            for op in played_ops:
                self._play(op, repeats - 1)
            skipped = 0.0
            for name, value in list(self.busy.items()):
                extra = (value - before.get(name, 0.0)) * (repeats - 2)
                self.busy[name] = value + extra
                skipped += extra
            self.host += skipped
            self.device += skipped
            self.link += skipped
            self.gathered += skipped

    def span(self, index: int, op: Op) -> OperatorSpan:
        """Play one operator; when it was issued and when it ran."""
        issue_begin, seconds = self.host, self.device_seconds[op.call]
        issue_end = issue_begin + self.host_seconds[op.call]
        self._play(op, 1)
        is_collective = not self.costs.is_host and self.trace.calls[op.call].name.startswith(BETWEEN_RANKS)
        end = self.link if is_collective else self.device
        if self.costs.is_host:
            issue_begin, issue_end = end - seconds - self.host_seconds[op.call], end - seconds
        return OperatorSpan(index, issue_begin, issue_end, end - seconds, end, is_collective)

    def _play(self, op: Op, count: int) -> None:
        seconds, issue = self.device_seconds[op.call], self.host_seconds[op.call]
        call = self.trace.calls[op.call]
        if self.costs.is_host:
            self.busy["host"] += issue
            self.busy[op.phase.value] += seconds
            self.device += issue + seconds
        elif call.name.startswith(BETWEEN_RANKS):
            self.host += issue
            gathers = "allgather" in call.name  # its input, a shard, is there; gradients are not before they are made
            self.link = max(self.link, self.host, 0.0 if gathers else self.device) + seconds
            if gathers:
                self.gathered = self.link
            if call.name.startswith(AWAITED):
                self._wait_for_ranks(self.link)
        elif call.name.startswith(BESIDE_HOST):
            self.host += issue
            self.link = max(self.link, self.host, self.device) + seconds
        else:
            self.host += issue
            # FSDP2 copies gathered weights out of their buffer before a block runs
            # (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:280-298, 2.13).
            if "split_with_sizes_copy" in call.name:
                self._wait_for_ranks(self.gathered)
            if seconds:
                wait = max(0.0, self.host - self.device)
                if call.flops:
                    seconds = self._beside_ranks(seconds, self.link - self.device - wait)
                self.busy["host"] += wait
                self.busy[op.phase.value] += seconds
                self.device += wait + seconds
            if call.syncs:  # `.item()` and `nonzero` return when the device has caught up
                self.host = max(self.host, self.device)
        total = self.totals[(call.name, op.phase.value)]
        total[0] += count
        total[1] += count * seconds

    def _beside_ranks(self, seconds: float, remaining: float) -> float:
        """Time of a kernel when collectives hold a share of the multiprocessors for `remaining` more seconds."""
        if remaining <= 0 or not self.communication_share:
            return seconds
        beside = remaining * (1 - self.communication_share)
        return seconds / (1 - self.communication_share) if beside >= seconds else seconds + remaining - beside

    def join_ranks(self) -> None:
        """The update needs every gradient of every rank."""
        self._wait_for_ranks(self.link)

    def _wait_for_ranks(self, until: float) -> None:
        """The device can go on only when a collective has ended."""
        self.busy["communication"] += max(0.0, until - self.device)
        self.device = max(self.device, until)

    def finish(self) -> None:
        """The step ends when both clocks have ended, and what lives on the host is back."""
        if any(call.name.startswith(BESIDE_HOST) for call in self.trace.calls):
            self.busy["optimizer"] += max(0.0, self.link - self.device)
            self.device = max(self.device, self.link)
        if not self.costs.is_host and self.host > self.device:
            self.busy["host"] += self.host - self.device

    def operators(self) -> tuple[OperatorTime, ...]:
        """Operator classes by time, most first."""
        rows = [
            OperatorTime(name=name.removeprefix("aten."), phase=phase, calls=int(calls), seconds=seconds)
            for (name, phase), (calls, seconds) in self.totals.items()
            if seconds
        ]
        return tuple(sorted(rows, key=lambda row: -row.seconds))
