"""The state that processes of one run share: a process's place, its share of a step, and when to stop.

A step's micro-batches are dealt out in turn, number k to rank k mod world size. Where the last step of an epoch has
fewer, ranks without one run a blank: the step's first micro-batch, its loss counting nothing, since every rank must
take part in the exchange of gradients. The order of samples depends on the micro-batches of a whole step, not on who
runs them.
"""

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from forerun.errors import NotSupported
from forerun.settings.devices import ParallelSettings
from forerun.settings.schema import Settings

T = TypeVar("T")


def rank() -> int:
    """Number of this process; 0 when it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_follower() -> bool:
    """Whether `torchrun` started this process, and not as the first; true before the group is joined."""
    return int(os.environ.get("RANK", "0")) > 0


def join_group(settings: Settings, device_type: str) -> None:
    """Join the processes that `torchrun` started, where the settings ask for several.

    Raises:
        NotSupported: they were started in another number, or not at all, or exchange in a way that is only forecast.
    """
    if settings.parallel.async_tensor:
        raise NotSupported(
            "parallel.async_tensor: exchanges in parts beside products are forecast, and not trained with yet; found "
            "true. Set it to false; losses and weights are the same."
        )
    if settings.parallel.engine != "pytorch":
        raise NotSupported(
            f"parallel.engine: Forerun trains with PyTorch's own layouts; found {settings.parallel.engine!r}, which is "
            f"forecast. Set it to pytorch, or train with Megatron-LM by what forerun plan --script megatron writes."
        )
    if device_type == "cuda" and settings.allocator.conf:  # before the first tensor comes to the card
        torch._C._accelerator_setAllocatorSettings(settings.allocator.conf)
    required = settings.parallel.world_size
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if settings.parallel.is_alone and started == 1:
        return
    if started != required or "RANK" not in os.environ:
        raise NotSupported(
            f"parallel.world_size: training over {required} processes needs {required} of them; found {started}. Start "
            f"it with forerun train --nproc {required}."
        )
    if not dist.is_initialized():
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        _init_group("nccl" if device_type == "cuda" else "gloo")


def _init_group(backend: str) -> None:
    """Meet the other processes under a name of this attempt.

    After a restart `torchrun` (2.13) hands out the same store: without a name of its own an attempt may read addresses
    of processes that are dead, and gloo then waits for them for ever.
    """
    store, number, world = next(iter(rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(backend, store=PrefixStore(f"attempt-{attempt}", store), rank=number, world_size=world)


def share(micro_batches: Sequence[T], parallel: ParallelSettings | None = None) -> tuple[list[T], int]:
    """This rank's micro-batches of a step, and how many blanks it must run beside them.

    Ranks that split layers or sequences follow each other and train on the same rows; so do the stages of a pipeline.
    """
    inner, stages = (1, 1) if parallel is None else (parallel.tensor * parallel.context, parallel.pipeline)
    data_ranks = world_size() // (inner * stages)
    own = list(micro_batches[rank() // inner % data_ranks :: data_ranks])
    most = -(-len(micro_batches) // data_ranks)
    return own, most - len(own)


def agree(flag: bool, device_type: str) -> bool:
    """Whether `flag` is set on any rank. A collective: all ranks must call it."""
    if world_size() == 1:
        return flag
    any_flag = torch.tensor(float(flag), device=device_type)
    dist.all_reduce(any_flag, op=dist.ReduceOp.MAX)
    return bool(any_flag.item())


def from_first(value: T) -> T:
    """The `value` of rank 0. A collective: all ranks must call it."""
    if world_size() == 1:
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
