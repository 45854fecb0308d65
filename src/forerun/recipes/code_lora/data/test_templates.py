import random

from forerun.recipes.code_lora.data import templates as t
from forerun.recipes.code_lora.data.python_code import code_of, parses


def chain(*names, seed=0):
    draw = random.Random(seed)
    by_name = {operation.name: operation for operation in t.operations()}
    return t._filled_chain([by_name[name] for name in names], draw)


def test_every_operation_is_sound():
    assert len({o.name for o in t.operations()}) == len(t.operations()) >= 70
    draw = random.Random(0)
    for operation in t.operations():
        filled = t._filled_chain([operation], draw)
        space = {}
        exec(t.program(filled), space)
        for _ in range(20):
            argument = t._input(operation.takes, draw)
            kind = {"numbers": list, "number": int, "text": str, "words": list, "truth": bool}[operation.gives]
            assert isinstance(space[t.NAME](argument), kind), operation.name
        assert len(set(operation.says)) == 2


def test_a_chain_in_both_distributions():
    filled = chain("add", "sum")
    constant = filled.codes[0].split("+ ")[1].split(" ")[0]
    body = f"    xs = [v + {constant} for v in xs]\n    return sum(xs)\n"
    assert t.body(filled) == body
    assert t.document_prompt(", then ".join(filled.says), "numbers").endswith("\ndef solve(xs):\n")
    assert t.instruction(filled) == f"Write solve for a list of numbers: {filled.says[1]}, but first {filled.says[0]}."
    assert t.row(filled)["output"] == f"```python\ndef solve(xs: list[int]) -> int:\n{body}```"


def test_tasks_are_passed_by_their_reference_and_by_no_constant():
    for task in t.draw_tasks(30, seed=3):
        space = {}
        exec(task.reference + task.tests, space)
        outputs = {line.split("==")[1] for line in task.tests.splitlines()}
        assert len(outputs) > 1
        assert task.kind in ("2 operations", "3 operations")


def test_draws_are_a_function_of_the_seed():
    assert t.draw_rows(5, 1) == t.draw_rows(5, 1) != t.draw_rows(5, 2)
    assert t.draw_documents(5, 1) == t.draw_documents(5, 1)
    assert all(parses(code_of(row["output"])) for row in t.draw_rows(50, 0))
    assert all(parses(before + after) for before, after in t.draw_documents(50, 0))
