"""Stages by counters that programs raise themselves."""

import ast

import pytest
from tests.exec_runs import forecast

from forerun.virtual.cuda.later_loops import LOOPS
from forerun.virtual.cuda.loop_stages import decides
from forerun.virtual.cuda.own_counters import CROSSES, OwnCounters, mark_counters


@pytest.mark.parametrize(
    ("body", "is_marked"),
    [
        ("step += 1\n    if step == 500: thaw(model)", True),
        ("self.step = self.step + 1\n    if self.step >= self.start: loss = loss + penalty()", True),
        ("step += 1\n    size = 64 if step < limits.small else 128", True),
        ("if step == 500: thaw(model)", False),
        ("step += 1\n    if step > 500: print(step)", False),
        ("step += 1\n    if step % 500 == 0: thaw(model)", False),
        ("step += 1\n    if step >= most: break", False),
        ("step += 1\n    if loss > step: thaw(model)", False),
        ("step += 1\n    if step > len(loader): thaw(model)", False),
    ],
)
def test_conditions_of_counters_that_change_how_a_loop_trains(body, is_marked):
    tree = ast.parse(f"for batch in loader:\n    backward()\n    {body}")
    assert (
        mark_counters(tree, "t", lambda node: isinstance(node, LOOPS), lambda each: decides(each, lambda _: False))
        is is_marked
    )
    assert (CROSSES in ast.unparse(tree)) is is_marked


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("eq", False, [True, False]), ("ge", False, [True, True]), ("gt", False, [True, True]), ("lt", True, [False] * 2)],
)
def test_a_condition_is_answered_as_behind_its_limit(kind, before, after):
    counters, steps = OwnCounters(), iter(range(20))
    counters.steps = lambda: next(steps)
    assert [counters.crosses(16 * turn, 1600, kind, "t:3") for turn in range(1, 4)] == [before] * 3
    assert counters.next_stage(50) is None  # the run is over before
    stage = counters.next_stage(1000)
    assert stage is not None
    assert stage[0] == 99
    assert [counters.crosses(16 * turn, 1600, kind, "t:3") for turn in range(4, 6)] == after
    assert counters.next_stage(1000) is None


def test_what_does_not_rise_has_no_stages():
    counters = OwnCounters(steps=lambda: 3)
    assert counters.crosses(1.5, 3, "ge", "t:3") is False
    assert counters.crosses(2, 9, "ge", "t:4") is False
    assert counters.next_stage(100) is None


def test_a_backbone_that_thaws_at_a_step_of_its_own_counting(tmp_path):
    body = """
    backbone, head = nn.Linear(64, 4096).cuda(), nn.Linear(4096, 8).cuda()
    model = nn.Sequential(backbone, nn.ReLU(), head)
    backbone.requires_grad_(False)
    optimizer = torch.optim.AdamW(head.parameters())
    global_step = 0
    for epoch in range(10):
        for batch in range(50):
            update(4096)
            global_step += 1
            if global_step == 200:
                backbone.requires_grad_(True)
                optimizer.add_param_group({"params": backbone.parameters()})
        with torch.no_grad():
            [model(torch.randn(4096, 64, device="cuda")) for turn in range(20)]
        torch.save(model.state_dict(), "model.pt")
    """
    document, _ = forecast(tmp_path, body)
    (first,) = document.earlier_loops
    assert (document.run.total_steps, first.steps, document.run.checkpoints_written) == (500, 200, 10)
    assert [rest.times for rest in (*first.rests, *document.rests) if not rest.is_last] == [4, 6]
    assert document.step.seconds.expected > 1.1 * first.step_seconds
    assert "until step 200, by the condition at train.py:24" in "".join(document.warnings)
