from itertools import combinations
from statistics import fmean

import pytest

from forerun.evaluate.sandbox import isolation_here
from forerun.recipes.code_lora.data.tasks import CodeTask
from forerun.recipes.code_lora.evaluation.pass_at_k import first_block, pass_at_k, program_of, run_tests

TASK = CodeTask(
    "t", "Double it.", "import math\ndef double(x):\n", "import math\n", "double", "", "assert double(2) == 4\n"
)


@pytest.mark.parametrize(("samples", "passed", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (10, 3, 10)])
def test_the_estimator_is_the_mean_over_all_choices(samples, passed, k):
    outcomes = [True] * passed + [False] * (samples - passed)
    every = fmean(any(subset) for subset in combinations(outcomes, k))
    assert pass_at_k(samples, passed, k) == pytest.approx(every)


def test_impossible_counts():
    for wrong in ((3, 4, 1), (3, 1, 4), (3, 1, 0)):
        with pytest.raises(ValueError, match="k <= samples"):
            pass_at_k(*wrong)


def test_programs_of_answers():
    whole = program_of("Here:\n```python\ndef double(x):\n    return 2 * x\n```", TASK)
    assert whole == "import math\n\ndef double(x):\n    return 2 * x"
    assert program_of("    return 2 * x\n", TASK) == TASK.prompt + "    return 2 * x"
    continued = program_of("    y = 2 * x\n\n    return y\n# next\ndef other():\n", TASK, continues=True)
    assert continued == TASK.prompt + "    y = 2 * x\n\n    return y\n"
    assert first_block("return 1\nx") == "return 1\n"


@pytest.mark.skipif(not isolation_here().is_enough, reason=f"no isolation here: {isolation_here()}")
def test_samples_of_a_task_are_run_and_counted():
    good, bad = "def double(x): return 2 * x", "def double(x): return x"
    outcomes = run_tests([TASK], [[good, bad, bad, good]])
    assert outcomes.pass_at(1) == 0.5
    assert outcomes.pass_at(2) == pytest.approx(1 - 1 / 6)
    assert outcomes.passed() == [0.5]
    assert outcomes.statuses() == {"passed": 2, "failed": 2}
    with pytest.raises(ValueError, match="needs a program"):
        run_tests([TASK], [[]])
