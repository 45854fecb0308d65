"""Sparse tensors of the virtual device: gradients of embeddings (`sparse=True`), adjacency matrices of graphs.

A fake tensor of a device without sparse kernels would be dense: a table of millions of rows would seem to need a
gradient of its own size, a graph a matrix of all pairs. Here it is a sparse fake tensor of PyTorch's, without content,
that refers to its two dense parts; what programs and optimizers do to it is done to the parts, by dense operators that
are recorded. Doubled positions are not merged by `coalesce`: nobody knows how many there are. A compressed matrix (CSR)
is held by the positions of all its values, a row and a column each, where a card holds the beginnings of its rows: some
8 bytes more for each value.
Not covered: gradients of a sparse matrix's own values, the parts of compressed ones, which say so.
"""

from typing import Any

import torch
from torch import Tensor, empty
from torch._subclasses.fake_tensor import FakeTensor

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.shadow import tensors_in
from forerun.virtual.describe import SPARSE_PARTS

aten = torch.ops.aten
LAYOUTS = (torch.sparse_csr, torch.sparse_csc)
COMPRESSED = {
    aten.sparse_csr_tensor, aten._sparse_csr_tensor_unsafe, aten.sparse_compressed_tensor,
    aten._sparse_compressed_tensor_unsafe,
}  # fmt: skip
"""Operators that make such a matrix of the beginnings of its rows, its columns and its values."""
MEAN = 1
"""Mode of an embedding bag (torch/nn/functional.py, 2.13)."""


def parts_of(tensor: Any) -> tuple[Tensor, Tensor] | None:
    """Positions (D, N) and values (N, …) of a sparse tensor of the device; None of other tensors."""
    return getattr(tensor, SPARSE_PARTS, None) if isinstance(tensor, Tensor) and tensor.is_sparse else None


def is_sparse_work(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator makes a sparse tensor of the device, or works on one."""
    packet = func._overloadpacket
    if packet is aten._sparse_coo_tensor_with_dims_and_tensors:
        return isinstance(args[4], FakeTensor)
    if packet is aten._embedding_bag_backward:
        return bool(args[9])
    if packet in COMPRESSED:
        return isinstance(args[2], FakeTensor)
    return any(each.is_sparse or each.layout in LAYOUTS for each in tensors_in((args, kwargs)))


def run_sparse(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on sparse tensors.

    Raises:
        NotImplementedError: naming the operator.
    """
    if func.__name__.startswith("_foreach_"):
        return _one_by_one(dispatch, func, args, kwargs)
    handler = _HANDLERS.get(func._overloadpacket)
    if handler is None:
        raise NotImplementedError(
            f"{func} of a sparse tensor is not known on the virtual GPU. Give it a dense one (`to_dense()`, an "
            "embedding with sparse=False)."
        )
    return handler(dispatch, func, args, kwargs)


def new_sparse(positions: Tensor, values: Tensor, size: Any) -> Tensor:
    """`sparse.new(positions, values, size)`, as SparseAdam makes its updates (torch/optim/_functional.py, 2.13)."""
    options: dict[str, Any] = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    dimensions = positions.shape[0], values.dim() - 1
    return aten._sparse_coo_tensor_with_dims_and_tensors(*dimensions, tuple(size), positions, values, **options)


def _make(dispatch: Any, positions: Tensor, values: Tensor, size: Any, *, is_merged: bool = False) -> FakeTensor:
    """A sparse fake tensor where its values are; what it holds itself is without content."""
    with dispatch.fake, dispatch.recorder.muted():
        places = empty((positions.shape[0], 0), dtype=torch.int64)
        nothing = empty((0, *values.shape[1:]), dtype=values.dtype)
        tensor: Any = torch.sparse_coo_tensor(places, nothing, tuple(size), check_invariants=False)
        if is_merged:
            tensor._coalesced_(True)
    tensor.fake_device = values.fake_device  # type: ignore[attr-defined]
    setattr(tensor, SPARSE_PARTS, (positions, values))
    return tensor


def _created(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    return _make(dispatch, args[3], args[4], args[2])


def _of_rows(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A compressed matrix of the device: which row each value is in is worked out once."""
    beginnings, columns, values, size = args[:4]
    if kwargs.get("layout") == torch.sparse_csc:
        raise NotImplementedError(f"{func}: of compressed matrices only those by rows (CSR) are known.")
    with dispatch.fake, dispatch.recorder.muted():
        positions = empty((2, columns.shape[0]), dtype=columns.dtype, device=columns.fake_device)
    dispatch.recorder.fused("rows_of_values", [(beginnings, None), (columns, None)], [positions], [])
    return _make(dispatch, positions, values, size, is_merged=True)


def _compressed(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`to_sparse_csr`, `to_sparse`: the same values, in order of their rows."""
    return _alias(dispatch, func, args, kwargs) if _is_merged(args[0]) else _merged(dispatch, func, args, kwargs)


def _of_bags(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Each row of a bag gets the bag's gradient, times its weight (EmbeddingBag.cpp, 2.13)."""
    gradient, rows, _, bags, sizes, _, table_rows, _, mode, _, weights, *_ = args
    run = dispatch.on_device
    values = run(aten.index_select.default, (gradient, 0, bags), {})
    for factor in (run(aten.index_select.default, (sizes, 0, bags), {}) if mode == MEAN else None, weights):
        if factor is not None:
            values = run(aten.mul.Tensor, (values, run(aten.unsqueeze.default, (factor, 1), {})), {})
    return _make(dispatch, run(aten.unsqueeze.default, (rows, 0), {}), values, (table_rows, *gradient.shape[1:]))


def _alias(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    return _make(dispatch, *_parts(args[0]), args[0].shape, is_merged=_is_merged(args[0]))


def _parts(tensor: Any) -> tuple[Tensor, Tensor]:
    """Of a sparse tensor of the host its own."""
    tensor = tensor.to_sparse_coo() if tensor.layout in LAYOUTS else tensor
    parts = parts_of(tensor)
    return (tensor._indices(), tensor._values()) if parts is None else parts


def _is_merged(tensor: Any) -> bool:
    """Whether every position is there once; so it is in compressed matrices."""
    return tensor.layout in LAYOUTS or tensor.is_coalesced()


def _each_part(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Copies, also to the device or back to the host; only values have the dtype that is asked for."""
    positions, values = _parts(args[0])
    of_values = {name: value for name, value in kwargs.items() if name != "layout"}
    of_positions = {name: value for name, value in of_values.items() if name != "dtype"}
    copies = dispatch.run(func, (positions,), of_positions), dispatch.run(func, (values,), of_values)
    if copies[1].device.type != DEVICE:
        return torch.sparse_coo_tensor(*copies, args[0].shape, check_invariants=False)
    return _make(dispatch, *copies, args[0].shape, is_merged=_is_merged(args[0]))


def _merged(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`coalesce`: values are sorted by position and summed."""
    positions, values = _parts(args[0])
    run, first = dispatch.on_device, _line(dispatch, positions, 0)
    _, order = run(aten.sort.default, (first,), {})
    ordered = run(aten.index_select.default, (positions, 1, order), {})
    return _make(
        dispatch, ordered, run(aten.index_select.default, (values, 0, order), {}), args[0].shape, is_merged=True
    )


def _line(dispatch: Any, positions: Tensor, dimension: int) -> Tensor:
    return dispatch.on_device(aten.select.int, (positions, 0, dimension), {})


def _lines(dispatch: Any, positions: Tensor) -> list[Tensor]:
    return [_line(dispatch, positions, dimension) for dimension in range(positions.shape[0])]


def _put(dispatch: Any, total: Tensor, parts: tuple[Tensor, Tensor], alpha: Any = 1) -> Tensor:
    """Add values to a dense tensor in place."""
    lines = _lines(dispatch, parts[0])
    if len(lines) == 1:
        return dispatch.on_device(aten.index_add_.default, (total, 0, lines[0], parts[1]), {"alpha": alpha})
    return dispatch.on_device(aten.index_put_.default, (total, lines, parts[1], True), {})


def _add(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    first, second = parts_of(args[0]), parts_of(args[1])
    run, alpha = dispatch.on_device, kwargs.get("alpha", 1)
    if second is None:
        return _add(dispatch, func, (args[1], args[0]), {})
    if first is None:
        in_place = func._overloadpacket is aten.add_
        return _put(dispatch, args[0] if in_place else run(aten.clone.default, (args[0],), {}), second, alpha)
    values = second[1] if alpha == 1 else run(aten.mul.Tensor, (second[1], alpha), {})
    parts = run(aten.cat.default, ([first[0], second[0]], 1), {}), run(aten.cat.default, ([first[1], values],), {})
    if func._overloadpacket is aten.add_:
        setattr(args[0], SPARSE_PARTS, parts)
        return args[0]
    return _make(dispatch, *parts, args[0].shape)


def _of_values(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """An operator that gives every value its own result, or one of all of them."""
    positions, values = _parts(args[0])
    others = [parts[1] if (parts := parts_of(each)) is not None else each for each in args[1:]]
    result = dispatch.on_device(func, (values, *others), kwargs)
    if func._schema.is_mutable:
        return args[0]
    if isinstance(result, Tensor) and result.shape == values.shape:
        return _make(dispatch, positions, result, args[0].shape, is_merged=_is_merged(args[0]))
    return result


def _one_by_one(dispatch: Any, func: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """Operators on lists of tensors do each by itself where one is sparse (ForeachUtils.h, 2.13)."""
    name = func._overloadpacket.__name__.removeprefix("_foreach_")
    packet = aten.linalg_vector_norm if name == "norm" else getattr(aten, name)  # which no sparse tensor has
    names = packet.overloads()
    single = getattr(packet, func._overloadname if func._overloadname in names else names[0])
    others = [each if isinstance(each, list | tuple) else [each] * len(args[0]) for each in args[1:]]
    options = {} if name == "norm" else kwargs
    results = [dispatch.run(single, each, options) for each in zip(args[0], *others, strict=True)]
    return None if func._schema.is_mutable else results


def _dense(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    parts = _parts(args[0])
    return _put(dispatch, dispatch.on_device(aten.new_zeros.default, (parts[1], list(args[0].shape)), {}), parts)


def _masked(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`dense.sparse_mask(sparse)`: the dense tensor's values at the same positions."""
    positions = _parts(args[1])[0]
    values = dispatch.on_device(aten.index.Tensor, (args[0], _lines(dispatch, positions)), {})
    return _make(dispatch, positions, values, args[0].shape, is_merged=True)


def _emptied(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    positions, values = _parts(args[0])
    run = dispatch.on_device
    nothing = run(aten.slice.Tensor, (positions, 1, 0, 0), {}), run(aten.slice.Tensor, (values, 0, 0, 0), {})
    setattr(args[0], SPARSE_PARTS, nothing)
    return args[0]


def _turned(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    positions, values = _parts(args[0])
    turned = dispatch.on_device(aten.flip.default, (positions, [0]), {})
    return _make(dispatch, turned, values, tuple(reversed(args[0].shape)))


def _product(dispatch: Any, func: Any, args: Any, kwargs: Any) -> Tensor:
    """A sparse matrix by a dense one, or that added to a third: each value reads a row of the dense one.

    Raises:
        NotImplementedError: the dense matrix comes first.
    """
    left, right = args[-2:] if func._overloadpacket is not aten._sparse_addmm else args[1:3]
    parts = parts_of(left)
    if parts is None or parts_of(right) is not None:
        raise NotImplementedError(f"{func}: only products of a sparse matrix by a dense one are known.")
    width = right.shape[1] if right.dim() == 2 else 1
    with dispatch.fake, dispatch.recorder.muted():
        shape = (left.shape[0], width) if right.dim() == 2 else (left.shape[0],)
        result = empty(shape, dtype=right.dtype, device=right.fake_device)
    rows = parts[1].shape[0] * width * right.element_size()
    dispatch.recorder.fused("sparse_product", [(parts[0], None), (parts[1], None), (right, rows)], [result], [])
    return result


_VALUEWISE = (
    "mul", "mul_", "div", "div_", "neg", "pow", "sqrt", "abs", "norm", "isfinite", "isnan",
    "isinf", "sum", "max", "_amp_foreach_non_finite_check_and_unscale_",
)  # fmt: skip
"""Operators on all values alike: scaling, decay, sums."""
_HANDLERS: dict[Any, Any] = {getattr(aten, name): _of_values for name in _VALUEWISE}
_HANDLERS |= dict.fromkeys((aten.detach, aten.alias), _alias)
_HANDLERS |= dict.fromkeys((aten._to_copy, aten.clone), _each_part)
_HANDLERS |= dict.fromkeys((aten.add, aten.add_), _add)
_HANDLERS |= dict.fromkeys((aten.t, aten.transpose), _turned)
_HANDLERS |= dict.fromkeys((aten.mm, aten.addmm, aten._sparse_addmm, aten.mv), _product)
_HANDLERS |= dict.fromkeys((aten._indices, aten.indices), lambda dispatch, func, args, kwargs: _parts(args[0])[0])
_HANDLERS |= dict.fromkeys((aten._values, aten.values), lambda dispatch, func, args, kwargs: _parts(args[0])[1])
_HANDLERS |= dict.fromkeys(COMPRESSED, _of_rows)
_HANDLERS |= {
    aten._sparse_coo_tensor_with_dims_and_tensors: _created,
    aten._embedding_bag_backward: _of_bags,
    aten._coalesce: _merged,
    aten._to_sparse_csr: _compressed,
    aten._to_sparse: _compressed,
    aten.sparse_mask: _masked,
    aten._to_dense: _dense,
    aten.zero_: _emptied,
    aten._coalesced_: lambda dispatch, func, args, kwargs: args[0],
    aten.is_coalesced: lambda dispatch, func, args, kwargs: func(*args),
    aten._nnz: lambda dispatch, func, args, kwargs: _parts(args[0])[1].shape[0],
    torch.ops.prim.device: lambda dispatch, func, args, kwargs: args[0].fake_device,
}
