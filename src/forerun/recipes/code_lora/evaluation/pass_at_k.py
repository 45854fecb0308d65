"""How many tasks a model solves: programs out of answers, unit tests in the sandbox, pass@k.

pass@k is the chance that one of k samples passes, estimated without bias from n ≥ k samples of which c pass as
1 − C(n−c, k) / C(n, k), and averaged over tasks (Chen et al. 2021, arXiv 2107.03374, equation 1).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from forerun.evaluate.sandbox import ProgramTest, Sandbox, SandboxLimits, SandboxResult
from forerun.recipes.code_lora.data.python_code import code_of
from forerun.recipes.code_lora.data.task_names import names_of_tests
from forerun.recipes.code_lora.data.tasks import CodeTask
from forerun.recipes.code_lora.evaluation.answers import defines


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Chance that at least one of `k` out of `samples` passes, of which `passed` do.

    Raises:
        ValueError: k is larger than the number of samples, or counts are impossible.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 1 <= k <= samples and passed <= samples; found {k}, {samples}, {passed}")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def program_of(answer: str, task: CodeTask, *, continues: bool = False) -> str:
    """The program that an answer means, tests left out.

    An answer that does not define the function continues the prompt, as do all when the model `continues` text; one
    that does gets the imports of the prompt before it.
    """
    if continues:
        return task.prompt + first_block(answer)
    code = code_of(answer)
    return task.preamble + "\n" + code if defines(code, task.entry_point) else task.prompt + code


def first_block(text: str) -> str:
    """A continuation up to where the function's body ends: the first line that is neither indented nor blank."""
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if n and line.strip() and not line[0].isspace()), len(lines))
    return "\n".join(lines[:end]) + "\n"


@dataclass(frozen=True)
class TaskOutcomes:
    """Outcomes of every sample of every task."""

    outcomes: Mapping[str, tuple[SandboxResult, ...]]
    """Outcomes of a task's samples by task id, in the order of the tasks."""
    isolation: str = ""
    """Walls that stood around the programs."""

    @property
    def samples(self) -> int:
        """Fewest samples of any task, so the largest k of pass@k."""
        return min(len(results) for results in self.outcomes.values())

    def passed(self) -> list[float]:
        """Per task the share of samples that pass: pass@1 of that task."""
        return [fmean(outcome.passed for outcome in results) for results in self.outcomes.values()]

    def pass_at(self, k: int) -> float:
        """pass@k over all tasks."""
        return fmean(pass_at_k(len(results), sum(o.passed for o in results), k) for results in self.outcomes.values())

    def statuses(self) -> dict[str, int]:
        """How many samples ended in which way."""
        return dict(Counter(outcome.status for results in self.outcomes.values() for outcome in results))


def run_tests(
    tasks: Sequence[CodeTask], programs: Sequence[Sequence[str]], limits: SandboxLimits | None = None, *,
    allow_unsafe: bool = False,
) -> TaskOutcomes:  # fmt: skip
    """Run each task's programs with its tests.

    Raises:
        NotSupported: the kernel offers too little isolation and `allow_unsafe` is false.
    """
    if not tasks or len(tasks) != len(programs) or not all(programs):
        raise ValueError(f"each task needs a program; found {len(tasks)} tasks and {len(programs)} lists of programs")
    flat = [
        ProgramTest(program=program, tests=task.tests, prelude=task.preamble, **names_of_tests(task)._asdict())
        for task, answers in zip(tasks, programs, strict=True) for program in answers
    ]  # fmt: skip
    with Sandbox(limits, allow_unsafe=allow_unsafe) as sandbox:
        outcomes = iter(sandbox.run_all(flat))
    return TaskOutcomes(
        {task.task_id: tuple(next(outcomes) for _ in answers) for task, answers in zip(tasks, programs, strict=True)},
        str(sandbox.isolation),
    )
