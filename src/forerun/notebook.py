"""`%%forerun t4` in a notebook: the cell runs on a virtual GPU and its forecast is shown. `%load_ext forerun` first.

The cell runs until its optimizer steps repeat, as `forerun exec` runs a script; files that it writes are thrown away.
Afterwards the notebook is as it was, with what the cell has computed on the host: names that hold tensors of the
virtual GPU have no values, so they get back what they were, or go. Modules and optimizers of earlier cells that the
cell moved are put back. An error in the cell is an error of the cell.

Not covered: tensors of the virtual GPU that are hidden inside other objects, such as a trainer's.
"""

import ast
import contextlib
import gc
import html
import io
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forerun.errors import ForerunError

if TYPE_CHECKING:
    from forerun.forecasting.program import ProgramForecast

PAGE_HEIGHT, TEXT_WIDTH = 760, 100
"""Pixels of the page in a notebook; letters of a line where only text is shown."""


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; IPython calls this for `%load_ext forerun`."""
    from IPython.core.error import UsageError
    from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
    from IPython.display import display

    @magic_arguments()
    @argument("gpu", help="Names of the catalogue, separated by commas; the first is the card that the cell meets.")
    @argument("--steps", type=int, help="Optimizer steps to run; default: until they repeat.")
    @argument("--to-end", action="store_true", help="Run the whole cell, whatever repeats.")
    @argument("--total-steps", type=int, help="Optimizer steps of the whole run, where nobody says.")
    def forerun(line: str, cell: str) -> "CellForecast":
        """Run the cell on a virtual GPU and show its forecast."""
        __tracebackhide__ = True
        options = parse_argstring(forerun, line)
        steps = sys.maxsize if options.to_end else options.steps
        try:
            result = run_cell(shell, cell, options.gpu.split(","), steps, options.total_steps)
        except ForerunError as error:
            raise UsageError(str(error)) from None
        if result.error is not None:
            display(result)
            raise result.error.with_traceback(result.error_trace)
        return result

    shell.register_magic_function(forerun, "cell", "forerun")


class CellForecast:
    """The forecast of a cell; a notebook shows its page, a terminal its tables."""

    def __init__(self, forecasts: "list[ProgramForecast]", page: str, ended: "_Ended"):
        self.forecast, self.forecasts = forecasts[0], forecasts
        self.error, self.error_trace = ended.error, ended.error_trace
        self._page, self._is_stopped = page, ended.is_stopped

    def __repr__(self) -> str:
        from rich.console import Console

        from forerun.report.program import program_tables

        console = Console(file=io.StringIO(), width=TEXT_WIDTH, force_jupyter=False)
        for view in program_tables(self.forecasts, self.forecast.script.command):
            console.print(view)
        if self._is_stopped:
            console.print(
                f"The cell was stopped after {self.forecast.script.steps_seen} optimizer steps. "
                "%%forerun --to-end runs all of it."
            )
        return console.file.getvalue()  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{PAGE_HEIGHT}px;border:1px solid #8884"
        return f'<iframe title="Forerun" srcdoc="{html.escape(self._page)}" style="{style}"></iframe>'


def run_cell(
    shell: Any, cell: str, gpus: list[str], most_steps: int | None = None, total_steps: int | None = None
) -> CellForecast:
    """Run the text of a cell on a virtual GPU; its forecast, with the error that the cell ended with.

    Raises:
        UnknownDevice: no such GPU.
    """
    from forerun.forecasting.live_card import CardMemory, clock_of
    from forerun.forecasting.program import forecast_run
    from forerun.forecasting.program_account import account_of
    from forerun.hardware.catalogue import device
    from forerun.report.program_page import render_program_page
    from forerun.virtual.cuda.launchers import Program
    from forerun.virtual.cuda.run import run_program
    from forerun.virtual.cuda.steps import StepWatcher

    devices = [device(name.strip()) for name in gpus]
    name = f"cell {shell.displayhook.prompt_count}"
    code, ended = _compiled(shell, cell, name), _Ended()

    def execute(program: Program, _: StepWatcher) -> None:
        with ended:
            exec(code, shell.user_ns)

    with _restoring(shell.user_ns):
        run = run_program(
            Program(target=name), devices[0], CardMemory(devices[0]), most_steps=most_steps,
            clock=clock_of(devices[0]), execute=execute,
        )  # fmt: skip
        forecasts = [forecast_run(run, each, [name], 1, total_steps, None) for each in devices]
        page = render_program_page(forecasts, account_of(run, devices[0], name))
    return CellForecast(forecasts, page, ended)


class _Ended:
    """Notes the error that a cell ends with, and where; to be stopped because its steps repeat is none."""

    error: BaseException | None = None
    error_trace: TracebackType | None = None
    is_stopped = False

    def __enter__(self) -> "_Ended":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from forerun.virtual.cuda.enough_steps import ProgramStopped

        self.is_stopped = isinstance(error, ProgramStopped)
        if error is not None and not self.is_stopped:
            self.error, self.error_trace = error, _of_the_cell(trace)


def _of_the_cell(trace: TracebackType) -> TracebackType | None:
    """A traceback as the card's would be: without our frames, and what PyTorch does below them."""
    import torch

    ours, theirs = str(Path(__file__).parent), str(Path(torch.__file__).parent)
    frames: list[TracebackType] = []
    each: TracebackType | None = trace
    while each is not None:
        frames.append(each)
        each = each.tb_next
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    last = max((n for n, file in enumerate(files) if not file.startswith((ours, theirs))), default=0)
    end = next((n for n in range(last, len(files)) if files[n].startswith(ours)), len(files))
    result: TracebackType | None = None
    for frame, file in reversed(list(zip(frames[:end], files[:end], strict=True))):
        if not file.startswith(ours):
            result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _compiled(shell: Any, cell: str, name: str) -> Any:
    """Code of a cell, whose lines count from the magic's own and are found by tracebacks."""
    text = shell.transform_cell(cell)
    lines = ["%%forerun\n", *text.splitlines(keepends=True)]
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    tree = shell.compile.ast_parse(text, filename=name)
    return shell.compile(ast.increment_lineno(shell.transform_ast(tree)), name, "exec")


@contextlib.contextmanager
def _restoring(namespace: dict[str, Any]) -> Iterator[None]:
    """Afterwards, no name holds a tensor of the virtual GPU, and earlier modules and optimizers are where they were."""
    import torch

    before = dict(namespace)
    every = gc.get_objects()
    modules = [each for each in every if issubclass(type(each), torch.nn.Module)]
    optimizers = [each for each in every if issubclass(type(each), torch.optim.Optimizer)]
    tables = [(table, dict(table)) for module in modules for table in (module._parameters, module._buffers)]
    tables += [(optimizer.state, dict(optimizer.state)) for optimizer in optimizers]
    groups = [(group, {**group, "params": list(group["params"])}) for o in optimizers for group in o.param_groups]
    del every
    try:
        yield
    finally:
        for table, content in (*tables, *groups):
            table.clear()
            table.update(content)
        for name in [name for name in namespace if not name.startswith("_")]:
            value = namespace[name]
            if value is not before.get(name) and _is_virtual(value):
                namespace.pop(name)
                namespace.update({name: before[name]} if name in before else {})


def _is_virtual(value: Any) -> bool:
    """Whether a value is, holds or trains a tensor that has no values."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _pytree

    if isinstance(value, torch.nn.Module):
        leaves: Any = [*value.parameters(), *value.buffers()]
    elif isinstance(value, torch.optim.Optimizer):
        leaves = [parameter for group in value.param_groups for parameter in group["params"]]
    else:
        leaves = _pytree.tree_leaves(value)
    return any(
        isinstance(leaf, FakeTensor) or (leaf is not value and _is_virtual(leaf))
        for leaf in leaves
        if isinstance(leaf, torch.Tensor | torch.nn.Module | torch.optim.Optimizer)
    )
