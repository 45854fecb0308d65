"""Turns of a script's loop and its optimizer steps, by where backward passes are made."""

import sys

import pytest
from tests.exec_runs import forecast


@pytest.mark.parametrize(
    ("turn", "steps"),
    [
        ("for _ in range(4):\n            look(next(batches))\n        optimizer.step()", None),  # by a function
        ("for _ in range(4):\n            model(next(batches)).sum().backward()\n        optimizer.step()", 1000),
        ("model(next(batches)).sum().backward()\n        if i % 4 == 3: optimizer.step()", 250),
        ("(model(next(batches)) + model(next(batches))).sum().backward()\n        optimizer.step()", 1000),
    ],
)
def test_turns_over_an_endless_loader_are_steps_by_where_their_backward_passes_are(tmp_path, turn, steps):
    body = f"""
    from torch.utils.data import DataLoader

    def cycle(loader):
        while True:
            for batch in loader:
                yield batch.cuda()

    def look(batch):
        model(batch).sum().backward()

    batches = cycle(DataLoader(torch.randn(320, 64), 32))
    for i in range(1000):
        {turn}
    """
    document, _ = forecast(tmp_path, body)
    assert (document.run.total_steps if document.script.length_known_from else None) == steps


SCHEDULE = """
def run(model, rows):
    for part in rows.chunk(4):
        model(part).square().mean().backward()
"""


@pytest.mark.parametrize(("calls", "steps"), [(1, 50), (2, 25)])
def test_one_call_may_make_several_passes_in_a_turn(tmp_path, monkeypatch, calls, steps):
    """As the schedule of a pipeline does; a turn of accumulation calls once for each part of a step."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "schedule_of_parts.py").write_text(SCHEDULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "schedule_of_parts", raising=False)
    body = f"""
    from schedule_of_parts import run
    for turn in range(50):
        run(model, torch.randn(64, 64, device="cuda"))
        if turn % {calls} == {calls} - 1:
            optimizer.step()
            optimizer.zero_grad()
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == steps
