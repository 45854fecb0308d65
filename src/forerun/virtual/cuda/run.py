"""Run a program, unmodified, on a virtual GPU until its steps repeat; what it did is in the session's trace."""

import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import re
import resource
import runpy
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch

from forerun.current_work import at, work
from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import Device
from forerun.trace import ALLOCATE, Phase, Trace
from forerun.virtual.cuda.enough_steps import ProgramStopped
from forerun.virtual.cuda.environment import blocks_launches, not_followed
from forerun.virtual.cuda.file_layer import FileLayer, WrittenFiles
from forerun.virtual.cuda.files import quiet_environment, writing_to
from forerun.virtual.cuda.gradient_passes import spans_of_passes
from forerun.virtual.cuda.later_loops import compiled, names_for, trains_again
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.lines import is_library, line_of_failure, path_name
from forerun.virtual.cuda.loop_rests import branch_names
from forerun.virtual.cuda.own_names import training_names
from forerun.virtual.cuda.peers import Peers
from forerun.virtual.cuda.run_end import RunEnd, bounded
from forerun.virtual.cuda.script_loops import ScriptLoops
from forerun.virtual.cuda.session import CudaSession
from forerun.virtual.cuda.steps import MOST_SECONDS_BETWEEN, StepWatcher
from forerun.virtual.cuda.torch_cuda import LiveCard
from forerun.virtual.cuda.turn_branches import BranchMoment
from forerun.virtual.cuda.unknown import Assumption
from forerun.virtual.phases import own_alive, recognising_phases
from forerun.virtual.process_state import (
    convolutions_use_tf32,
    forget_accelerators,
    process_state_put_back,
    products_use_tf32,
)
from forerun.virtual.put_back import put_back_everywhere

NO_TRITON = "PyTorch for CUDA brings Triton, and the one for CPUs that is here does not: pip install --no-deps triton."
ASKS_FOR_GPUS = re.compile(r"You requested gpu: \[([\d, ]+)\]")
"""What Lightning says where a machine has fewer (lightning/fabric/utilities/device_parser.py, 2.6)."""
RSS_UNIT = 1024
"""Bytes of a unit of `ru_maxrss` on Linux (getrusage(2))."""


@dataclass(frozen=True)
class OutOfMemoryReport:
    """Where a program ran out of the card's memory."""

    line: str
    message: str
    tried_bytes: int
    allocated_bytes: int


@dataclass(frozen=True)
class ProgramRun:
    """What a program did on the virtual GPU."""

    session: CudaSession
    watcher: StepWatcher
    exit_code: int
    wall_seconds: float
    host_peak_bytes: int
    saved_bytes: int
    assumptions: list[Assumption]
    out_of_memory: OutOfMemoryReport | None
    failure: BaseException | None = None
    """What the program failed with."""
    error: str = ""
    """The program's own traceback, where it failed by itself."""
    unreached: str = ""
    """Why the program did not come to the training that was to follow its last loop."""
    failed_rest: str = ""
    """What it failed with behind a loop that was ended early, or in a branch that was taken for its own sake."""
    failed_at: str = ""
    """The program's line at which it did."""
    failed_branch: str = ""
    """Line of that branch."""
    updates_nothing: bool = False
    """It came to its end without an update, and its steps are its backward passes."""

    @property
    def between_failures(self) -> tuple[int, int] | None:
        """Events of the trace, from and to, in which a program that ran out of memory and went on trained last.

        None where nothing failed, or that was its end.
        """
        trace, spans = self.session.recorder.trace, self.watcher.spans
        if self.out_of_memory is not None or not trace.failures or not spans:
            return None
        trained = spans[-1].end
        before = [place for place, _ in trace.failures if place < trained]
        # what the failed attempt held is freed first; the rest of its backward pass is given nothing
        allocated = (at for at in range(before[-1], trained) if trace.events[at][0] == ALLOCATE) if before else ()
        begin = next((at for at in allocated if trace.storages[trace.events[at][1]].bytes), 0)
        return begin, len(trace.events) if len(before) == len(trace.failures) else trained


def _execute(program: Program, watcher: StepWatcher) -> None:
    """As Python runs it, but that of its own file's statements several training loops are seen (`later_loops.py`)."""
    forget_accelerators()
    spec = _spec(program.target) if program.is_module else None
    file = program.target if spec is None else spec.origin
    if (spec is None) == program.is_module or not _is_source(file):
        if program.is_module:
            runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program.target, run_name="__main__")
        return
    assert file is not None
    stack = contextlib.ExitStack()

    def last_part(line: str) -> bool:
        """Whether the last loop, at a line, is ended, and the program goes on to its end."""
        if threading.current_thread() is not threading.main_thread() or not watcher.goes_on_behind(line):
            return False
        watcher.between.end_of_run = RunEnd(line, stopped=ProgramStopped)
        stack.enter_context(bounded(watcher.between.end_of_run))
        first = len(watcher.recorder.trace.storages)  # what it collects there is no activation
        stack.callback(lambda: own_alive(watcher.recorder, range(first, len(watcher.recorder.trace.storages))))
        return True

    loops = ScriptLoops(
        ProgramStopped,
        watcher.goes_on_behind,
        last_part,
        lambda stop, frame: trains_again(following, stop, frame),
        watcher.next_loop,
        branch_names(lambda: watcher.between, lambda: _moment(watcher), lambda: watcher.loaders.fetched, watcher.note),
        others := training_names(file),
        watcher.stages,
        watcher.loop_begins,
        watcher.loop_counts,
    )
    with io.open_code(file) as stream:
        code, following = compiled(stream.read(), file, [loops.mark], others)
    main, before = types.ModuleType("__main__"), sys.modules["__main__"]
    main.__dict__.update({"__file__": file, "__builtins__": builtins, "__cached__": None})
    if spec is not None:
        main.__dict__.update({"__spec__": spec, "__package__": spec.parent, "__loader__": spec.loader})
        sys.argv[0] = file
    names = names_for(following, ProgramStopped, watcher.next_loop, last_part) | loops.names()
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    try:
        with stack, loops.marking_modules():
            exec(code, main.__dict__)
    finally:
        sys.modules["__main__"] = before


def _moment(watcher: StepWatcher) -> BranchMoment:
    events, fetched = len(watcher.recorder.trace.events), tuple(watcher.loaders.fetched)
    return BranchMoment(events, len(watcher.spans), watcher.saved_bytes(), fetched)


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where the module is that `python -m name` runs; None where only `runpy` can say why there is none."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            return importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        return None
    return spec


def _is_source(file: str | None) -> bool:
    """Whether it is one file of Python's source, neither a folder nor an archive nor compiled."""
    return file is not None and os.path.isfile(file) and not file.endswith((".pyc", ".so")) and not is_zipfile(file)


def run_program(
    program: Program,
    device: Device,
    card: LiveCard,
    *,
    most_steps: int | None = None,
    rank: int = 0,
    peers: Peers | None = None,
    files: WrittenFiles = WrittenFiles.LAYER,
    clock: Callable[[Trace, int, int], float] | None = None,
    execute: Callable[[Program, StepWatcher], None] = _execute,
) -> ProgramRun:
    """Run `program` as one rank on `device`, whose memory is `card`; `files` says what becomes of what it writes."""
    local_rank = rank % program.ranks_per_node
    session = CudaSession(
        device,
        card,
        ranks=program.ranks_per_node,
        clock=clock,
        local_rank=local_rank,
        cards=program.cards,
        peers=peers,
        keeps_objects=execute is _execute,  # a notebook's cell goes on with what was made before it
    )
    watcher = watcher_of(session, most_steps=most_steps)
    return run_in_session(program, session, watcher, rank=rank, files=files, execute=execute)


def watcher_of(session: CudaSession, *, most_steps: int | None = None, is_announced: bool = False) -> StepWatcher:
    """What follows the steps of the program in a session."""
    card = session.card
    watcher = StepWatcher(session.recorder, lambda: card.allocated_bytes, session.loaders, most_steps, is_announced)
    session.compiling.on_call, watcher.note = watcher.count_graph, session.assumptions.note
    loaders, events = session.loaders, session.recorder.trace.events
    loaders.ends = lambda loader: watcher.between.cuts_pass(loader, loaders.fetched, len(events))
    return watcher


@contextlib.contextmanager
def in_use(session: CudaSession, watcher: StepWatcher) -> Iterator[None]:
    """A session whose operators are recorded with their lines, phases and steps: the one way in of every door."""
    recorder = session.recorder
    recorder.keeps_lines = True
    with process_state_put_back():
        try:
            with (
                put_back_everywhere(),
                session,
                recognising_phases(recorder),
                recorder.phase(Phase.FORWARD, 0),
                watcher,
            ):
                yield
        finally:
            if not watcher.spans:
                watcher.own_parameters()
            trace = recorder.trace
            trace.tf32, trace.tf32_convolutions = products_use_tf32(), convolutions_use_tf32()
            trace.tries_algorithms, trace.allocator = torch.backends.cudnn.benchmark, session.card.allocator_conf
            trace.memory_fraction, trace.blocks_launches = session.card.fraction, blocks_launches(os.environ)
            for text in not_followed(os.environ):
                session.note_not_followed(text)
            trace.is_deterministic = torch.are_deterministic_algorithms_enabled()


def run_in_session(
    program: Program,
    session: CudaSession,
    watcher: StepWatcher,
    *,
    rank: int = 0,
    files: WrittenFiles = WrittenFiles.LAYER,
    execute: Callable[[Program, StepWatcher], None] = _execute,
) -> ProgramRun:
    """Run `program` as one rank in a session; `files` says what becomes of what it writes."""
    card = session.card
    start, code, full = time.perf_counter(), 0, None
    error = unreached = failed_rest = failed_at = failed_branch = ""
    failed_with: BaseException | None = None
    with tempfile.TemporaryDirectory(prefix="forerun-") as folder:
        layer = FileLayer(Path(folder).resolve())
        watcher.saved_bytes = lambda: layer.saved_bytes
        variables = quiet_environment(layer, files)
        with (
            _started_as(program, rank, variables),
            in_use(session, watcher),
            writing_to(layer, files),
            work(f"running {Path(program.target).name} on the virtual GPU"),
            at(partial(_how_far, watcher, threading.get_ident())),
        ):
            try:
                execute(program, watcher)
            except ProgramStopped:
                unreached = f"no step in {MOST_SECONDS_BETWEEN:.0f} s here" if watcher.awaits_loop else ""
            except SystemExit as stop:
                code = 0 if watcher.between.end_of_run.line else _exit_code(stop)
            except torch.OutOfMemoryError as failure:
                code, full, failed_with = 1, _out_of_memory(failure, card), failure
            except InvalidSettings:  # of ours: what was asked for and the program do not go together
                raise
            except Exception as failure:
                full = _out_of_memory(failure.__cause__, card) if _is_full(failure.__cause__) else None
                # what a loop that was ended early would have left behind is missing
                text = f"{type(failure).__name__}: {failure}"
                if full is None and watcher.between.is_open:
                    failed_rest, failed_at = text, line_of_failure(failure)
                    failed_branch = watcher.between.branches.left_by(failure)
                elif full is None and watcher.awaits_loop:
                    unreached = text
                else:
                    code, failed_with = 1, failure
                    error = _traceback_of(failure)
    seconds, peak = time.perf_counter() - start, host_peak_bytes()
    assumptions = list(session.assumptions.by_line.values())
    updates_nothing = code == 0 and not watcher.spans and bool(watcher.passes)
    if updates_nothing:
        watcher.spans = spans_of_passes(session.recorder.trace, watcher.passes, session.loaders)
    return ProgramRun(
        session, watcher, code, seconds, peak, layer.saved_bytes, assumptions, full, failed_with, error, unreached,
        failed_rest, failed_at, failed_branch, updates_nothing,
    )  # fmt: skip


def _how_far(watcher: StepWatcher, thread: int) -> str:
    """The line of the program that a thread runs, and how many steps it has made, for somebody who waits."""
    frame = sys._current_frames().get(thread)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    steps = len(watcher.spans) + sum(len(each.spans) for each in watcher.earlier)
    count = f"{steps} step{'s' * (steps != 1)}" if steps else "no step yet"
    return count if frame is None else f"at {path_name(frame.f_code.co_filename)}:{frame.f_lineno}, {count}"


def host_peak_bytes() -> int:
    """The most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


@contextlib.contextmanager
def _started_as(program: Program, rank: int, variables: dict[str, str]) -> Iterator[None]:
    """Arguments, import path and environment as the program's own process would have them."""
    arguments, path, environment = sys.argv, list(sys.path), dict(os.environ)
    first = os.getcwd() if program.is_module else os.path.dirname(os.path.abspath(program.target))
    sys.argv, sys.path[:0] = program.words(rank), [first]
    os.environ.update(program.variables(rank) | variables)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = arguments, path
        os.environ.clear()
        os.environ.update(environment)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    print(stop.code, file=sys.stderr)
    return 1


def _is_full(error: BaseException | None) -> bool:
    return isinstance(error, torch.OutOfMemoryError)


def _out_of_memory(error: Any, card: LiveCard) -> OutOfMemoryReport:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    allocated_bytes = getattr(error, "allocated_bytes", card.allocated_bytes)  # at the failure: some is free by now
    return OutOfMemoryReport(line, str(error), getattr(error, "tried_bytes", 0), allocated_bytes)


def _is_ours(file: str) -> bool:
    return any(part in file for part in ("/torch/", "/forerun/", "/runpy.py", "<frozen", "/contextlib.py"))


def _traceback_of(error: BaseException) -> str:
    """The program's traceback as Python prints it: without our frames above its first one, and those of imports."""
    trace = error.__traceback__
    while trace is not None and ("forerun" in trace.tb_frame.f_code.co_filename or "runpy" in str(trace.tb_frame)):
        trace = trace.tb_next
    report = traceback.TracebackException.from_exception(error.with_traceback(trace) if trace is not None else error)
    waiting = [report]
    while waiting:
        each = waiting.pop()
        each.stack = traceback.StackSummary.from_list([frame for frame in each.stack if not _is_import(frame)])
        waiting += [other for other in (each.__cause__, each.__context__) if other is not None]
    return "".join(report.format()) + _remedy(error)


def _is_import(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is Python's import of a module, or our part in it."""
    is_ours = "forerun" in frame.filename and frame.name == "exec_module"
    return is_ours or frame.filename.startswith("<frozen importlib")


def _remedy(error: BaseException) -> str:
    """What helps where a package is missing that a machine with CUDA has, or where more GPUs are asked for."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if (missing or "").partition(".")[0] == "triton":
        return f"{NO_TRITON}\n"
    request = ASKS_FOR_GPUS.search(str(error))
    if request is None:
        return ""
    count = len(request[1].split(","))
    return f"The machine has one GPU unless you say more: forerun exec --nproc-per-node {count}, a rank for each.\n"
