"""Conditions of branches that stand elsewhere: in a flag, in a function, or nowhere that can be known."""

import ast

import pytest

from forerun.virtual.cuda.branch_conditions import BEST, ask_first, flags_of, mark_best, remainders, write_out_calls


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
