"""Claims about code that can be followed step by step: when an update falls, the order of calls, defaults."""

import ast
import inspect
import operator
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch.utils.data import DataLoader

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding
from forerun.settings.schema import Count

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Mod: operator.mod, ast.Add: operator.add, ast.Sub: operator.sub, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
WORKER_DEFAULTS = {"prefetch_factor": 2}
"""Values that the loader takes for None where there are workers (torch/utils/data/dataloader.py:292, 2.13)."""
LONGEST_LOOP = 1_000_000
"""Most micro-steps that the check follows one by one."""
DEPRECATED_SINCE = "2.4"
"""Release that deprecated torch.cuda.amp.autocast (PyTorch 2.4 release notes)."""


class AccumulationLoop(Check):
    """The condition under which a loop over micro-steps updates."""

    kind: Literal["accumulation-loop"]
    condition: str
    """Condition on `step` and `N`, such as (step + 1) % N == 0."""
    accumulation: Count
    micro_steps: Annotated[int, Field(ge=1, le=LONGEST_LOOP)]
    first_step: int = 0


def check_accumulation_loop(claim: AccumulationLoop, context: Context) -> Finding:
    """Groups of micro-steps between updates: each is N long, and none is left over."""
    groups, waiting = [], 0
    for step in range(claim.first_step, claim.first_step + claim.micro_steps):
        waiting += 1
        if _holds(claim.condition, step=step, N=claim.accumulation):
            groups.append(waiting)
            waiting = 0
    problems = []
    if groups and groups[0] != claim.accumulation:
        problems.append(f"the first update comes after {groups[0]} of {claim.accumulation} micro-steps")
    if waiting:
        problems.append(f"the last {waiting} are thrown away")
    right = "(step + 1) % N == 0, and an update for what is left"
    formula = f"{claim.condition}, N = {claim.accumulation}, {claim.micro_steps} micro-steps"
    verdict: Verdict = "wrong" if problems else "consistent"
    return finding("program", verdict, right=right, formula=formula, remark="; ".join(problems))


def _holds(condition: str, **names: int) -> bool:
    try:
        return bool(_value(ast.parse(condition, mode="eval").body, names))
    except (SyntaxError, KeyError) as error:
        raise ValueError(
            f"condition: whole numbers, step and N with +, -, %, == and !=; found {condition!r}"
        ) from error


def _value(node: ast.expr, names: dict[str, int]) -> Any:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return OPERATORS[type(node.ops[0])](_value(node.left, names), _value(node.comparators[0], names))
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise KeyError(type(node).__name__)


class CallOrder(Check):
    """Calls in the order in which code makes them."""

    kind: Literal["call-order"]
    calls: list[Literal["scale", "backward", "unscale", "clip", "step", "update", "zero-grad"]]


MUST_PRECEDE = (
    ("backward", "unscale", "gradients are there before they are unscaled"),
    ("unscale", "clip", "the norm that is clipped is that of unscaled gradients"),
    ("clip", "step", "gradients are clipped before they are used"),
    ("unscale", "step", "gradients are unscaled before they are used"),
    ("step", "update", "the scale changes after the step that it belongs to"),
)


def check_call_order(claim: CallOrder, context: Context) -> Finding:
    """The calls in the order that gradient scaling needs."""
    place = {call: number for number, call in enumerate(claim.calls)}
    problems = [
        why
        for first, second, why in MUST_PRECEDE
        if first in place and second in place and place[first] > place[second]
    ]
    formula = " → ".join(claim.calls)
    source = "PyTorch, Automatic Mixed Precision examples: gradient clipping"
    right = "backward → unscale → clip → step → update"
    return finding(
        "program",
        "wrong" if problems else "consistent",
        right=right,
        formula=formula,
        remark="; ".join(problems),
        source=source,
    )


class LoaderOption(Check):
    """An option of PyTorch's DataLoader that is set as an optimisation."""

    kind: Literal["loader-option"]
    option: str
    value: int | bool
    workers: int = 1


def check_loader_option(claim: LoaderOption, context: Context) -> Finding:
    """The value beside the default of the installed PyTorch."""
    parameters = inspect.signature(DataLoader.__init__).parameters
    if claim.option not in parameters:
        raise ValueError(f"option: one of DataLoader's, such as prefetch_factor; found {claim.option!r}")
    default = parameters[claim.option].default
    if default is None and claim.workers:
        default = WORKER_DEFAULTS.get(claim.option)
    remark = "is the default: setting it changes nothing" if default == claim.value else ""
    source = f"torch {torch.__version__}: DataLoader"
    return finding(
        "program", "consistent", right=f"default {default}", formula=claim.option, remark=remark, source=source
    )


class Versions(Check):
    """Versions of PyTorch and CUDA, and the way autocast is called."""

    kind: Literal["versions"]
    torch: str
    """Version as `torch.__version__` prints it, such as 2.8.0+cu128."""
    cuda: str
    autocast: Literal["torch.cuda.amp.autocast", "torch.autocast", ""] = ""


def check_versions(claim: Versions, context: Context) -> Finding:
    """The build's suffix names the CUDA version."""
    release, _, build = claim.torch.partition("+")
    named = build.removeprefix("cu")
    right = f"CUDA {named[:-1]}.{named[-1]}" if build.startswith("cu") and len(named) > 1 else "no CUDA build"
    agrees = right == f"CUDA {claim.cuda}"
    newer = tuple(map(int, release.split(".")[:2])) >= tuple(map(int, DEPRECATED_SINCE.split(".")))
    remark = "" if agrees else f"not CUDA {claim.cuda}"
    if agrees and claim.autocast == "torch.cuda.amp.autocast" and newer:
        remark = f"torch.cuda.amp.autocast is deprecated since {DEPRECATED_SINCE}; use torch.autocast"
    verdict: Verdict = "consistent" if agrees else "wrong"
    return finding("program", verdict, right=right, formula=claim.torch, remark=remark, source="PyTorch release notes")


CHECKS = {
    AccumulationLoop: check_accumulation_loop, CallOrder: check_call_order, LoaderOption: check_loader_option,
    Versions: check_versions,
}  # fmt: skip
