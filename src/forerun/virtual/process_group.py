"""A process group whose other ranks do not exist: collectives return at once and move nothing."""

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_leaves

from forerun.errors import NotSupported
from forerun.trace import Category
from forerun.units import MIB
from forerun.virtual.backend import VirtualBackend, current_stream, number_streams_anew
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder
from forerun.virtual.registration import register

STARTS = (
    "allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "gather", "scatter", "reduce_scatter",
    "_reduce_scatter_base", "alltoall", "alltoall_base", "barrier", "send", "recv", "allreduce_coalesced",
    "allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
"""Methods of a process group that start an exchange and return its `Work` (torch/csrc/distributed/c10d/init.cpp)."""
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
"""`kDefaultFirstBucketBytes` and `kDefaultBucketBytesCap` (`torch/csrc/distributed/c10d/reducer.hpp:30-31`, 2.13)."""


@contextlib.contextmanager
def one_of(world_size: int, ranks_per_machine: int | None = None, rank: int = 0) -> Iterator[None]:
    """Be `rank` of `world_size` ranks, `ranks_per_machine` in each machine.

    Raises:
        NotSupported: this process belongs to a real group.
    """
    if dist.is_initialized():
        raise NotSupported(
            "parallel: a forecast of several ranks makes its own process group, and this process is in one already. "
            "Run the forecast outside torchrun."
        )
    import torch.distributed._tools.fake_collectives  # noqa: F401 (registers shapes of the collectives)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    register()
    number_streams_anew()
    dist.init_process_group("cpu:fake,virtual:fake", store=FakeStore(), rank=rank, world_size=world_size)
    VirtualBackend.ranks, VirtualBackend.ranks_per_machine = world_size, ranks_per_machine
    try:
        yield
    finally:
        VirtualBackend.ranks, VirtualBackend.ranks_per_machine = 1, None
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Drop what DTensor remembers of operators: it takes an equal mesh of another world for the same, and then asks for
    groups of that world by names that are gone."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    for name in ("_gen_transform_infos", "_gen_transform_infos_non_cached"):
        clear = getattr(getattr(_redistribute, name, None), "cache_clear", None)
        if clear is not None:
            clear()


@contextlib.contextmanager
def own_streams() -> Iterator[None]:
    """Give FSDP the virtual device's stream where it asks for the accelerator's: PyTorch's takes only PyTorch's events.

    An event made in Python would be read as one of C++, whose fields are then whatever lies there.
    """
    # torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:777 (2.13): a group gathered for a backward pass that it
    # has no part in, such as frozen layers
    original = torch.accelerator.current_stream
    torch.accelerator.current_stream = _own_stream  # type: ignore[assignment]
    _replaced.append(original)
    try:
        yield
    finally:
        torch.accelerator.current_stream = _replaced.pop()


def _own_stream(device: object = None) -> Any:
    return VirtualBackend._streams[-1]


_replaced: list[Any] = []
"""PyTorch's own `torch.accelerator.current_stream`, while another answers."""


@contextlib.contextmanager
def imported_streams() -> Iterator[None]:
    """Answer with PyTorch's own streams, as Dynamo takes them apart."""
    # torch/_dynamo/variables/streams.py:276 (2.13)
    if not _replaced:
        yield
        return
    torch.accelerator.current_stream = _replaced[-1]
    try:
        yield
    finally:
        torch.accelerator.current_stream = _own_stream  # type: ignore[assignment]


@contextlib.contextmanager
def without_shape_questions(recorder: Recorder) -> Iterator[None]:
    """Sharded tensors ask for the shapes of whole ones by making some; they are no part of the program."""
    # torch/distributed/tensor/_sharding_prop.py:520 (2.13)
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    name = "_propagate_tensor_meta_non_cached"
    original = getattr(ShardingPropagator, name)

    def ask(*args: Any, **kwargs: Any) -> Any:
        with recorder.muted():
            return original(*args, **kwargs)

    with replaced(ShardingPropagator, name, ask):
        yield


@contextlib.contextmanager
def steady_buckets() -> Iterator[None]:
    """Give DDP the buckets that it makes after its first step: at first it has one for all gradients.

    To make them itself it would tell its peers in numbers, which nobody has here.
    """
    # torch/nn/parallel/distributed.py:149-153 (2.13): [sys.maxsize] at first; reducer.cpp, rebuild_buckets, afterwards
    name = "_compute_bucket_assignment_by_size"
    original = getattr(dist, name)

    def assign(tensors: Any, limits: Any, *others: Any) -> Any:
        return original(tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES], *others)

    with replaced(dist, name, assign):
        yield


@contextlib.contextmanager
def recording_waits(recorder: Recorder) -> Iterator[None]:
    """Note where the default stream of the device is made to wait for an exchange: at `Work.wait`.

    The work of a batch (`batch_isend_irecv`) is that of all its exchanges. What is started on another stream waits
    there (FSDP); those waits are not noted. Its future has what was exchanged, as NCCL's has.
    """
    # holds each Work, whose id is a key, and no tensor: nobody need wait for it
    started: dict[int, tuple[Any, range, list[weakref.ref[Tensor]]]] = {}
    trace, together = recorder.trace, [0]

    def beginning(original: Any) -> Any:
        def begin(*args: Any, **kwargs: Any) -> Any:
            together[0] = len(trace.ops)
            return original(*args, **kwargs)

        return begin

    def starting(original: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> Any:
            first = together[0] if original is ends_together else len(trace.ops)
            work = original(*args, **kwargs)
            if len(trace.ops) > first and work is not None:
                started[id(work)] = (
                    work,
                    range(first, len(trace.ops)),
                    [weakref.ref(each) for each in tree_leaves(args[1:2]) if isinstance(each, Tensor)],
                )
            return work

        return start

    def waiting(original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            _, ops, _tensors = started.pop(id(work), (None, range(0), []))
            if not recorder.is_muted and current_stream() == 0:
                trace.waits.extend((len(trace.events), op) for op in ops)
            return original(work, *args, **kwargs)

        return wait

    def promising(original: Any) -> Any:
        def get_future(work: Any) -> torch.futures.Future[list[Tensor]]:
            future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            references = started[id(work)][2] if id(work) in started else []
            future.set_result([tensor for tensor in (each() for each in references) if tensor is not None])
            return future

        return get_future

    from torch._C._distributed_c10d import FakeWork  # type: ignore[attr-defined]

    group = dist.ProcessGroup
    ends_together = group._end_coalescing  # type: ignore[attr-defined]
    places = [(group, name, starting) for name in (*STARTS, "_end_coalescing") if name in vars(group)]
    places += [(group, "_start_coalescing", beginning)]
    places += [(FakeWork, "wait", waiting), (FakeWork, "get_future", promising)]
    with contextlib.ExitStack() as stack:
        for owner, name, wrapped in places:  # a class may have inherited them
            stack.enter_context(replaced(owner, name, wrapped(getattr(owner, name))))
        yield


@contextlib.contextmanager
def noting_groups(groups: list[tuple[int, ...]]) -> Iterator[None]:
    """Add the ranks of every process group that the program makes, also of those that this rank is not in.

    All ranks make all groups (documentation of `torch.distributed.new_group`), so one rank sees those of all.
    """
    original = distributed_c10d._new_group_with_tag

    def make(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ranks is not None:
            groups.append(tuple(sorted(map(int, ranks))))
        return original(ranks, *args, **kwargs)

    distributed_c10d._new_group_with_tag = make
    try:
        yield
    finally:
        distributed_c10d._new_group_with_tag = original


def record_reductions(
    model: nn.parallel.DistributedDataParallel,
    recorder: Recorder,
    own_hook: Callable[[], tuple[Any, Any] | None] = lambda: None,
) -> None:
    """Have DDP's reductions recorded; they belong to no micro-step, as they happen once for each optimizer step.

    `own_hook` gives the program's own communication hook with its state, which reduces a bucket in place of DDP.
    """

    def reduce(state: Any, bucket) -> torch.futures.Future[Tensor]:
        buffer, hook = bucket.buffer(), own_hook()
        recorder.own([buffer], Category.GRADIENT)
        with recorder.phase(recorder.current_phase, -1):
            if hook is not None:
                return hook[1](hook[0], bucket)
            dist.all_reduce(buffer, async_op=True)  # the update waits for it, not what follows
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    # as its `register_comm_hook` does, which takes the hooks of programs here
    dist._register_comm_hook(model.reducer, None, reduce)  # type: ignore[attr-defined]


@contextlib.contextmanager
def masks_fill() -> Iterator[None]:
    """Zero the rows of a split embedding that other ranks have as CUDA does: by one kernel, without counting them.

    PyTorch writes `tensor[mask] = 0.0` there, which a device fills in place; fake tensors ask how many are masked.
    """
    # torch/distributed/tensor/_ops/_mask_buffer.py (2.13), apply_mask; canDispatchToMaskedFill in C++
    from torch.distributed.tensor._ops._mask_buffer import MaskBuffer

    original = MaskBuffer.apply_mask

    def apply_mask(self: Any, tensor: Tensor) -> None:
        mask = self.data if tensor.ndim == self.data.ndim else self.data.unsqueeze(-1)
        tensor.masked_fill_(mask, 0.0)

    MaskBuffer.apply_mask = apply_mask
    try:
        yield
    finally:
        MaskBuffer.apply_mask = original
