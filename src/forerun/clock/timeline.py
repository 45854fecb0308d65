"""A trace replayed through the two clocks of a rank, as if all other ranks did the same at the same time.

With gradient accumulation the second traced micro-step is repeated for all later ones, but for the last one where three
were traced; its steady time is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.clock.costs import Costs
from forerun.clock.rank_clock import Exchange, RankClock
from forerun.clock.timed_calls import EXCHANGES, WITH_HOST, Role, timed_calls
from forerun.records import OperatorTime, StepPhases
from forerun.trace import OP, Op, Phase, Trace


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
    player, later, places = _Player(trace, costs), trace.accumulation - 1, _warm_ops(trace)
    for ops, count, is_traced_once in _micro_steps(trace, places, later):
        traced_count = len(player.ends)
        player.run(ops, count)
        if not is_traced_once:
            del player.ends[traced_count:]
    player.join_ranks()
    player.run([index for index in places if trace.ops[index].phase is Phase.OPTIMIZER], 1)
    player.await_last()
    player.clock.finish()
    warm = [trace.ops[index] for index in places]
    calls = [trace.calls[op.call] for op in warm]
    flops = [(op, c.flops * c.times * trace.repeats(op.micro_step)) for op, c in zip(warm, calls, strict=True)]
    return StepTime(
        phases=StepPhases(**{f"{name}_seconds": seconds for name, seconds in player.clock.busy.items()}),
        model_flops=sum(count for op, count in flops if not op.recomputed),
        hardware_flops=sum(count for _, count in flops),
        operators=player.clock.operators(),
        ends=tuple(player.ends),
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
    player, spans, phase = _Player(trace, costs), [], None
    for index in (index for kind, index in trace.events if kind == OP):
        op = trace.ops[index]
        if op.phase is Phase.OPTIMIZER and phase is not Phase.OPTIMIZER:
            player.join_ranks()
        phase = op.phase
        spans.append(player.span(index, op))
    return spans


def _warm_ops(trace: Trace) -> list[int]:
    """Operators of the warm step, by their places: a program's first run has backward passes and updates too."""
    warm = (index for kind, index in trace.events[trace.warm_from :] if kind == OP)
    return [index for index in warm if trace.ops[index].phase is not Phase.PREPARE]


def _micro_steps(trace: Trace, warm: Sequence[int], later: int) -> list[tuple[list[int], int, bool]]:
    """Operators, how often they run, and whether these plays stand for traced ones: the first micro-step, then `later`
    ones like the second, the last of which may have been traced apart.

    What belongs to no micro-step (DDP's reductions) runs beside the last one only.
    """
    places = {i: trace.ops[i].micro_step for i in warm if trace.ops[i].phase is not Phase.OPTIMIZER}
    first, second = [i for i, at in places.items() if at <= 0], [i for i, at in places.items() if at == 1]
    apart = [i for i, at in places.items() if at == 2]
    if apart:
        return [(first, 1, True), (second, later - 1, True), (apart, 1, True)]
    if not second or all(at >= 0 for at in places.values()):
        return [(first, 1, True), (second, later, True)]
    last = [i for i, at in places.items() if at != 0]
    alone = [i for i in first if places[i] == 0]
    return [(alone, 1, True), (second, later - 1, False), (last, 1, True)]


def waits_by_op(trace: Trace) -> dict[int, list[int]]:
    """Where the program waits for exchanges: of each op that follows a wait the ops that it waits for."""
    places: dict[int, list[int]] = {}
    if not trace.waits:
        return {}
    for place, op in trace.waits:
        places.setdefault(place, []).append(op)
    awaited: dict[int, list[int]] = {}
    before: list[int] = []
    for place, (kind, index) in enumerate(trace.events):
        before += places.get(place, ())
        if kind == OP and before:
            awaited[index], before = before, []
    return awaited


class _Player:
    """Plays ops of a trace on the clock of its rank."""

    def __init__(self, trace: Trace, costs: Costs):
        self.trace = trace
        self.clock = RankClock(
            timed_calls(
                trace.calls,
                costs,
                in_parts=trace.async_tensor,
                experts_beside=trace.expert_overlap,
                blocks_launches=trace.blocks_launches,
            ),
            costs.is_host,
            getattr(costs, "communication_share", 0.0),
        )
        self.ends: list[float] = []
        self._waits = waits_by_op(trace)
        self._exchanges: dict[int, Exchange] = {}
        meetings = EXCHANGES | WITH_HOST | {Role.COPY_OUT}
        self._is_alone = not self._waits and not any(call.role in meetings for call in self.clock.calls)

    def run(self, ops: Sequence[int], repeats: int) -> None:
        """Play `ops` once; the time of further repeats is that of a second play."""
        if not ops or repeats < 1:
            return
        clock, traced = self.clock, self.trace.ops
        for index in ops:
            if self._is_alone:  # nothing is ever waited for
                op = traced[index]
                clock.play(op.call, op.phase, is_again=op.recomputed)
            else:
                self.play(index, 1)
            self.ends.append(clock.device)
        # A second play finds the clocks as a running step leaves them; further ones would repeat it.
        if repeats > 1:
            before = dict(self.clock.busy)
            for index in ops:
                self.play(index, repeats - 1)
            skipped = 0.0
            for name, value in list(self.clock.busy.items()):
                extra = (value - before.get(name, 0.0)) * (repeats - 2)
                self.clock.busy[name] = value + extra
                skipped += extra
            self.clock.skip(skipped)

    def play(self, index: int, count: int) -> Exchange | None:
        """Play one op, after what it waits for."""
        op, clock = self.trace.ops[index], self.clock
        clock.awaited += [self._exchanges[each] for each in self._waits.get(index, ()) if each in self._exchanges]
        clock.await_use(op.call)
        clock.is_held_up()
        exchange = clock.play(op.call, op.phase, count, is_again=op.recomputed)
        clock.is_held_up()  # what follows reads the result of some exchanges
        if exchange is not None:
            self._exchanges[index] = exchange
        return exchange

    def span(self, index: int, op: Op) -> OperatorSpan:
        """Play one operator; when it was issued and when it ran."""
        clock, timed = self.clock, self.clock.calls[op.call]
        issue_begin, seconds = clock.host, timed.device_seconds
        issue_end = issue_begin + clock.issue_seconds(op.call, is_again=op.recomputed)
        exchange = self.play(index, 1)
        is_collective = exchange is not None and timed.role in EXCHANGES
        end = clock.cards.get(timed.card, clock.device)
        if is_collective and exchange is not None:
            end = exchange.end or 0.0
        if clock.is_host:
            issue_begin, issue_end = end - seconds - timed.host_seconds, end - seconds
        return OperatorSpan(index, issue_begin, issue_end, end - seconds, end, is_collective)

    def await_last(self) -> None:
        """What the program waits for behind its last op, such as parameters that ZeRO's ranks send one another."""
        last = [op for place, op in self.trace.waits if place >= len(self.trace.events)]
        self.clock.awaited += [self._exchanges[op] for op in last if op in self._exchanges]
        self.clock.is_held_up()

    def join_ranks(self) -> None:
        """The update needs every gradient of every rank."""
        self.clock.await_all()
        self.clock.is_held_up()
