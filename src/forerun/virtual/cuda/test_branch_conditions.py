"""Conditions of branches that stand elsewhere: in a flag, in a function, or nowhere that can be known."""

import ast

import pytest

from forerun.virtual.cuda.branch_conditions import (
    BEST,
    ask_first,
    flags_of,
    mark_best,
    remainders,
    turn_round,
    write_out_calls,
)


@pytest.mark.parametrize(
    ("function", "test", "written"),
    [
        ("def is_due(a, b):\n    return a % b == 0", "self.step != 0 and is_due(self.step, 9)", "self.step % 9 == 0"),
        ("def is_due(a, b):\n    return a % b == 0", "is_due(next(steps), 9)", "is_due(next(steps), 9)"),
        ("def is_due(a, b=9):\n    return a % b == 0", "is_due(step)", "is_due(step)"),
        ("def is_due(a, b):\n    return a % EVERY == 0", "is_due(step, 9)", "is_due(step, 9)"),
        ("def is_due(a, b):\n    print(a)\n    return a % b == 0", "is_due(step, 9)", "is_due(step, 9)"),
    ],
)
def test_a_function_of_a_remainder_is_written_out_in_a_condition(function, test, written):
    tree = ast.parse(f"{function}\nif {test}:\n    save()\n")
    write_out_calls(tree)
    assert written in ast.unparse(tree.body[1].test)
    compile(ast.fix_missing_locations(tree), "train.py", "exec")


def test_a_flag_is_what_was_said_last_above_a_branch_in_its_function():
    source = "is_due = step % 7 == 0\ndef f():\n    if is_due:\n        g()\nis_due = step % 9 == 0\nif main and is_due:\n    g()\n"
    flags = flags_of(ast.parse(source))
    assert [(node.lineno, ast.unparse(flag.value)) for node, flag in flags.items()] == [(6, "step % 9 == 0")]


@pytest.mark.parametrize(
    ("branch", "is_marked"),
    [
        ("if score > best:\n    best = score\n    torch.save(model, path)", True),
        ("if best is None or loss < self.best:\n    self.best = loss\n    weights = copy.deepcopy(model)", True),
        ("if score > best:\n    best = score\n    print(best)", False),
        ("if score > best:\n    torch.save(model, path)", False),
        ("if rate < least:\n    rate = least", False),
    ],
)
def test_a_branch_keeps_the_best_where_it_saves_and_remembers_what_to_beat(branch, is_marked):
    tree = ast.parse(branch)
    assert mark_best(tree) is is_marked
    assert (BEST in ast.unparse(tree)) is is_marked


@pytest.mark.parametrize(
    ("test", "is_first"),
    [
        ("epoch > 0 and epoch % 10 == 0", True),
        ("main and epoch % 10 == 0", False),
        ("every > 0 and epoch % every == 0", False),
        ("epoch is not None and epoch % 10 == 0", False),
        ("self.step != 0 and self.step % self.every == 0", True),
    ],
)
def test_a_remainder_is_asked_before_comparisons_of_its_counter(test, is_first):
    node = ast.parse(test).body[0].value
    remainder = next(remainders(node))
    ask_first(node, remainder)
    assert (remainder in ast.walk(node.values[0])) is is_first


TURNED = """
def f(n, a=None):
    for i in range(n):
        WORK
        if i % 3 != 0: continue
        seen.append(i)
        if i == 6: continue
        seen.append(-i)
    if n % 2: return
    seen.append("even")
"""


@pytest.mark.parametrize("count", [7, 8])
def test_what_follows_a_continue_is_done_as_before(count):
    results = []
    for turns in (False, True):
        tree, names = ast.parse(TURNED.replace("WORK", "seen.append('w')")), {"seen": []}
        if turns:
            turn_round(tree)
            assert "continue" in ast.unparse(tree)  # that without a remainder
            assert "return" not in ast.unparse(tree)
        exec(compile(ast.fix_missing_locations(tree), "train.py", "exec"), names)
        names["f"](count)
        results.append(names["seen"])
    assert results[0] == results[1] != []
