"""A program's PyTorch, with a virtual GPU in the place of CUDA: everything that is active while it runs."""

import contextlib
import dataclasses
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh, distributed_c10d
from torch.distributed.checkpoint import default_planner
from torch.nn.parallel import DistributedDataParallel

from forerun.hardware.catalogue import Device
from forerun.step.attention import PACKAGES
from forerun.trace import Trace
from forerun.virtual import session as virtual_session
from forerun.virtual.attention import AttentionTarget, set_target
from forerun.virtual.backend import DEVICE, VirtualBackend
from forerun.virtual.cuda.beam_search import searching_to_the_end
from forerun.virtual.cuda.cards import CardsInUse
from forerun.virtual.cuda.compile_calls import CompileCalls
from forerun.virtual.cuda.data_parallel import playing_data_parallel
from forerun.virtual.cuda.dispatch import CudaDispatch
from forerun.virtual.cuda.jit_calls import tracing_nothing
from forerun.virtual.cuda.late_hooks import beginning_at_once
from forerun.virtual.cuda.line_searches import searching_on
from forerun.virtual.cuda.loaders import LoaderWatch, making_batches_here
from forerun.virtual.cuda.module_names import naming_modules
from forerun.virtual.cuda.names import CudaNames, answering_cuda, comparing_devices_by_name, naming_in_backward
from forerun.virtual.cuda.nested_tensors import refusing_nested
from forerun.virtual.cuda.peers import Peers
from forerun.virtual.cuda.spawned import running_spawned_ranks
from forerun.virtual.cuda.stand_ins.flash_attn import flash_in_transformers
from forerun.virtual.cuda.stand_ins.kernels import standing_in
from forerun.virtual.cuda.tensor_classes import making_subclasses
from forerun.virtual.cuda.token_loops import following_token_loops
from forerun.virtual.cuda.torch_cuda import CudaEvent, LiveCard, answering
from forerun.virtual.cuda.unknown import Assumptions
from forerun.virtual.cuda.unsaved_checkpoints import taking_weights_as_they_are
from forerun.virtual.cuda.weights import without_reading_weights
from forerun.virtual.device_guard import raising_lost_errors
from forerun.virtual.hugging_face import without_fakes_for_transformers
from forerun.virtual.placement import moving_fake_modules
from forerun.virtual.process_group import (
    noting_groups,
    record_reductions,
    recording_waits,
    steady_buckets,
    without_shape_questions,
)
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder
from forerun.virtual.registration import register

OPENS_GROUPS = (dist, distributed_c10d, device_mesh)
"""Modules of PyTorch that call `init_process_group` by a name of their own (torch/distributed/device_mesh.py, 2.13)."""


class CudaSession:
    """What says `cuda` between entering and leaving runs on the virtual twin of `device`.

    `ranks` cards are in the machine, and this is number `local_rank` of them; `peers` are the ranks beside this one. Of
    `cards` more than one the program is no rank: its process drives all of them by itself. With `keeps_objects`
    parameters stay the same objects when they move to the device: of a program that is over with the session.
    `clock` gives the seconds from one event of the trace to another, for `torch.cuda.Event.elapsed_time`. `attention`
    is as `model.attention` of the settings.
    """

    def __init__(
        self,
        device: Device,
        card: LiveCard,
        *,
        ranks: int = 1,
        clock: Callable[[Trace, int, int], float] | None = None,
        attention: str = "auto",
        local_rank: int = 0,
        cards: int = 1,
        keeps_objects: bool = False,
        peers: Peers | None = None,
    ):
        register()
        self.device = device
        self.recorder = Recorder(DEVICE)
        self.recorder.card = card
        self.assumptions = Assumptions()
        self.loaders = LoaderWatch()
        self.recorder.trace.cards = cards
        self._keeps_objects = keeps_objects
        self.card, self._ranks, self._attention = card, ranks, attention
        self._local_rank, self._peers = local_rank, peers
        self._cards = CardsInUse(local_rank, max(ranks, cards), cards > 1)
        self._clock = clock
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.compiling = CompileCalls(self.recorder, self._fake)
        self.groups: list[tuple[int, ...]] = []
        """Ranks of every process group that the program made, in order."""
        self.not_followed: list[str] = []
        """Sentences on what the program asks for that nobody follows here: variables of its environment, a fuser."""
        self.own_processes: list[str] = []
        """Lines at which the program started processes of its own, which nobody sees."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "CudaSession":
        enter = self._stack.enter_context
        reasons = self.recorder.trace.math_attention
        before = set_target(
            AttentionTarget("cuda", self.device.attention_capability, self._attention, reasons, self.device)
        )
        self._stack.callback(set_target, before)
        CudaEvent.recorder, CudaEvent.clock = self.recorder, self._clock
        enter(virtual_session._quiet_fake_tensors())
        enter(virtual_session._copying_tensors_alone())
        # Python modes are those of the thread that runs the backward pass: it must be the program's own
        enter(torch.autograd.set_multithreading_enabled(False))
        enter(virtual_session._clearing_autocast_cache())
        enter(virtual_session._speaking_for_cuda())
        enter(moving_fake_modules(keeps_objects=self._keeps_objects))
        enter(naming_modules(self.recorder))  # before what follows them: hooks run in the order of registration
        enter(without_fakes_for_transformers())
        enter(virtual_session._following_modules(self.recorder))
        enter(virtual_session._seeing_resizes(self.recorder))
        enter(without_shape_questions(self.recorder))
        enter(answering(self.device, self.recorder, self.card, self.assumptions.note, self._cards.count))
        enter(answering_cuda(self._cards, self.assumptions.note))
        enter(making_subclasses())
        enter(tracing_nothing(self.note_not_followed))
        enter(searching_on(self.assumptions.note))
        enter(self.assumptions.loops.counting())
        enter(refusing_nested())
        enter(raising_lost_errors())
        enter(naming_in_backward())
        enter(comparing_devices_by_name())
        enter(_fake_process_groups(self._ranks))
        enter(running_spawned_ranks(self._ranks, self._local_rank, self.own_processes))
        enter(playing_data_parallel(self.assumptions.note))
        enter(noting_groups(self.groups))
        enter(recording_waits(self.recorder))
        enter(steady_buckets())
        enter(beginning_at_once(self.assumptions.note))
        enter(searching_to_the_end(self.assumptions.note))
        enter(following_token_loops(self.recorder, self.assumptions.note))
        enter(taking_weights_as_they_are())
        enter(_recording_reductions(self.recorder))
        enter(_saving_alone())
        enter(making_batches_here(self.loaders))
        folder = Path(enter(tempfile.TemporaryDirectory(prefix="forerun-weights-")))
        enter(without_reading_weights(folder, self.assumptions))
        enter(self.compiling)
        enter(standing_in(self.device, self.recorder.trace, self.assumptions.note))
        if self._attention in PACKAGES:
            enter(flash_in_transformers(self._attention))
        enter(self._in_every_thread())
        enter(CudaDispatch(self.recorder, self._fake, self.assumptions, self._peers))
        enter(CudaNames())
        return self

    def __exit__(self, *exception: object) -> None:
        self.recorder.is_closed = True
        self._stack.__exit__(*exception)  # type: ignore[arg-type]
        CudaEvent.recorder = CudaEvent.clock = None

    def note_not_followed(self, text: str) -> None:
        """Add a sentence, once."""
        if text not in self.not_followed:
            self.not_followed.append(text)

    @contextlib.contextmanager
    def _in_every_thread(self) -> Iterator[None]:
        """Modes belong to a thread (transformers 5 loads weights in several): give each new thread its own."""
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            with CudaDispatch(self.recorder, self._fake, self.assumptions, self._peers), CudaNames():
                original(thread)

        threading.Thread.run = run  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            threading.Thread.run = original


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

    before, VirtualBackend.ranks = VirtualBackend.ranks, ranks
    try:
        with contextlib.ExitStack() as stack:
            for module in OPENS_GROUPS:
                stack.enter_context(replaced(module, "init_process_group", init_process_group))
            yield
    finally:
        VirtualBackend.ranks = before
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _saving_alone() -> Iterator[None]:
    """A checkpoint of several ranks has this one's part only: the others' are not there to make it whole.

    torch/distributed/checkpoint/default_planner.py (2.13) refuses tensors of which parts are missing.
    """

    def first_has_all(all_plans: list[Any], *_: Any) -> list[Any]:
        """Those of the others are copies of this rank's plan: what is saved twice would be dealt to all of them."""
        return [all_plans[0], *(dataclasses.replace(each, items=[]) for each in all_plans[1:])]

    with (
        replaced(default_planner, "dedup_save_plans", first_has_all),
        replaced(default_planner, "_validate_global_plan", lambda global_plan, metadata: []),
    ):
        yield


@contextlib.contextmanager
def _recording_reductions(recorder: Recorder) -> Iterator[None]:
    """DDP's reducer calls its collectives below the dispatcher; a communication hook makes them seen.

    A reducer takes one hook only, so that ours asks the program's.
    """
    original = DistributedDataParallel.__init__
    hooks: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[Any, Any]] = weakref.WeakKeyDictionary()

    def init(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        reference = weakref.ref(model)

        def own_hook() -> tuple[Any, Any] | None:
            owner = reference()
            return None if owner is None else hooks.get(owner)

        record_reductions(model, recorder, own_hook)

    def take_hook(model: DistributedDataParallel, state: Any, hook: Any) -> None:
        model._check_comm_hook(hook)
        if model in hooks:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        hooks[model] = state, hook

    with (
        replaced(DistributedDataParallel, "__init__", init),
        replaced(DistributedDataParallel, "register_comm_hook", take_hook),
    ):
        yield
