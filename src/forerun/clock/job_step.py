"""The step of a whole job: one rank of each kind is played on its clocks, and all meet at what they exchange.

A message ends when sender and receiver have come to it and its bytes are through; a collective that joins ranks which
are played begins when the last of them comes. Ranks that are not played do as the one of their kind does. Each time
follows from earlier ones by sums and maxima, so any order of playing that respects what is waited for gives the same
times: a rank is played until it waits for something that is not known yet, then the next. No calendar of events is
needed, as an engine such as simpy keeps.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from forerun.clock.costs import Costs
from forerun.clock.rank_clock import Exchange, RankClock
from forerun.clock.timed_calls import EXCHANGES, MESSAGE_ROLES, Role, TimedCall, timed_calls
from forerun.clock.timeline import waits_by_op
from forerun.errors import UnmatchedExchange
from forerun.records import Record
from forerun.trace import OP, Phase, Trace

STEPS = 3
"""Steps that are played one after the other; the last shows the pace, as ranks need not begin it together."""


class RankStep(Record):
    """One step of one rank, as data that a process can hand to another."""

    rank: int
    calls: list[TimedCall]
    ops: list[int]
    """Places in `calls`, in order."""
    phases: list[Phase]
    """Of each op."""
    waits: dict[int, list[int]] = {}
    """Place of an op → places of the exchanges in `ops` that the rank waits for before it."""
    communication_share: float = 0.0

    @property
    def communication_seconds(self) -> float:
        """Of its exchanges with other ranks, hidden or not."""
        calls = (self.calls[row] for row in self.ops)
        return sum(call.device_seconds for call in calls if call.role in EXCHANGES)


def rank_step(rank: int, step: Trace, costs: Costs) -> RankStep:
    """What `rank` does in the traced step, at the costs of its device."""
    places = [index for kind, index in step.events if kind == OP and step.ops[index].phase is not Phase.PREPARE]
    place_of = {index: place for place, index in enumerate(places)}
    used = sorted({step.ops[index].call for index in places})
    row_of = {call: row for row, call in enumerate(used)}
    waits = {
        place_of[op]: [place_of[each] for each in awaited if each in place_of]
        for op, awaited in waits_by_op(step).items()
        if op in place_of
    }
    return RankStep(
        rank=rank, calls=timed_calls(
            [step.calls[call] for call in used], costs, in_parts=step.async_tensor, experts_beside=step.expert_overlap
        ),
        ops=[row_of[step.ops[index].call] for index in places], phases=[step.ops[index].phase for index in places],
        waits={op: awaited for op, awaited in waits.items() if awaited},
        communication_share=getattr(costs, "communication_share", 0.0),
    )  # fmt: skip


@dataclass(frozen=True)
class RankTime:
    """What one rank does with a step of the job; the parts sum to the job's step."""

    busy: Mapping[str, float]
    """Seconds by phase, of waiting for the host, and in `communication` of exchanges that nothing hides."""
    bubble_seconds: float
    """Of waiting because other ranks come later."""


@dataclass(frozen=True)
class JobStep:
    """One warm step of a job."""

    seconds: float
    ranks: dict[int, RankTime]
    """By the rank that was played."""


def job_step(steps: Sequence[RankStep], repeats: int = STEPS) -> JobStep:
    """Play one rank of each kind together; the time of the last of `repeats` steps.

    Raises:
        UnmatchedExchange: ranks wait for what no other takes part in.
    """
    board = _JointBoard(frozenset(step.rank for step in steps))
    players = [_RankPlayer(step, board, repeats) for step in steps]
    waiting = players
    while waiting:
        played = sum(player.played for player in players)
        waiting = [player for player in waiting if not player.play()]
        if waiting and sum(player.played for player in players) == played:
            lines = "; ".join(player.where() for player in waiting)
            raise UnmatchedExchange(f"Each of the ranks that were run waits for another: {lines}.")
    ends = [max(player.ends[number] for player in players) for number in (-2, -1)]
    seconds = ends[1] - ends[0]
    return JobStep(seconds, {player.step.rank: player.time(seconds) for player in players})


class _JointBoard:
    """Where the ranks that are played meet, by the order in which each comes to what they share."""

    def __init__(self, ranks: frozenset[int]):
        self._ranks = ranks
        self._counts: dict[tuple[int, Hashable], int] = defaultdict(int)
        self._open: dict[tuple[Hashable, int], Exchange] = {}
        self._members: dict[tuple[int, ...], frozenset[int]] = {}

    def exchange(self, rank: int, call: TimedCall) -> Exchange:
        """The exchange that `rank` comes to next with those of its message or its group."""
        if call.role in MESSAGE_ROLES:
            other = call.peer if call.peer is not None else rank
            key: Hashable = (rank, other) if call.role is Role.SEND else (other, rank)
            members = frozenset((rank, other)) & self._ranks
        else:
            key = call.ranks
            if call.ranks not in self._members:
                self._members[call.ranks] = self._ranks & frozenset(call.ranks)
            members = self._members[call.ranks]
        if len(members) < 2:
            return Exchange(call.device_seconds)
        number = self._counts[rank, key]
        self._counts[rank, key] = number + 1
        if (key, number) not in self._open:
            self._open[key, number] = Exchange(call.device_seconds, unknown=len(members), is_shared=True)
        exchange = self._open[key, number]
        exchange.seconds = max(exchange.seconds, call.device_seconds)
        if exchange.unknown == 1:  # this rank is the last
            del self._open[key, number]
        return exchange


class _RankPlayer:
    """One rank as far as it was played."""

    def __init__(self, step: RankStep, board: _JointBoard, repeats: int):
        self.step, self.played = step, 0
        self.clock = RankClock(step.calls, False, step.communication_share, board, step.rank)
        self.ends: list[float] = []
        self._repeats = repeats
        self._at = 0
        self._is_prepared = False
        self._exchanges: dict[int, Exchange] = {}
        self._awaited = {each for awaited in step.waits.values() for each in awaited}
        self._before: tuple[dict[str, float], float] = ({}, 0.0)

    def play(self) -> bool:
        """Go on until something is waited for that is not known; whether all steps are played."""
        clock, step, count = self.clock, self.step, len(self.step.ops)
        while len(self.ends) < self._repeats:
            if not self._is_prepared:
                self._prepare()
            if clock.is_held_up():
                return False
            if self._at == count:
                self._end_step()
                continue
            exchange = clock.play(step.ops[self._at], step.phases[self._at])
            if exchange is not None and self._at in self._awaited:
                self._exchanges[self._at] = exchange
            self._at += 1
            self.played += 1
            self._is_prepared = False
        return True

    def _prepare(self) -> None:
        """Await what the next op needs; the first one of the update, and the end of the step, every exchange."""
        step, at = self.step, self._at
        self._is_prepared = True
        is_end = at == len(step.ops)
        if is_end or (step.phases[at] is Phase.OPTIMIZER and (at == 0 or step.phases[at - 1] is not Phase.OPTIMIZER)):
            self.clock.await_all()
        if not is_end:
            self.clock.awaited += [self._exchanges[each] for each in step.waits.get(at, ())]
            self.clock.await_use(step.ops[at])

    def _end_step(self) -> None:
        self.ends.append(max(self.clock.device, self.clock.host))
        self.played += 1
        if len(self.ends) == self._repeats - 1:
            self._before = dict(self.clock.busy), self.clock.late_seconds
        self._at, self._is_prepared = 0, False
        self._exchanges.clear()

    def time(self, seconds: float) -> RankTime:
        """What of the job's last step, of `seconds`, the rank did with what; it waits for others in what is left."""
        busy, late = self._before
        spent = {name: value - busy.get(name, 0.0) for name, value in self.clock.busy.items()}
        rest = max(0.0, seconds - sum(spent.values()))
        spent["communication"] = spent.get("communication", 0.0) + rest
        return RankTime(spent, self.clock.late_seconds - late + rest)

    def where(self) -> str:
        """What the rank waits for, for people."""
        names = [self.step.calls[self.step.ops[at]].name for at, each in self._exchanges.items() if each.end is None]
        return f"rank {self.step.rank} at operator {self._at} of {len(self.step.ops)} for {', '.join(names[:3])}"
