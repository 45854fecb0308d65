"""`torch.compile` of a program on the virtual GPU: captured by Dynamo, cut into kernels, and played in each step.

What is between two graphs runs as it is written, and so does a function that cannot be captured: `CompileCalls.eager`
has the reason. `capture.py` keeps Dynamo and the virtual GPU apart.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from forerun.virtual.backend import DEVICE
from forerun.virtual.compiled import AT_RANDOM_STATE, CompiledGraph, compiling_afresh, virtual_backend
from forerun.virtual.cuda.capture import Imported, keep_guards, modes_of_program, modules_as_imported
from forerun.virtual.cuda.names import below_dispatcher
from forerun.virtual.cuda.shadow import is_assumed
from forerun.virtual.cuda.unknown import assume_numbers
from forerun.virtual.fusion import resolve
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder

COMPILERS, RUNS_OPERATORS = {"inductor"}, {"eager", "eager_noexcept", "aot_eager"}
"""Backends that generate kernels, and those that run operators as they are."""
TRITON = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
ON_FUNCTIONS = AT_RANDOM_STATE | {"flex_attention", "flex_attention_backward", *TRITON}
"""Operators on functions that are modelled."""
SKIPPED = (str(Path(__file__).parents[1]), str(Path(torch.optim.__file__).parent))
"""Folders whose frames are not captured: ours are no part of the program, and optimizers run kernels of their own."""
FAILURES = (RuntimeError, AssertionError, LookupError, TypeError, ValueError, AttributeError, ImportError)
"""What Dynamo raises: `torch/_dynamo/convert_frame.py:2168` (2.13) makes all but a few kinds a `RuntimeError`."""


@dataclass
class CompileCalls:
    """What a program compiled, and what of it ran as it is written."""

    recorder: Recorder
    fake: FakeTensorMode
    graphs: list[CompiledGraph] = field(default_factory=list)
    eager: dict[str, str] = field(default_factory=dict)
    """Functions that were not captured, with the reason."""
    breaks: list[str] = field(default_factory=list)
    """Reasons why graphs were cut; known at the end."""
    on_call: Callable[[int, list[torch.Tensor]], None] | None = None
    """Is told of each graph that is played, by its identity, with its tensors."""
    _players: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Backends by mode."""
    _imported: Imported = field(default_factory=Imported)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _has_begun: bool = False

    def __enter__(self) -> "CompileCalls":
        original = torch.compile

        def compile_on_card(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda function: compile_on_card(function, **options)
            return self._compile(original, model, **options)

        self._stack.enter_context(replaced(torch, "compile", compile_on_card))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._has_begun:
            self.breaks = [_first_line(reason) for reason in torch._dynamo.utils.counters["graph_break"]]
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    @property
    def kernels(self) -> int:
        """Kernels that had to be compiled."""
        return sum(1 for graph in self.graphs for kernel in graph.kernels if kernel.alone is None and kernel.outputs)

    def _compile(self, original: Callable[..., Any], model: Any, **options: Any) -> Any:
        backend = options.pop("backend", None) or "inductor"
        mode, settings = options.pop("mode", None) or "default", dict(options.pop("options", None) or {})
        if options.get("disable") or _name(backend) in RUNS_OPERATORS:  # FlexAttention has an `eager` of its own
            return model
        if backend not in COMPILERS:
            self.eager[_name(model)] = f"its backend {_name(backend)} is not modelled"
            return model
        self._begin()
        mode = "reduce-overhead" if settings.get("triton.cudagraphs") else mode
        # one for all of a mode: blocks of one class share what was compiled, unless their compilers differ
        # (torch/__init__.py, _TorchCompileWrapper.__eq__; guards compare backends)
        player = self._players.setdefault(mode, virtual_backend(self.recorder, mode, self._prepared))
        # where a graph breaks, PyTorch would stop a `fullgraph` program; its forecast goes on and says so
        options["fullgraph"] = False
        with modules_as_imported():
            return original(model, backend=player, options={"guard_filter_fn": keep_guards}, **options)

    def _begin(self) -> None:
        """Get Dynamo ready, once: importing it takes seconds, and most programs do not compile."""
        if self._has_begun:
            return
        self._has_begun = True
        enter = self._stack.enter_context
        enter(self._imported.dynamo_prepared())
        from torch._dynamo import convert_frame
        from torch._dynamo.variables.optimizer import OptimizerVariable

        torch._dynamo.utils.counters.clear()
        enter(compiling_afresh(fails_at_limit=False))
        convert = convert_frame.CatchErrorsWrapper.__call__
        enter(replaced(convert_frame.CatchErrorsWrapper, "__call__", self._capturing(convert)))
        enter(replaced(torch._dynamo.utils, "set_torch_function_mode_stack", modes_of_program))
        enter(replaced(OptimizerVariable, "var_getattr", self._breaking_at_step(OptimizerVariable.var_getattr)))

    def _prepared(self, graph: CompiledGraph) -> Callable[[list[Any]], Any]:
        for node in graph.graph.graph.nodes:
            if isinstance(node.target, HigherOrderOperator) and node.target.name() not in ON_FUNCTIONS:
                raise NotImplementedError(f"{node.target.name()} is an operator on functions, which is not modelled")
            value = resolve(node) if node.op == "get_attr" else None
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.device.type == DEVICE:
                owner, _, name = str(node.target).rpartition(".")
                with self.fake:  # a constant, made below the fake mode while the graph was captured
                    setattr(graph.graph.get_submodule(owner), name, torch.empty_like(value))

        self.graphs.append(graph)

        def play(arguments: list[Any]) -> Any:
            if self.on_call is not None:
                self.on_call(id(graph), [each for each in arguments if isinstance(each, torch.Tensor)])
            with torch._C.DisableTorchFunction(), below_dispatcher():
                results = graph(arguments)
            # inside, an operator's parts are apart: one that counts is taken as 0, and its mean as endless
            assume_numbers([each for each in results if isinstance(each, FakeTensor) and is_assumed(each)])
            return results

        play._boxed_call = True  # type: ignore[attr-defined]
        return play

    def _capturing(self, convert: Callable[..., Any]) -> Callable[..., Any]:
        """Dynamo's work on one frame, in a PyTorch without the virtual GPU; what fails runs as it is written."""
        from torch._dynamo.types import ConvertFrameReturn

        def call(wrapper: Any, frame: Any, *state: Any) -> Any:
            if frame.f_code.co_filename.startswith(SKIPPED):
                return ConvertFrameReturn()
            name = frame.f_code.co_qualname
            try:
                with self._imported.in_force(self.recorder), warnings.catch_warnings(), cycles_let_go():
                    warnings.simplefilter("ignore")  # of how to compile on the card that is not there
                    result = convert(wrapper, frame, *state)
            except FAILURES as error:
                cause = getattr(error, "inner_exception", error)  # of a compiler that failed, behind a text of its own
                self.eager[name] = f"{type(cause).__name__}: {_first_line(str(cause))}".removesuffix(": ")
                return ConvertFrameReturn()
            if result.frame_exec_strategy.cur_action.name == "RUN_ONLY":
                self.eager[name] = "it was compiled as often as PyTorch allows, and other calls are eager"
            return result

        return call

    def _breaking_at_step(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Optimizers are not captured: Dynamo makes their state while it works, where nothing is recorded."""
        from torch._dynamo.exc import unimplemented

        def var_getattr(variable: Any, translator: Any, name: str) -> Any:
            if name == "step":
                kind = type(variable.value).__name__
                self.eager[f"{kind}.step"] = "optimizers run the kernels that they have without compiling"
                unimplemented(gb_type="optimizer", context=kind, explanation="It runs as it is written.", hints=[])
            return read(variable, translator, name)

        return var_getattr


@contextlib.contextmanager
def cycles_let_go() -> Iterator[None]:
    """Free the cycles of a block at its end, whenever Python's collector would.

    Dynamo leaves cycles that hold the frames below it, and with them the tensors of the program's functions. PyTorch
    collects them (`torch/_dynamo/config.py` 2.13, `run_gc_after_compile`) unless the collector has run meanwhile and
    counts them as old; then they live on for many steps, in one run and not in the next.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(1)
        if was_enabled:
            gc.enable()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200].rstrip(".") if lines else ""


def _name(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__qualname__", type(value).__name__)
