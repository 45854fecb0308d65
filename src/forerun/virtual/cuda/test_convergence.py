"""Loops that end when something has converged, as programs write them: they end here too, and say after how many turns.

Each would go on for ever otherwise: unknown numbers are 1, so an error never falls.
"""

import pytest
import torch

import forerun
from forerun.virtual.cuda.convergence import MOST_ROUNDS, ROUNDS

HEAD = """import torch
turns = 0
x = torch.randn(32, device="cuda")
def turn():
    global turns
    turns += 1
    return (x * x).mean()
"""


def turns_of(body, tmp_path, name="program"):
    """How often the loop of a program turned, and what was assumed."""
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + body, encoding="utf-8")
    names = {}
    with forerun.virtual_cuda("a100-40gb") as gpu:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        return names["turns"], gpu.assumed


@pytest.mark.parametrize(
    "body",
    [
        "error = 1e9\nwhile error > 1e-4:\n    error = turn()\n",
        "while turn().item() > 1e-4:\n    pass\n",
        "while not turn() < 1e-4:\n    pass\n",
        "while turn().item() < 5.0:\n    pass\n",
        "while True:\n    if turn() < 1e-4:\n        break\n",
        "while True:\n    error = turn()\n    if error.item() > 1e-4:\n        continue\n    else:\n        break\n",
        "def is_done(error):\n    return bool(error < 1e-4)\nwhile not is_done(turn()):\n    for _ in range(2):\n        break\n",
        "def solve():\n    while True:\n        if turn() < 1e-4:\n            return\nsolve()\n",
        "last = torch.tensor(0.0).cuda()\nwhile True:\n    s = turn()\n    if abs(s - last) / s <= 1e-4:\n        break\n    last = s\n",
    ],
)
def test_a_loop_with_one_end_converges(body, tmp_path):
    turns, assumed = turns_of(body, tmp_path)
    assert ROUNDS <= turns <= ROUNDS + 2
    assert any("when a loop has converged, answered with after" in line for line in assumed), assumed


def test_each_run_of_a_function_has_its_own_turns(tmp_path):
    body = "def solve():\n    error = 1.0\n    while error > 1e-4:\n        error = turn()\nfor _ in range(5):\n    solve()\n"
    assert turns_of(body, tmp_path)[0] == 5 * ROUNDS


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        ("n = 0\nwhile turn() > 1e-4 and n < 40:\n    n += 1\n", 41),
        ("for n in range(40):\n    if turn() < 1e-4:\n        break\n", 40),
        ("n = 0\nwhile n < 40:\n    n += 1\n    if turn() < 1e-4:\n        break\n", 40),
        (
            "n = 0\ntry:\n    while True:\n        n += 1\n        if turn() < 1e-4:\n            break\n        if n == 40:\n            raise ValueError\n"
            "except ValueError:\n    pass\n",
            40,
        ),
        ("total = 0.0\nn = 0\nwhile n < 40:\n    total += turn().item()\n    n += 1\n", 40),
    ],
)
def test_a_loop_that_ends_otherwise_is_left_to_do_so(body, turns, tmp_path):
    found, assumed = turns_of(body, tmp_path)
    assert found == turns
    assert not any("has converged" in line for line in assumed)


SOLVER = """
def reach(time, until):
    global turns
    while until > time:
        time = time + 0.5 * (x * x).mean()
        turns += 1
    return time
times = torch.linspace(0.0, 30.0, 21, dtype=torch.float64, device="cuda")
now = times[0]
for until in times[1:]:
    now = reach(now, until)
    assert now >= until
    assert now - until < 0.5
"""


def test_a_solver_goes_on_until_its_time_is_that_asked_for(tmp_path):
    """How far a step goes is not known, and taken for one number; where it ends follows from that."""
    assert turns_of(SOLVER, tmp_path)[0] == 60


@pytest.mark.medium
def test_nothing_is_endless(tmp_path):
    """Two questions, of which none alone ends the loop."""
    body = "while (x.sum() > 0).item() or turns < 0:\n    turns += 1\n"
    assert turns_of(body, tmp_path)[0] == MOST_ROUNDS


@pytest.mark.parametrize(("trains", "turns"), [(True, 31), (False, ROUNDS)])
def test_a_loop_that_trains_is_not_counted(trains, turns, tmp_path):
    """Each step begins anew, so that this one is left by `check`; the same loop without a step converges."""
    body = (
        "m = torch.nn.Linear(4, 4).cuda()\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "def check():\n    if turns > 30:\n        raise StopIteration\n"
        "try:\n    while True:\n        loss = m(torch.randn(2, 4, device='cuda')).mean()\n        turn()\n"
        + "        loss.backward()\n        o.step()\n" * trains
        + "        check()\n        if loss.item() < 1e-4:\n            break\nexcept StopIteration:\n    pass\n"
    )
    found, assumed = turns_of(body, tmp_path)
    assert found == turns
    assert any("has converged" in line for line in assumed) is not trains


def test_a_known_value_decides_by_itself(tmp_path):
    body = "left = torch.tensor(25, device='cuda')\nwhile left > 0:\n    left -= 1\n    turn()\n"
    turns, assumed = turns_of(body, tmp_path)
    assert turns == 25
    assert assumed == []
    assert torch.cuda.is_available() is False
