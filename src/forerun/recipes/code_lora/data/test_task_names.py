from dataclasses import replace

from forerun.recipes.code_lora.data.task_names import names_of_tests
from forerun.recipes.code_lora.data.tasks import CodeTask

TASK = CodeTask(
    task_id="t", instruction="", prompt="", entry_point="depth", kind="",
    preamble="def helper(x): return x\n",
    reference="import sys\nimport math as m\nlimit = 3\nclass Node: pass\ndef helper(x): return x\ndef sum(x): return x\n"
              "def depth(n): return 1\n",
    tests="root = Node()\nassert helper(depth(root)) < sys.maxsize and sum([limit]) == 3\n",
)  # fmt: skip


def test_what_only_a_solution_has_is_the_programs():
    tested = names_of_tests(TASK)
    assert tested.names == ("Node", "depth", "limit", "sum", "sys")
    assert tested.modules == {"sys": "sys"}


def test_a_reference_that_is_no_python_leaves_the_tested_function():
    assert names_of_tests(replace(TASK, reference="def f(:")).names == ("depth",)
