"""A program's PyTorch, with a virtual GPU in the place of CUDA: everything that is active while it runs."""

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from forerun.hardware.catalogue import Device
from forerun.trace import Trace
from forerun.virtual import session as virtual_session
from forerun.virtual.attention import AttentionTarget, set_target
from forerun.virtual.backend import DEVICE, VirtualBackend
from forerun.virtual.cuda.dispatch import Assumptions, CudaDispatch
from forerun.virtual.cuda.names import CudaNames, answering_cuda
from forerun.virtual.cuda.torch_cuda import CudaEvent, LiveCard, answering
from forerun.virtual.placement import moving_fake_modules
from forerun.virtual.process_group import record_reductions, steady_buckets, without_shape_questions
from forerun.virtual.recorder import Recorder
from forerun.virtual.registration import register

LOADS_CUDA = ("bitsandbytes",)
OPENS_GROUPS = (dist, distributed_c10d, device_mesh)
"""Modules of PyTorch that call `init_process_group` by a name of their own (torch/distributed/device_mesh.py, 2.13)."""


class CudaSession:
    """What says `cuda` between entering and leaving runs on the virtual twin of `device`.

    `clock` gives the seconds from one event of the trace to another, for `torch.cuda.Event.elapsed_time`.
    """

    def __init__(
        self, device: Device, card: LiveCard, *, ranks: int = 1, clock: Callable[[Trace, int, int], float] | None = None
    ):
        register()
        self.device = device
        self.recorder = Recorder(DEVICE)
        self.recorder.card = card
        self.assumptions = Assumptions()
        self.compiled_eagerly: list[str] = []
        """What the program compiles and this session runs as it is written."""
        self.card, self._ranks = card, ranks
        self._clock = clock
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "CudaSession":
        enter = self._stack.enter_context
        _import_before_cuda()
        before = set_target(AttentionTarget("cuda", self.device.compute_capability or (0, 0), "auto"))
        self._stack.callback(set_target, before)
        CudaEvent.recorder, CudaEvent.clock = self.recorder, self._clock
        enter(virtual_session._quiet_fake_tensors())
        # Python modes are those of the thread that runs the backward pass: it must be the program's own
        enter(torch.autograd.set_multithreading_enabled(False))
        enter(virtual_session._clearing_autocast_cache())
        enter(virtual_session._speaking_for_cuda())
        enter(moving_fake_modules())
        enter(virtual_session._following_modules(self.recorder))
        enter(virtual_session._seeing_resizes(self.recorder))
        enter(without_shape_questions(self.recorder))
        enter(answering(self.device, self.card, self._ranks))
        enter(answering_cuda())
        enter(_fake_process_groups(self._ranks))
        enter(steady_buckets())
        enter(_recording_reductions(self.recorder))
        enter(_in_one_process())
        enter(self._uncompiled())
        enter(self._in_every_thread())
        enter(CudaDispatch(self.recorder, self._fake, self.assumptions))
        enter(CudaNames())
        return self

    def __exit__(self, *exception: object) -> None:
        self.recorder.is_closed = True
        self._stack.__exit__(*exception)  # type: ignore[arg-type]
        CudaEvent.recorder = CudaEvent.clock = None

    @contextlib.contextmanager
    def _in_every_thread(self) -> Iterator[None]:
        """Modes belong to a thread (transformers 5 loads weights in several): give each new thread its own."""
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            with CudaDispatch(self.recorder, self._fake, self.assumptions), CudaNames():
                original(thread)

        threading.Thread.run = run  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            threading.Thread.run = original

    @contextlib.contextmanager
    def _uncompiled(self) -> Iterator[None]:
        """`torch.compile` returns what it was given: Dynamo aborts the process on fake tensors of another device."""
        original = torch.compile

        def compile_nothing(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda function: compile_nothing(function, **options)
            self.compiled_eagerly.append(getattr(model, "__name__", type(model).__name__))
            return model

        def compile_module(module: torch.nn.Module, *_: Any, **__: Any) -> None:
            self.compiled_eagerly.append(type(module).__name__)

        compile_of_modules = torch.nn.Module.compile
        torch.compile = compile_nothing  # type: ignore[assignment]
        torch.nn.Module.compile = compile_module  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.compile = original
            torch.nn.Module.compile = compile_of_modules  # type: ignore[method-assign]


def _import_before_cuda() -> None:
    """Import packages that load CUDA libraries where CUDA is there; without it they offer their CPU code."""
    for name in LOADS_CUDA:
        if find_spec(name) is not None:
            importlib.import_module(name)


@contextlib.contextmanager
def _fake_process_groups(ranks: int) -> Iterator[None]:
    """Process groups whose other ranks do not exist; the environment says which rank this is, as torchrun does."""
    original = dist.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        import torch.distributed._tools.fake_collectives  # noqa: F401 (registers shapes of the collectives)
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rank = kwargs.get("rank", -1)
        size = kwargs.get("world_size", -1)
        rank = rank if rank >= 0 else int(os.environ.get("RANK", 0))
        size = size if size > 0 else int(os.environ.get("WORLD_SIZE", 1))
        original("fake", rank=rank, world_size=size, store=FakeStore())

    for module in OPENS_GROUPS:
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
    before, VirtualBackend.ranks = VirtualBackend.ranks, ranks
    try:
        yield
    finally:
        VirtualBackend.ranks = before
        for module in OPENS_GROUPS:
            module.init_process_group = original  # type: ignore[attr-defined]
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _recording_reductions(recorder: Recorder) -> Iterator[None]:
    """DDP's reducer calls its collectives below the dispatcher; a communication hook makes them seen."""
    original = DistributedDataParallel.__init__

    def init(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        record_reductions(model, recorder)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = original  # type: ignore[method-assign]


@contextlib.contextmanager
def _in_one_process() -> Iterator[None]:
    """Data loaders make their batches in the program's process: fake tensors cannot be sent to another."""
    original = torch.utils.data.DataLoader.__init__
    alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None,
             "pin_memory": False, "timeout": 0}  # fmt: skip

    def init(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
                 "drop_last", "timeout", "worker_init_fn", "multiprocessing_context")  # fmt: skip
        kwargs = dict(zip(names, args, strict=False)) | kwargs
        original(loader, dataset, **(kwargs | {name: value for name, value in alone.items() if name in kwargs}))

    torch.utils.data.DataLoader.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.utils.data.DataLoader.__init__ = original  # type: ignore[method-assign]
