"""What a sweep that was not finished says last."""

from types import SimpleNamespace

from forerun.cli.sweep_command import unfinished_line


def planned(name, state, failure=""):
    return SimpleNamespace(variant=SimpleNamespace(name=name), state=state, failure=failure)


def test_the_last_line_names_what_was_not_finished_and_why():
    plan = SimpleNamespace(
        planned=[planned("r8", "finished"), planned("r16", "failed", "exit code 1"), planned("r32", "does not fit")]
    )
    assert unfinished_line(plan) == "2 of 3 variants were not finished: r16 (exit code 1); r32 (does not fit)."
