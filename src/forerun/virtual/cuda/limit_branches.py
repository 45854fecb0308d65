"""Branches that a limit of their loop's counter alone decides: `if epoch > 10: save()`.

Such a branch is due in every turn that its limit lets through, as if a remainder of one stood in front of it.
"""

import ast

from forerun.virtual.cuda.branch_conditions import ORDERS, SIMPLE
from forerun.virtual.cuda.later_loops import called_in
from forerun.virtual.cuda.loop_counters import names_in

RARE = ("save", "checkpoint", "state_dict", "eval", "valid", "test", "sample", "generate")
"""Parts of the names of what keeps a model or tries it: a branch with such a call adds to a step and changes none."""


def remainder_of_limit(branch: ast.If, loop: ast.AST | None) -> ast.BinOp | None:
    """The remainder that is put in front of a branch's condition; None where that is no limit of its loop's counter.

    A branch with an `else` is part of every turn.
    """
    test = branch.test
    if not isinstance(loop, ast.For) or branch.orelse or not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    is_limit = isinstance(test.ops[0], (*ORDERS, ast.Eq))
    is_simple = all(isinstance(part, (*SIMPLE, ast.Compare, ast.cmpop)) for part in ast.walk(test))
    counters = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)} & names_in(test)
    calls = [call.rpartition(".")[2].lower() for call in called_in(branch.body)]
    if not (is_limit and is_simple and len(counters) == 1 and any(part in call for call in calls for part in RARE)):
        return None
    remainder = ast.BinOp(ast.Name(next(iter(counters)), ast.Load()), ast.Mod(), ast.Constant(1))
    is_due = ast.Compare(remainder, [ast.Eq()], [ast.Constant(0)])
    branch.test = ast.copy_location(ast.BoolOp(ast.And(), [is_due, test]), test)
    for part in ast.walk(is_due):
        if isinstance(part, ast.expr):
            ast.copy_location(part, test)
    return remainder
