"""Dynamo beside the virtual GPU: what it must not see, and what a captured program is told.

A program's modes answer `cuda` for a device that is not CUDA, and its modules have our hooks; Dynamo would trace both
as if they were the program's code, and PyTorch's own code below it would look for CUDA, which ends the process. So
while Dynamo works on a frame, PyTorch is as it was imported: no modes, no hooks, tensors that say where they really
are. Only when the program itself asks a tensor for its device, it hears `cuda:0`, and `cuda` in a captured call is the
virtual device. Names are those of PyTorch 2.13.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.cards import VIRTUAL, name_of
from forerun.virtual.cuda.dispatch import CudaDispatch
from forerun.virtual.cuda.names import CudaNames, below_dispatcher
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder

CONSTANT = (
    "is_available", "device_count", "current_device", "is_initialized", "get_device_name", "get_device_capability",
    "is_bf16_supported", "is_tf32_supported", "get_device_properties",
)  # fmt: skip
"""Answers of `torch.cuda` that a captured frame takes as they are."""
AUTOCAST = torch.autocast.__init__
ANSWERS_CUDA = (torch.cuda, torch.cuda.random, torch.accelerator)
"""Modules whose functions the virtual GPU answers."""


def _where_a_mesh_is(mesh: Any) -> str:
    """Kind of device that a mesh's tensors are on: DTensor moves them there if they say another one."""
    return DEVICE if mesh._device_type == "cuda" else mesh._device_type


class Imported:
    """PyTorch's functions as they are before the virtual GPU answers for them."""

    def __init__(self) -> None:
        self._functions = {module: dict(vars(module)) for module in ANSWERS_CUDA}

    @contextlib.contextmanager
    def answering(self, *modules: Any) -> Iterator[None]:
        """Let the functions of `modules` answer again."""
        with contextlib.ExitStack() as stack:
            for module in modules:
                for name, original in self._functions[module].items():
                    if vars(module).get(name) is not original:
                        stack.enter_context(replaced(module, name, original))
            yield

    @contextlib.contextmanager
    def in_force(self, recorder: Recorder) -> Iterator[None]:
        """PyTorch without the modes, hooks and answers of the virtual GPU; nothing is recorded."""
        with (
            _without_modes(),
            below_dispatcher(),
            recorder.muted(),
            modules_as_imported(),
            self.answering(torch.accelerator),
            replaced(torch.autocast, "__init__", AUTOCAST),
            replaced(DeviceMesh, "device_type", property(_where_a_mesh_is)),
        ):
            yield

    @contextlib.contextmanager
    def dynamo_prepared(self) -> Iterator[None]:
        """Import Dynamo, and let it capture a program that believes in CUDA."""
        with modules_as_imported(), self.answering(*ANSWERS_CUDA):
            from torch._dynamo import trace_rules, utils
            from torch._dynamo.guards import GuardBuilder
            from torch._dynamo.variables.ctx_manager import AutocastModeVariable
            from torch._dynamo.variables.tensor import TensorVariable
            from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

            # tables of functions by identity; the second is made once in a process
            rules = self._rules_as_imported(trace_rules.get_torch_obj_rule_map)
            rules()
            TorchInGraphFunctionVariable._get_handlers()
        for name in CONSTANT:
            getattr(torch.cuda, name)._dynamo_marked_constant = True
        with (
            replaced(trace_rules, "get_torch_obj_rule_map", rules),
            replaced(utils, "run_node", _on_virtual(utils.run_node)),
            replaced(AutocastModeVariable, "__init__", _autocast_on_virtual(AutocastModeVariable.__init__)),
            replaced(TensorVariable, "specialize", staticmethod(_telling_cuda(TensorVariable.specialize))),
            replaced(GuardBuilder, "TORCH_FUNCTION_STATE", lambda *_: None),  # our mode is not there while it captures
            replaced(nn.modules.module, "_has_any_global_hook", lambda: False),  # asked in order to warn of ours
            replaced(CudaNames, "__torch_function__", _uncaptured(CudaNames.__torch_function__)),
            replaced(CudaDispatch, "__torch_dispatch__", _uncaptured(CudaDispatch.__torch_dispatch__)),
        ):
            yield

    def _rules_as_imported(self, original: Any) -> Any:
        """Dynamo's table of functions, of PyTorch as it was imported whenever it is made.

        `init_process_group` throws the table away (`distributed_c10d.py:1785`, 2.13); made anew among our answers, of
        which many are one function, it would not be built.
        """

        @functools.cache
        def rules() -> dict[Any, Any]:
            original.cache_clear()
            with modules_as_imported(), self.answering(*ANSWERS_CUDA):
                return original()

        return rules


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """Take our modes off both stacks, whatever the program has put on top of them; its own stay."""
    functions = torch.overrides._get_current_function_mode_stack()
    dispatchers = _get_current_dispatch_mode_stack()
    _set_function_modes([mode for mode in functions if not isinstance(mode, CudaNames)])
    _set_dispatch_modes([mode for mode in dispatchers if not isinstance(mode, CudaDispatch)])
    try:
        yield
    finally:
        _set_function_modes(functions)
        _set_dispatch_modes(dispatchers)


def modes_of_program(modes: list[Any]) -> None:
    """What captured code that enters or leaves function modes makes of the stack; of ours Dynamo knows nothing."""
    ours = [mode for mode in torch.overrides._get_current_function_mode_stack() if isinstance(mode, CudaNames)]
    _set_function_modes([*ours, *modes])


def _set_function_modes(modes: list[Any]) -> None:
    for _ in torch.overrides._get_current_function_mode_stack():
        torch.overrides._pop_mode()
    for mode in modes:
        torch.overrides._push_mode(mode)


def _set_dispatch_modes(modes: list[Any]) -> None:
    for _ in _get_current_dispatch_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


@contextlib.contextmanager
def modules_as_imported() -> Iterator[None]:
    """Calls of modules without our counting and our hooks."""
    tables = [nn.modules.module._global_forward_pre_hooks, nn.modules.module._global_forward_hooks]
    hooks = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        with replaced(nn.Module, "__call__", nn.Module._wrapped_call_impl):
            yield
    finally:
        for table, before in zip(tables, hooks, strict=True):
            table.update(before)


def keep_guards(entries: Any) -> list[bool]:
    """All guards but those on hooks of ours, which are not there while a frame is captured."""
    return ["_global_forward" not in entry.name for entry in entries]


def _uncaptured(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ours whose frames, and those that it calls, Dynamo does not look at."""
    from torch._C._dynamo.eval_frame import set_eval_frame

    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return call


def _named(value: Any) -> Any:
    """The virtual device for what a captured call names `cuda`; a name stays a name."""
    if isinstance(value, torch.device):
        return VIRTUAL if value.type == "cuda" else value
    return DEVICE if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


def _autocast_on_virtual(init: Callable[..., None]) -> Callable[..., None]:
    """`torch.autocast("cuda")` inside captured code, which is no call in its graph."""

    def call(variable: Any, target_values: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        init(variable, [_named(value) for value in target_values], *args, **kwargs)

    return call


def _on_virtual(run_node: Callable[..., Any]) -> Callable[..., Any]:
    """Captured calls that name `cuda` are calls that name the virtual device."""

    def run(tracer: Any, node: fx.Node, args: Any, kwargs: Any, module: Any) -> Any:
        if node.op == "call_method" and node.target == "cuda":
            node.target, node.args, node.kwargs = "to", (node.args[0], VIRTUAL), {}
            args, kwargs = (args[0], VIRTUAL), {}
        elif node.op in ("call_function", "call_method"):
            node.args = map_aggregate(node.args, _named)  # type: ignore[assignment]
            node.kwargs = map_aggregate(node.kwargs, _named)  # type: ignore[assignment]
            args, kwargs = map_aggregate((tuple(args), dict(kwargs)), _named)
        return run_node(tracer, node, args, kwargs, module)

    return run


def _telling_cuda(specialize: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """What a traced program hears of a tensor's device."""

    def answer(value: torch.Tensor) -> dict[str, Any]:
        properties = specialize(value)
        where = properties["device"]
        return properties | ({"device": name_of(where)} if where.type == DEVICE else {})

    return answer
