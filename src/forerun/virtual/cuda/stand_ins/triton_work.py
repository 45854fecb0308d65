"""What one launch of a Triton kernel loads, stores and multiplies, counted from its intermediate representation.

Programs of the grid are followed: whole numbers are worked out, blocks of values are shapes alone. Of many programs,
and of many rounds of a loop, some that lie evenly among them stand for all (causal attention does less in the first).

Bytes are of tensors: what programs load over and over comes from caches, so a tensor counts once for everything outside
loops and once for each place in a loop that loads it, and never more than is asked for. Masks are taken as true.

Not known: how often a loop runs, or which branch is taken, where that is read from the device (lengths of documents).
Such loops are taken to run as often as it takes to load one of their tensors once as a whole, of two branches the one
with more work is taken, and `depends_on_data` says so.
"""

import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.virtual.cuda.stand_ins.triton_text import Block, Statement, arguments, functions

Value = int | str | None
"""A whole number, the name of the tensor that a pointer points into, or neither."""
FEW = 8
"""Rounds of a loop that are followed at most."""
MOST_PROGRAMS = {0: 1, 1: 16, 2: 8, 3: 4}
"""Programs along each dimension of a grid, by the number of dimensions that have several."""
MOST_BLOCKS = 1000
"""Blocks of a function that are followed; a loop made of jumps ends then."""
_LOOP = re.compile(r"(%\S+) = (%\S+) to (%\S+) step (%\S+)")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")
_CONSTANT = re.compile(r"^ (true|false|-?\d+)(?:$| : (?:i\d|index))")
_JUMP = re.compile(r"\^(\w+)(?:\(([^:)]*))?")


def _divided(left: int, right: int) -> int:
    """Towards zero."""
    return (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1) if right else 0


WHOLE: dict[str, Callable[[int, int], int]] = {
    "addi": operator.add, "subi": operator.sub, "muli": operator.mul, "divsi": _divided, "divui": _divided,
    "remsi": lambda a, b: a - b * _divided(a, b), "remui": lambda a, b: a % b if b else 0,
    "ceildivsi": lambda a, b: -(-a // b) if b else 0, "ceildivui": lambda a, b: -(-a // b) if b else 0,
    "floordivsi": lambda a, b: a // b if b else 0, "minsi": min, "minui": min, "maxsi": max, "maxui": max,
    "andi": operator.and_, "ori": operator.or_, "xori": operator.xor, "shli": lambda a, b: a << min(b, 64),
    "shrsi": operator.rshift, "shrui": operator.rshift,
}  # fmt: skip
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "ult": operator.lt, "sle": operator.le,
    "ule": operator.le, "sgt": operator.gt, "ugt": operator.gt, "sge": operator.ge, "uge": operator.ge,
}  # fmt: skip
SAME_NUMBER = ("extsi", "extui", "trunci", "index_cast", "index_castui", "bitcast")
LOADS, STORES = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather"), ("tt.store", "tt.descriptor_store")
STORES += ("tt.descriptor_scatter", "tt.descriptor_reduce")
PRODUCTS = ("tt.dot", "tt.dot_scaled")
PACKED = "lhs = e2m1"
"""Two values of four bits are one of the left factor."""


@dataclass
class Work:
    """What a launch does. Keys are names of tensors among the kernel's arguments."""

    loads: Counter[str] = field(default_factory=Counter)
    """Bytes loaded from each."""
    stores: Counter[str] = field(default_factory=Counter)
    """Bytes stored to each."""
    flops: float = 0.0
    """Of matrix products."""
    dtype: str = ""
    """Of their factors, as MLIR writes it; empty without products."""
    depends_on_data: bool = False


@dataclass
class _Tally:
    """Bytes and FLOP so far; what is loaded in a loop is kept apart by place."""

    loads: Counter[tuple[str, int]] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    flops: float = 0.0
    dtype: str = ""
    depends_on_data: bool = False
    round: "_Tally | None" = None
    """One round of each loop of which nobody knows how often it runs."""

    def add(self, other: "_Tally", times: float) -> None:
        for mine, theirs in ((self.loads, other.loads), (self.stores, other.stores)):
            for key, count in theirs.items():
                mine[key] += count * times  # type: ignore[assignment, index]
        self.flops += other.flops * times
        self.dtype = self.dtype or other.dtype
        self.depends_on_data |= other.depends_on_data
        if other.round is not None:
            self.add_round(other.round, times)

    def add_round(self, other: "_Tally", times: float = 1.0) -> None:
        """Add one round of a loop that runs nobody knows how often; loops inside it are of the same kind."""
        self.depends_on_data = True
        self.round = self.round or _Tally()
        inner, other.round = other.round, None
        for each in (other, inner) if inner else (other,):
            self.round.add(each, times)

    def with_rounds(self, sizes: Mapping[str, int]) -> "_Tally":
        """With as many rounds as load the first of their tensors that is loaded as a whole."""
        if self.round is None:
            return self
        bytes_of: Counter[str] = Counter()
        for (name, _), count in self.round.loads.items():
            bytes_of[name] += count
        passes = [sizes[name] / count for name, count in bytes_of.items() if name in sizes and count]
        self.add(self.round, min((times for times in passes if times >= 1), default=1.0))
        return self

    @property
    def size(self) -> tuple[float, float]:
        """To compare two branches."""
        inner = (0.0, 0.0) if self.round is None else self.round.size
        return self.flops + inner[0], sum(self.loads.values()) + sum(self.stores.values()) + inner[1]


def count(text: str, numbers: Sequence[tuple[str, int | None]], grid: Sequence[int], sizes: Mapping[str, int]) -> Work:
    """The work of a launch.

    `numbers` are the kernel's arguments in order, each a name and its whole number, `None` for tensors and what is no
    whole number; `sizes` are bytes of the tensors by name, and what is not among them is no tensor.

    Raises:
        ValueError: the text is not Triton's representation.
    """
    program = _Program(functions(text))
    kernel = next(iter(program.functions.values()))
    dimensions = [max(1, extent) for extent in (*grid, 1, 1, 1)[:3]]
    names = [name if name in sizes else number for name, number in numbers]
    total = _Tally()
    most = MOST_PROGRAMS[sum(extent > 1 for extent in dimensions)]
    for places in itertools.product(*(samples(extent, most) for extent in dimensions)):
        tally = _Tally()
        environment: dict[str, Value] = dict(zip(arguments(kernel), names, strict=False))
        program.place, program.extents = [place for place, _ in places], dimensions
        program.call(kernel, environment, tally)
        total.add(tally, math.prod(weight for _, weight in places))
    total = total.with_rounds(sizes)
    work = Work(flops=total.flops, dtype=total.dtype, depends_on_data=total.depends_on_data)
    for (name, _), size in total.loads.items():
        work.loads[name] += round(min(size, sizes.get(name, size)))
    for name, size in total.stores.items():
        work.stores[name] = round(min(size, sizes.get(name, size)))
    return work


def samples(extent: int, most: int = FEW) -> list[tuple[int, float]]:
    """Places among `extent`, at most `most`, and how many each stands for: those in the middle of equal parts."""
    if extent <= most:
        return [(place, 1.0) for place in range(extent)]
    part = extent / most
    middles = [(index + 0.5) * part for index in range(most)]  # of an even part, alternately before and behind it
    places = [math.floor(middle) if index % 2 else math.ceil(middle) - 1 for index, middle in enumerate(middles)]
    return [(place, part) for place in places]


class _Program:
    """Follows one program of the grid."""

    def __init__(self, functions: dict[str, Statement]):
        self.functions = functions
        self.place: list[int] = []
        self.extents: list[int] = []
        self._is_in_loop = False

    def call(self, function: Statement, environment: dict[str, Value], tally: _Tally) -> list[Value]:
        """Follow a function through its blocks to a return; values it returns."""
        region = function.regions[0]
        block: Block | None = region[""]
        for _ in range(MOST_BLOCKS):
            if block is None:
                break
            last = self._block(block, environment, tally)
            if last is None or last.name == "tt.return":
                return [environment.get(each) for each in last.operands] if last else []
            block = self._next(last, region, environment, tally)
        return []

    def _next(
        self, jump: Statement, region: dict[str, Block], environment: dict[str, Value], tally: _Tally
    ) -> Block | None:
        targets = _JUMP.findall(jump.text)
        if not targets:
            return None
        place = 0
        if jump.name == "cf.cond_br":
            condition = environment.get(jump.operands[0])
            tally.depends_on_data |= not isinstance(condition, int)
            ends = [len(region[label].operations) == 1 for label, _ in targets]
            place = (not condition) if isinstance(condition, int) else ends[0]  # it goes on rather than returns
        label, handed = targets[place]
        block = region[label]
        environment |= zip(block.arguments, [environment.get(each.strip()) for each in handed.split(",")], strict=False)
        return block

    def _block(self, block: Block, environment: dict[str, Value], tally: _Tally) -> Statement | None:
        """Follow a block; its last operation."""
        for each in block.operations:
            self._operation(each, environment, tally)
        return block.operations[-1] if block.operations else None

    def _operation(self, each: Statement, environment: dict[str, Value], tally: _Tally) -> None:
        values = [environment.get(operand) for operand in each.operands]
        if each.name in ("scf.for", "scf.if", "scf.while"):
            follow = {"scf.for": self._for, "scf.if": self._if, "scf.while": self._while}[each.name]
            results = follow(each, environment, tally)
        elif each.name == "tt.call":
            function = self.functions[each.text.partition("@")[2].partition("(")[0].strip('"')]
            results = self.call(function, dict(zip(arguments(function), values, strict=False)), tally)
        else:
            self._touch(each, values, tally)
            results = [self._value(each, values)]
        environment |= itertools.zip_longest(each.results, results[: len(each.results)])

    def _touch(self, each: Statement, values: list[Value], tally: _Tally) -> None:
        """Count what an operation loads, stores and multiplies."""
        if each.name in PRODUCTS:
            types = each.types
            shape, factor = types[-1].shape, types[0]
            inner = factor.shape[-1] * (2 if PACKED in each.text else 1)
            tally.flops += 2 * math.prod(shape) * inner
            tally.dtype = tally.dtype or factor.dtype
            return
        is_atomic = each.name.startswith("tt.atomic")
        if not is_atomic and each.name not in LOADS + STORES:
            return
        name = next((value for value in values if isinstance(value, str)), "")
        size = each.types[-1 if each.name == "tt.descriptor_gather" else 0].bytes
        if is_atomic or each.name in LOADS:
            tally.loads[name, id(each) if self._is_in_loop else 0] += size
        if is_atomic or each.name in STORES:
            tally.stores[name] += size

    def _value(self, each: Statement, values: list[Value]) -> Value:
        """What an operation makes, where it is a whole number or points into a tensor."""
        pointer = next((value for value in values if isinstance(value, str)), None)
        if pointer is not None:
            return pointer if not each.name.startswith(("tt.load", "tt.descriptor", "tt.atomic")) else None
        if each.name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = "xyz".index(each.text.split()[0])
            return self.place[axis] if each.name == "tt.get_program_id" else self.extents[axis]
        dialect, _, name = each.name.partition(".")
        if dialect != "arith" or "tensor<" in each.text:
            return None
        if name == "constant":
            return _constant(each.text)
        if name == "select" and isinstance(values[0], int):
            return values[1] if values[0] else values[2]
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) != len(values) or not numbers:
            return None
        if name in SAME_NUMBER:
            return numbers[0]
        if name == "cmpi":
            return int(COMPARED[each.text.split()[0].strip(",")](*numbers))
        return WHOLE[name](*numbers) if name in WHOLE else None

    def _for(self, each: Statement, environment: dict[str, Value], tally: _Tally) -> list[Value]:
        match = _LOOP.search(each.text)
        if match is None:
            raise ValueError(f"not a loop: {each.text}")
        counter, *bounds = match.groups()
        begin, end, step = (environment.get(bound) for bound in bounds)
        carried = _CARRIED.findall(each.text.partition("iter_args(")[2])
        initial = [environment.get(value) for _, value in carried]
        rounds = _rounds(begin, end, step)
        body, results = each.regions[0][""], list(initial)
        is_inner, self._is_in_loop = self._is_in_loop, True
        for place, weight in [(None, 1.0)] if rounds is None else rounds:
            inner = _Tally()
            values = initial if place == begin else [_pointer(value) for value in initial]
            scope = {**environment, **dict(zip((name for name, _ in carried), values, strict=True)), counter: place}
            results = _yielded(self._block(body, scope, inner), scope)
            tally.add_round(inner) if rounds is None else tally.add(inner, weight)
        self._is_in_loop = is_inner
        if rounds is None or len(rounds) > 1:  # numbers that go from round to round were followed through one alone
            return [_pointer(value) for value in results]
        return results

    def _if(self, each: Statement, environment: dict[str, Value], tally: _Tally) -> list[Value]:
        condition = environment.get(each.operands[0])
        regions = each.regions if not isinstance(condition, int) else each.regions[not condition :][:1]
        outcomes: list[tuple[_Tally, list[Value]]] = []
        for region in regions:
            branch, scope = _Tally(), dict(environment)
            results = _yielded(self._block(region[""], scope, branch), scope)
            outcomes.append((branch, results))
        if not isinstance(condition, int):
            sizes = {branch.size for branch, _ in outcomes} | ({(0.0, 0.0)} if len(outcomes) == 1 else set())
            tally.depends_on_data |= len(sizes) > 1
        if not outcomes:
            return []
        tally.add(max((branch for branch, _ in outcomes), key=lambda branch: branch.size), 1.0)
        return [values[0] if len(set(values)) == 1 else None for values in zip(*(r for _, r in outcomes), strict=True)]

    def _while(self, each: Statement, environment: dict[str, Value], tally: _Tally) -> list[Value]:
        """One round: nobody follows the numbers of its condition."""
        inner = _Tally()
        is_inner, self._is_in_loop = self._is_in_loop, True
        carried = _CARRIED.findall(each.text.partition(" : ")[0])
        scope = {**environment, **{name: _pointer(environment.get(value)) for name, value in carried}}
        results: list[Value] = []
        for region in each.regions:
            block = region[""]
            scope |= zip(block.arguments, results, strict=False)
            last = self._block(block, scope, inner)
            if last is not None and last.name == "scf.condition":  # what it hands on is also what the loop ends with
                results = [_pointer(scope.get(value)) for value in last.operands[1:]]
        self._is_in_loop = is_inner
        tally.add_round(inner)
        return results


def _pointer(value: Value) -> Value:
    """What stays the same from round to round: into which tensor a pointer points."""
    return value if isinstance(value, str) else None


def _yielded(last: Statement | None, scope: Mapping[str, Value]) -> list[Value]:
    """What a region that ends with `last` hands on."""
    return [scope.get(value) for value in last.operands] if last is not None and last.name == "scf.yield" else []


def _rounds(begin: Value, end: Value, step: Value) -> list[tuple[int, float]] | None:
    """Rounds of a loop that are followed, and how many each stands for; None where nobody knows how often it runs."""
    if not (isinstance(begin, int) and isinstance(end, int) and isinstance(step, int) and step > 0):
        return None
    return [(begin + step * place, weight) for place, weight in samples(max(0, -((begin - end) // step)))]


def _constant(text: str) -> int | None:
    match = _CONSTANT.match(text)
    if match is None:
        return None
    return int(match[1] == "true") if match[1] in ("true", "false") else int(match[1])
