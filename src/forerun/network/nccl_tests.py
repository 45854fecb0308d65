"""What did nccl-tests measure here? Its output as printed → curves: seconds by bytes, for each collective and layout.

Read are the lines `Collective test starting: …` or the name of the program (`all_reduce_perf`) in a command line, the
list of ranks (`# Rank 0 … on HOST device …`, from which ranks and machines follow) and the rows of numbers. Rows have
times out of place and in place; the larger counts, as training does either. Lines of other programs, and prefixes
that mpirun, Slurm or a logger puts before each line, are passed over. Layout of columns: NVIDIA/nccl-tests,
src/common.cu and doc/PERFORMANCE.md.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import BadData
from forerun.network.algorithms import Kind
from forerun.units import MEGA

PROGRAMS: dict[str, Kind] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "send_receive",
}  # fmt: skip
PROGRAM = re.compile(rf"\b({'|'.join(PROGRAMS)})_perf")
RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+")
BEFORE_NUMBERS = re.compile(r"^\D*.*?[>:\]]\s+(?=\d+\s)|^.*?>(?=\s*\d)")
"""Such as `[1,0]<stdout>:`, which mpirun puts before each line."""
LEAST_FIELDS = 11
"""Bytes, elements, type, then (reduction, root,) time, two bandwidths and errors, twice."""


@dataclass(frozen=True)
class MeasuredCurve:
    """One collective of one group: times by message size, smallest first."""

    kind: Kind
    ranks: int
    machines: int
    points: tuple[tuple[int, float], ...]
    """Bytes and seconds."""

    def seconds(self, message_bytes: float) -> float:
        """Between points on a straight line of logarithms; below the first as that; above the last at its bandwidth."""
        points = self.points
        if message_bytes <= points[0][0]:
            return points[0][1]
        if message_bytes >= points[-1][0]:
            return points[-1][1] * message_bytes / points[-1][0]
        after = next(i for i, (size, _) in enumerate(points) if size >= message_bytes)
        (low, fast), (high, slow) = points[after - 1], points[after]
        share = math.log(message_bytes / low) / math.log(high / low)
        return math.exp(math.log(fast) * (1 - share) + math.log(slow) * share)


@dataclass(frozen=True)
class MeasuredTable:
    """Curves of one cluster."""

    curves: tuple[MeasuredCurve, ...]

    def nearest(self, kind: Kind, ranks: int, machines: int) -> MeasuredCurve | None:
        """The curve most like a group: never one inside a machine for several, nor the other way round."""
        alike = [curve for curve in self.curves if (curve.machines > 1) == (machines > 1)]
        if not alike:
            return None
        return min(
            alike,
            key=lambda c: (
                c.kind != kind, abs(math.log(c.machines / machines)), abs(math.log(c.ranks / ranks)), c.kind,
            ),
        )  # fmt: skip


def read_nccl_tests(path: Path) -> MeasuredTable:
    """Curves of a file of nccl-tests output.

    Raises:
        BadData: the file cannot be read, or has no table of nccl-tests in it.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadData(
            f"{path} cannot be read: {error.strerror}. Give the output of nccl-tests as a text file."
        ) from error
    return parse_nccl_tests(text.splitlines(), str(path))


def parse_nccl_tests(lines: Iterable[str], name: str) -> MeasuredTable:
    """Curves of the lines that nccl-tests printed, in one run or several one after another.

    Raises:
        BadData: there is no table, or it is not said of which collective.
    """
    kind: Kind | None = None
    hosts: dict[int, str] = {}
    points: dict[int, float] = {}
    curves: list[MeasuredCurve] = []

    def close() -> None:
        if points:
            if kind is None:
                raise BadData(
                    f"{name}: a table of nccl-tests without the name of its program. Keep the line `# Collective test "
                    "starting: …`, or put the command before it, such as `./all_reduce_perf -b 8 -e 1G -f 2`."
                )
            if not hosts:
                raise BadData(f"{name}: a table without its ranks. Keep the lines `# Rank 0 … on HOST device …`.")
            rows = tuple(sorted((size, seconds) for size, seconds in points.items() if size))
            if rows:
                curves.append(MeasuredCurve(kind, len(hosts), len(set(hosts.values())), rows))
        points.clear()
        hosts.clear()

    for line in lines:
        program, rank, row = PROGRAM.search(line), RANK.search(line), _row(line)
        if (program or rank) and points:
            close()
        if program:
            kind = PROGRAMS[program.group(1)]
        if rank:
            hosts[int(rank.group(1))] = rank.group(2)
        if row is not None:
            points[row[0]] = max(points.get(row[0], 0.0), row[1])
    close()
    if not curves:
        raise BadData(f"{name}: no table of nccl-tests found. Give what all_reduce_perf or a sister printed, as it is.")
    return MeasuredTable(tuple(curves))


def _row(line: str) -> tuple[int, float] | None:
    """Bytes and seconds of a line of numbers; the slower of out of place and in place."""
    fields = BEFORE_NUMBERS.sub("", line).split()
    if len(fields) < LEAST_FIELDS or not (fields[0].isdigit() and fields[1].isdigit() and fields[2].isidentifier()):
        return None
    # time, algbw, busbw, errors; twice
    times = [field for field in (fields[-8], fields[-4]) if _is_number(field)]
    return (int(fields[0]), max(float(field) for field in times) / MEGA) if times else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", text) is not None
