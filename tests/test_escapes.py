"""Nothing of the list of escapes gets out: with all walls, with those of a container, as root and as a user without rights."""

import os
import shutil

import pytest
from benchmarks import escape_cases
from benchmarks.escapes import as_nobody, case_test, outside, run_cases

from forerun.evaluate.sandbox import Sandbox, isolation_here

pytestmark = [
    pytest.mark.medium,
    pytest.mark.skipif(not isolation_here().is_enough, reason=f"no isolation here: {isolation_here()}"),
]
CASES = sum(map(len, escape_cases.CASES.values()))
ALL = tuple(escape_cases.CASES)
WALLS_MATTER = tuple(kind for kind in ALL if kind != "bombs")
"""Bombs meet limits alone, which are the same behind all walls."""
CONTROL = ("secret of the user", "file outside", "fork", "symbolic link", "network", "thread", "own memory for writing")


def out(escapes):
    return [(escape.kind, escape.name) for escape in escapes if escape.got_out]


@pytest.mark.parametrize(
    "without", [(), ("namespaces",), ("landlock",)], ids=lambda without: "-".join(without) or "nothing"
)
def test_nothing_gets_out(without):
    if {"namespaces", "landlock"} <= {*without, *isolation_here().missing}:
        pytest.skip(f"no other wall here: {isolation_here()}")
    with outside() as world:
        escapes = run_cases(without, world, ALL if not without else WALLS_MATTER)
    assert out(escapes) == []
    assert len(escapes) == (CASES if not without else CASES - len(escape_cases.BOMBS)) >= 140


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to become nobody")
def test_nothing_gets_out_as_a_user_without_rights():
    rows = as_nobody(["--level", "all walls"])
    assert [(row["kind"], row["name"]) for row in rows if row["got_out"]] == []
    assert len(rows) == CASES


def test_the_list_can_fail():
    """Without walls, and as the user who started them, the same programs do get out, where that harms nobody."""
    programs = {name: (kind, named[name]) for kind, named in escape_cases.CASES.items() for name in named}
    with (
        outside() as world,
        Sandbox(allow_unsafe=True, without=["namespaces", "landlock", "filter", "belt", "nobody"]) as sandbox,
    ):
        results = {name: sandbox.run(case_test(*programs[name], world)) for name in CONTROL}
        damages = world.damages()
    escaped = {name for name, result in results.items() if result.passed}
    assert {"secret of the user", "symbolic link", "network", "own memory for writing"} <= escaped, results
    assert {"files in the folder", "a connection"} <= set(damages)
