"""Which kernels a captured graph becomes: Inductor's rules for what is computed in place, stored and fused.

A *loop* is a value that Inductor stores (or a reduction): it iterates over (elements, elements reduced for each) and
reads stored values. Loops that iterate over the same elements and share data are fused unless another kernel must run
in between.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

POINTWISE = {
    "clone", "full", "full_like", "arange", "scalar_tensor", "zeros", "zeros_like", "ones", "ones_like", "cat",
    "constant_pad_nd", "slice_scatter", "select_scatter", "copy", "_to_copy", "where", "repeat", "flip", "tril", "triu",
    "convert_element_type", "iota", "inductor_random", "inductor_seeds", "inductor_seed", "inductor_lookup_seed",
    "inductor_randint", "rand", "masked_fill", "clamp", "pow", "_assert_async",
}  # fmt: skip
GATHERS = {"embedding", "index", "_unsafe_index", "gather", "index_select", "_unsafe_masked_index"}
"""Pointwise over their result; of the table they read no more than that."""
REDUCTIONS = {
    "sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "prod", "var", "var_mean", "xor_sum",
}  # fmt: skip
WHOLE_REDUCTIONS = {"max", "min"}
"""Reductions where they name no dimension; with one they have two results, and stay alone."""
SPLIT_FROM, FEW_RESULTS = 8192, 128
"""A reduction of more elements than that to fewer results runs in two kernels, and what needs its results comes after.

Source: `reduction_split_factor`, `torch/_inductor/choices.py:472-508` (2.13); there, few are twice the multiprocessors.
"""
VIEWS = {"_unsafe_view", "reshape", "alias", "lift_fresh"}
"""Views that their schema does not declare."""
NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
READS_ON_REUSE, READS_AT_MOST, OPERATIONS_AT_MOST = 4, 8, 30
"""`realize_reads_threshold`, `realize_acc_reads_threshold` and `realize_opcount_threshold` of a GPU.

Source: `torch/_inductor/config.py:861-870` (2.13), where a CPU has thresholds of its own.
"""
UNKNOWN_SIZE = 8192
"""Of a dimension that depends on values: `unbacked_symint_fallback`, `torch/_inductor/config.py` (2.13)."""
LOOPS_AT_MOST = 64
"""`max_fusion_size` and `max_fusion_buffer_group_pairwise_attempts` (`torch/_inductor/config.py:964, 971`, 2.13)."""


@dataclass(eq=False)
class Kernel:
    """What is launched at once. `alone` is the one operator of a kernel that is not fused; views before it are free."""

    nodes: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    reads: list[tuple[fx.Node, fx.Node | None]] = field(default_factory=list)
    """Stored values that it reads, each with the gathered rows that it reads of it, or None for all."""
    alone: fx.Node | None = None
    name: str = ""
    module: str = ""


@dataclass(eq=False)
class _Loop:
    """A stored value or a reduction and what is computed within it."""

    value: fx.Node
    position: int
    elements: int
    reduced: int
    body: list[fx.Node]
    reads: dict[fx.Node, fx.Node | None]
    group: "_Group"

    @property
    def is_split(self) -> bool:
        """Whether it is a reduction that runs in two kernels."""
        return self.reduced > SPLIT_FROM and self.elements < FEW_RESULTS


@dataclass(eq=False)
class _Group:
    """Loops fused so far, or one operator that stays alone."""

    loops: list[_Loop] = field(default_factory=list)
    alone: fx.Node | None = None
    needs: set["_Group"] = field(default_factory=set)
    position: int = 0

    @property
    def reduced(self) -> tuple[int, int] | None:
        """(Elements, elements reduced for each) of the group's reductions; None without any."""
        return next(((loop.elements, loop.reduced) for loop in self.loops if loop.reduced > 1), None)


def plan_kernels(graph: fx.Graph) -> list[Kernel]:
    """The kernels of `graph`, in an order in which they can run."""
    return _Planner(graph).kernels()


def kind(node: fx.Node) -> str:
    """ "input", "output", "number", "view", "pointwise", "gather", "reduction", "part" (of a tuple) or "alone"."""
    if isinstance(node.meta.get("val"), NUMBERS):  # sizes that differ from step to step are computed on the host
        return "number"
    if node.op in ("placeholder", "get_attr"):
        return "input"
    if node.op == "output":
        return "output"
    target: Any = node.target
    if target is operator.getitem:
        return "part"
    if not isinstance(target, torch._ops.OpOverload):
        return "alone"
    name = target._schema.name.partition("::")[2]
    if name in VIEWS or target.is_view:
        return "view"
    if name in GATHERS:
        return "gather"
    if name in REDUCTIONS or (name in WHOLE_REDUCTIONS and target._overloadname == "default"):
        return "reduction"
    if name in POINTWISE or torch.Tag.pointwise in target.tags:
        return "pointwise"
    return "alone"


def is_random(node: fx.Node) -> bool:
    """Whether the node draws a random number for each element."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith(("_random", "::rand"))


def stored_base(node: fx.Node) -> fx.Node:
    """The value that a view or a part of a tuple looks at."""
    while kind(node) in ("view", "part"):
        node = node.all_input_nodes[0]
    return node


def _waits_for_split(loops: Sequence[_Loop]) -> bool:
    """Whether one of these loops goes over more than the few results of a split reduction that it needs."""
    few = max((loop.elements for loop in loops if loop.is_split), default=0)
    results = {loop.value for loop in loops if loop.elements <= few}
    return any(loop.elements > few and not results.isdisjoint(map(stored_base, loop.reads)) for loop in loops)


class _Planner:
    def __init__(self, graph: fx.Graph):
        self.nodes = list(graph.nodes)
        self.kinds = {node: kind(node) for node in self.nodes}
        self.position = {node: number for number, node in enumerate(self.nodes)}
        self.consumers = {node: self._consumers(node) for node in self.nodes}
        self.returned = {stored_base(n) for node in self.nodes if node.op == "output" for n in node.all_input_nodes}
        self.group_of: dict[fx.Node, _Group] = {}
        self.loops: list[_Loop] = []
        self.users: dict[fx.Node, list[fx.Node]] = {}

    def kernels(self) -> list[Kernel]:
        self._find_loops()
        for loop in self.loops:
            self._fuse(loop)
        return self._ordered()

    def _consumers(self, node: fx.Node) -> list[fx.Node]:
        """Nodes that use a value, looking through views and parts of tuples."""
        consumers: list[fx.Node] = []
        for user in node.users:
            if self.kinds[user] == "number":  # asks for a size
                continue
            consumers += self._consumers(user) if self.kinds[user] in ("view", "part") else [user]
        return consumers

    def _find_loops(self) -> None:
        """Walk the graph as Inductor lowers it: inline what is cheap, store what is not."""
        # torch/_inductor/graph.py:2028-2130 (2.13), run_node: realize_hint, mark_reuse, has_exceeded_max_reads
        inlined: dict[fx.Node, tuple[dict[fx.Node, fx.Node | None], list[fx.Node]]] = {}
        for node in self.nodes:
            node_kind = self.kinds[node]
            if node_kind == "alone":
                self.group_of[node] = _Group(alone=node, position=self.position[node])
                self.group_of[node].needs = self._producers(node.all_input_nodes)
            if node_kind not in ("pointwise", "gather", "reduction"):
                continue
            reads: dict[fx.Node, fx.Node | None] = {}
            body: list[fx.Node] = []
            for argument in node.all_input_nodes:
                base = stored_base(argument)
                if self.kinds[base] == "number":
                    continue
                if base in inlined:
                    reads |= {k: v for k, v in inlined[base][0].items() if k not in reads}
                    body += [n for n in inlined[base][1] if n not in body]
                elif node_kind == "gather" and argument is node.args[0]:
                    reads.setdefault(base, node)
                else:
                    reads[base] = None
            body.append(node)
            if node_kind == "reduction" or self._is_stored(node, reads, body):
                self._add_loop(node, reads, body)
            else:
                inlined[node] = reads, body

    def _is_stored(self, node: fx.Node, reads: dict[fx.Node, fx.Node | None], body: list[fx.Node]) -> bool:
        users = self.consumers[node]
        # kernels of their own (cuBLAS, attention) take pointers: `needs_realized_inputs`, torch/_inductor/graph.py:2035
        if node in self.returned or any(self.kinds[user] == "alone" for user in users):
            return True
        if len(reads) > READS_AT_MOST or len(body) > OPERATIONS_AT_MOST:
            return True
        # torch/_inductor/ir.py:10093-10115 (2.13), should_realize_on_reuse: few reads are cheaper than one store
        return len(users) > 1 and len(reads) > READS_ON_REUSE

    def _add_loop(self, node: fx.Node, reads: dict[fx.Node, fx.Node | None], body: list[fx.Node]) -> None:
        elements, reduced = count(node), 1
        if self.kinds[node] == "reduction":
            reduced = max(1, count(node.all_input_nodes[0]) // max(1, elements))
        group = _Group(position=self.position[node], needs=self._producers([*reads, *node.all_input_nodes]))
        loop = _Loop(node, self.position[node], elements, reduced, body, reads, group)
        group.loops.append(loop)
        self.group_of[node] = group
        self.loops.append(loop)

    def _producers(self, values: Iterable[fx.Node]) -> set[_Group]:
        """Kernels of these values, and of those whose size is a number among them."""
        producers: set[_Group] = set()
        for value in map(stored_base, values):
            if value in self.group_of:
                producers.add(self.group_of[value])
            elif self.kinds[value] == "number":
                producers |= self._producers(value.all_input_nodes)
        return producers

    def _fuse(self, loop: _Loop) -> None:
        """Merge a loop into a kernel that produces what it reads, else into one that reads the same."""
        # Only loops near each other are tried: torch/_inductor/scheduler.py:6399 (2.13), check_all_pairs.
        producers = [self.group_of[value] for value in loop.reads if value in self.group_of]
        readers = [
            self.group_of[user]
            for value in loop.reads
            for user in self._users(value)
            if self.position[user] < loop.position
            and loop.position - self.position[user] < LOOPS_AT_MOST
        ]  # fmt: skip
        for group in dict.fromkeys([*producers, *readers]):
            own = loop.group
            # torch/_inductor/scheduler.py:6455 (2.13), will_fusion_create_cycle: what lies between would need itself
            apart = self._reaches(group, own) or self._reaches(own, group)
            if group is not own and self._fits(loop, group) and not apart:
                self._merge(own, group)

    def _fits(self, loop: _Loop, group: _Group) -> bool:
        if group.alone is not None or len(group.loops) + len(loop.group.loops) > LOOPS_AT_MOST:
            return False
        shapes = {(o.elements, o.reduced) for o in (*group.loops, *loop.group.loops)}
        reductions = {shape for shape in shapes if shape[1] > 1}
        plain = {elements for elements, reduced in shapes if reduced == 1}
        if len(reductions) > 1:
            return False
        if not reductions:
            return len(plain) == 1
        elements, reduced = next(iter(reductions))
        return plain <= {elements, elements * reduced} and not _waits_for_split([*group.loops, *loop.group.loops])

    def _reaches(self, early: _Group, late: _Group) -> bool:
        """Whether another kernel must run after `early` and before `late`."""
        visited: set[_Group] = set()
        waiting = [group for group in late.needs if group is not early]
        while waiting:
            group = waiting.pop()
            if group in visited:
                continue
            visited.add(group)
            if early in group.needs:
                return True
            waiting += group.needs
        return False

    def _merge(self, late: _Group, early: _Group) -> None:
        for loop in late.loops:
            loop.group = early
            self.group_of[loop.value] = early
        early.loops += late.loops
        early.needs |= late.needs
        early.needs.discard(late)
        for group in {self.group_of[user] for loop in late.loops for user in self._users(loop.value)}:
            if late in group.needs:
                group.needs.discard(late)
                group.needs.add(early)
        early.needs.discard(early)

    def _users(self, value: fx.Node) -> list[fx.Node]:
        """Loops and operators that read a stored value, looking through what is inlined."""
        if value not in self.users:
            readers: dict[fx.Node, None] = {}
            for user in self.consumers[value]:
                readers |= {user: None} if user in self.group_of else dict.fromkeys(self._users(user))
            self.users[value] = list(readers)
        return self.users[value]

    def _ordered(self) -> list[Kernel]:
        """Kernels in the order of the graph, each after those whose results it needs."""
        groups = sorted(dict.fromkeys(self.group_of.values()), key=lambda g: g.position)
        emitted: set[_Group] = set()
        order: list[_Group] = []

        def visit(start: _Group) -> None:
            stack = [(start, iter(sorted(start.needs, key=lambda g: g.position)))]
            while stack:
                group, needs = stack[-1]
                following = next((g for g in needs if g not in emitted), None)
                if following is None:
                    stack.pop()
                    if group not in emitted:
                        emitted.add(group)
                        order.append(group)
                else:
                    assert all(following is not group for group, _ in stack), "kernels that need each other"
                    stack.append((following, iter(sorted(following.needs, key=lambda g: g.position))))

        for group in groups:
            if group not in emitted:
                visit(group)
        return self._kernels_of(order)

    def _kernels_of(self, order: list[_Group]) -> list[Kernel]:
        available: set[fx.Node] = {node for node in self.nodes if node.op == "placeholder"}
        kernels = []
        for group in order:
            values = [group.alone] if group.alone else [loop.value for loop in group.loops]
            members = {n for loop in group.loops for n in loop.body} | set(values)
            nodes = sorted(self._with_views(members) - available, key=lambda n: self.position[n])
            available |= set(nodes)
            kernel = Kernel(nodes=nodes, alone=group.alone, module=module_of(values[0]))
            if group.alone is None:
                inside = set(values)
                kernel.outputs = [
                    value
                    for value in values
                    if value in self.returned or any(self.group_of[user] is not group for user in self._users(value))
                ]
                reads = {v: rows for loop in group.loops for v, rows in loop.reads.items() if v not in inside}
                kernel.reads = list(reads.items())
                kernel.name = "reduction" if group.reduced else "pointwise"
            kernels.append(kernel)
        rest = [n for n in self.nodes if n not in available and n.op != "output"]
        if rest:
            kernels.append(Kernel(nodes=rest))
        return kernels

    def _with_views(self, nodes: set[fx.Node]) -> set[fx.Node]:
        """These nodes and everything that is computed on the way to them from stored values."""
        closure, waiting = set(nodes), list(nodes)
        while waiting:
            for used in waiting.pop().all_input_nodes:
                if used not in closure and used not in self.group_of and used.op != "placeholder":
                    closure.add(used)
                    waiting.append(used)
        return closure


def resolve(node: fx.Node) -> Any:
    """The attribute that a `get_attr` node names."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def count(node: fx.Node) -> int:
    """Elements of a node's value; where they differ from step to step, those of the step that was captured."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = value[0]
    return math.prod(map(_as_captured, value.shape)) if isinstance(value, torch.Tensor) else 1


def _as_captured(size: int | torch.SymInt) -> int:
    """A size without a guard on it: `int` of a symbol would fix it for good."""
    if isinstance(size, int):
        return size
    return UNKNOWN_SIZE if size.node.hint is None else int(size.node.hint)


def module_of(node: fx.Node) -> str:
    """Path of the module that a node comes from."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    for noise in ("L['self'].", "L['self']", "L['fn'].", "L['fn']"):
        path = path.replace(noise, "")
    return path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "").replace("..", ".")
