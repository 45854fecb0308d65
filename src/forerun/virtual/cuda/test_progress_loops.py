"""Loops that get on only by a value that nobody can know: they end, and in as many turns as they get on."""

import pytest

import forerun

HEAD = """import torch
turns = 0
x = torch.randn(32, device="cuda")
def turn():
    global turns
    turns += 1
    return (x * x).mean()
t, h = 0.0, 0.25
"""


def turns_of(body, tmp_path):
    """How often the loop of a program turned."""
    path = tmp_path / "program.py"
    path.write_text(HEAD + body, encoding="utf-8")
    names = {}
    with forerun.virtual_cuda("a100-40gb"):
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names["turns"]


@pytest.mark.parametrize(
    "body",
    [
        "while t < 1:\n    error = turn().item() / 1e-3\n    if error < 1:\n        t += h\n",
        "while t < 1:\n    error = turn().item()\n    if error > 1e-3:\n        pass\n    else:\n        t += h\n",
        "while t < 1:\n    if 1e-3 >= turn().item():\n        t = t + h\n",
        "while t < 1:\n    if not turn() > 1e-3:\n        t += h\n",
        "while t < 1:\n    score = turn().item()\n    if score > 100:\n        t, last = t + h, score\n",
    ],
)
def test_a_loop_gets_on_in_every_turn(body, tmp_path):
    assert turns_of(body, tmp_path) == 4


def test_what_does_not_help_is_answered_otherwise(tmp_path):
    body = "while t < 1:\n    error = 1 - turn().item()\n    if error < -0.5:\n        t += h\n"
    assert 4 < turns_of(body, tmp_path) < 60


def test_a_loop_that_gets_on_by_itself_is_left_alone(tmp_path):
    body = (
        "seen = []\nwhile t < 1:\n    loss = turn().item()\n    seen.append(loss)\n    if loss < 0.5:\n        t += h\n"
        "    t += h\nassert seen == [1.0] * 4, seen\n"
    )
    assert turns_of(body, tmp_path) == 4
