"""Kernels of small graphs, worked out by hand from Inductor's rules."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from forerun.virtual.describe import bytes_of
from forerun.virtual.fusion import plan_kernels

aten = torch.ops.aten


def kernels(function, *shapes):
    """(name or operator, number of stored results, number of values read) of each kernel."""
    graph = make_fx(function, tracing_mode="fake")(*[torch.zeros(shape) for shape in shapes])
    rows = []
    for kernel in plan_kernels(graph.graph):
        name = str(kernel.alone.target) if kernel.alone else kernel.name
        rows.append((name, len(kernel.outputs), len(kernel.reads)))
    return rows


def test_a_pointwise_chain_is_one_kernel_and_stores_its_end():
    assert kernels(lambda x: [((x + 1) * 2).tanh()], (8, 8)) == [("pointwise", 1, 1)]


def test_a_product_ends_a_chain():
    plan = kernels(lambda x, w: [(torch.mm(x + 1, w) * 2).exp()], (8, 8), (8, 8))
    assert plan == [("pointwise", 1, 1), ("aten.mm.default", 0, 0), ("pointwise", 1, 1)]


def test_softmax_is_one_kernel():
    """Two reductions over the same rows and what is broadcast back."""

    def softmax(x):
        shifted = x - aten.amax(x, [-1], True)
        weights = shifted.exp()
        return [weights / aten.sum(weights, [-1], True)]

    assert kernels(softmax, (8, 32)) == [("reduction", 1, 1)]


def test_reductions_over_rows_and_columns_are_two_kernels():
    plan = kernels(lambda x: [aten.sum(x, [0]), aten.sum(x, [1])], (8, 32))
    assert plan == [("reduction", 1, 1), ("reduction", 1, 1)]


def test_a_reduction_of_everything_computes_what_it_reads():
    assert kernels(lambda x: [aten.max(x.abs())], (512, 512)) == [("reduction", 1, 1)]


def test_what_needs_a_split_reduction_comes_after_it():
    """A scale for a whole tensor and the cast by it; over few elements, one kernel reads them twice."""

    def scaled(x):
        return [x * (448 / aten.max(x.abs()).clamp(min=1e-12))]

    assert kernels(scaled, (512, 512)) == [("reduction", 1, 1), ("pointwise", 1, 2)]
    assert kernels(scaled, (8, 8)) == [("reduction", 1, 1)]


def test_siblings_that_read_the_same_are_one_kernel():
    assert kernels(lambda x: [x + 1, x * 2], (8, 8)) == [("pointwise", 2, 1)]


def test_no_kernel_waits_for_itself():
    """The second addition reads the first and a product of it: it cannot join the first."""

    def function(x, w):
        y = x + 1
        return [y + torch.mm(y, w)]

    assert [name for name, *_ in kernels(function, (8, 8), (8, 8))] == ["pointwise", "aten.mm.default", "pointwise"]


def test_a_cheap_value_is_computed_where_it_is_used():
    """Sine is not stored for the product's epilogue: each reader computes it again from x."""

    def function(x, w):
        y = x.sin()
        return [torch.mm(x, w) + y, torch.mm(w, x) + y]

    plan = kernels(function, (8, 8), (8, 8))
    assert sum(outputs for _, outputs, _ in plan) == 2


def test_views_launch_nothing():
    assert kernels(lambda x: [x.t().reshape(4, 16).contiguous() * 2], (8, 8)) == [("pointwise", 1, 1)]


def test_a_tables_rows_are_gathered_within_the_kernel():
    def function(table):
        return [aten.embedding(table, torch.zeros(4, dtype=torch.long)) * 2]

    graph = make_fx(function, tracing_mode="fake")(torch.zeros(1000, 8))
    (kernel,) = [k for k in plan_kernels(graph.graph) if k.outputs]
    assert [bytes_of(rows.meta["val"]) for node, rows in kernel.reads if node.op == "placeholder"] == [4 * 8 * 4]
