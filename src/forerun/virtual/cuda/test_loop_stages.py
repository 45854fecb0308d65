"""Turns of a loop from which on it trains otherwise, by its conditions."""

import ast

import pytest

from forerun.virtual.cuda.loop_stages import CountedLoop, LoopStages, StagedTurns, staged_loops
from forerun.virtual.cuda.records import Stage, StepSpan, TrainingLoop
from forerun.virtual.cuda.staged_turns import Turns, enumerated_turns, known_turns

SPAN = StepSpan(0, 1, (1,), 0, 1, 0, (), ())


def loop_of(body: str) -> CountedLoop | None:
    tree = ast.parse(f"for epoch in range(10):\n    {body}\n    train()\n")
    return staged_loops(tree, "train.py", lambda node: isinstance(node, ast.For)).get("train.py:1")


@pytest.mark.parametrize(
    ("body", "boundaries"),
    [
        ("if epoch == FREEZE: thaw(model)", [3]),
        ("if epoch + 1 == FREEZE: thaw(model)", [2]),
        ("if epoch >= FREEZE: loss = loss + penalty()", [3]),
        ("if 2 <= epoch < 5: rate = 0.1", [2, 5]),
        ("if epoch in (2, 7): loader = loader_of(epoch)", [2, 7]),
        ("size = 128 if epoch < settings['small'] else 224", [4]),
        ("is_thawed = epoch > 0.5 * TURNS", [6]),
        ("length = min(1024, 128 * (1 + epoch // 3))", [3, 6, 9]),
        ("length = 128 + 8 * epoch", [5, 9]),
        ("size = SIZES[epoch]", [4]),
        ("if epoch == 0: prepare(model)", []),
        ("if epoch == 99: thaw(model)", []),
        ("if epoch == nobody_knows: thaw(model)", []),
    ],
)
def test_the_turns_with_which_stages_begin(body, boundaries):
    loop = loop_of(body)
    assert loop is not None
    assert (
        loop.boundaries(
            Turns(range(10)), {"FREEZE": 3, "TURNS": 10, "SIZES": [128] * 4 + [224] * 6, "settings": {"small": 4}}
        )
        == boundaries
    )


@pytest.mark.parametrize(
    "body",
    [
        "if epoch == 5: print('half')",
        "if epoch > 5: scheduler.step()",
        "if epoch == 9: torch.save(model.state_dict(), 'last.pt')",
        "if epoch > 5: break",
        "if epoch == 9: export(model); return",
        "is_last = epoch == 9\n    if is_last: export(model); break",
        "if epoch % 5 == 0: grow(model)",
        "if loss < best: best = loss",
        "place = epoch % 3",
        "name = f'epoch{epoch}'",
    ],
)
def test_what_tells_saves_or_comes_again_begins_no_stage(body):
    assert loop_of(body) is None


def test_rates_of_learning_begin_no_stage():
    loop = loop_of("rate = 0.1 * (1 - epoch / TURNS)")
    assert loop is not None
    assert loop.boundaries(Turns(range(10)), {"TURNS": 10}) == []


def test_of_a_long_loop_the_turns_near_the_limits_are_asked():
    loop = loop_of("if epoch > start: discriminator.requires_grad_(True)")
    assert loop is not None
    assert loop.boundaries(Turns(range(0, 10_000_000, 2)), {"start": 50_000}) == [25_001]


def test_turns_between_stages_are_left_out_once_enough_was_seen():
    ended: list[Stage] = []
    enough = iter([False, True, False, False, False, False])
    stages = LoopStages()
    stages.follow(lambda: TrainingLoop([SPAN], 0, None, "train.py:1"), lambda: next(enough), ended.append)
    stages._line, stages._boundaries = "train.py:1", [4, 6]
    assert list(StagedTurns(Turns(range(8)), stages)) == [0, 1, 4, 5, 6, 7]
    assert [(stage.share, stage.until) for stage in ended] == [
        (0.5, "turn 5 of the loop at train.py:1"),
        (0.25, "turn 7 of the loop at train.py:1"),
    ]


def test_what_lists_give_the_turns_begins_stages():
    loop = staged_loops(ast.parse("for i, (size, rows) in enumerate(phases): train()"), "t", lambda node: True)["t:1"]
    phases = [(64, 8), (64, 8), (128, 8), (128, 4)]
    assert loop.boundaries(enumerated_turns(phases), {}) == [2, 3]
    loop = staged_loops(ast.parse("for size in sizes: train()"), "t", lambda node: True)["t:1"]
    assert loop.boundaries(known_turns([64, 64, 96]), {"size": 96}) == [2]
    assert loop.boundaries(known_turns(range(9)), {}) == []


ACCUMULATING = """
for step in range(300):
    for part, begin in enumerate(range(0, 512, 64)):
        rows = begin + 64
        loss.backward()
    optimizer.step()
for size in sizes:
    loss.backward()
    optimizer.step()
"""


def test_a_loop_that_makes_the_backward_passes_of_one_step_has_no_stages():
    assert list(staged_loops(ast.parse(ACCUMULATING.strip()), "t", lambda node: "backward" in ast.unparse(node))) == [
        "t:6"
    ]


def test_numbers_of_a_range_are_no_sizes_however_they_are_counted():
    source = "for i, begin in enumerate(tqdm(range(0, 512, 64))): train()"
    assert staged_loops(ast.parse(source), "t", lambda node: True) == {}


def test_batches_are_not_looked_at():
    class Loader:
        def __len__(self):
            return 9

        def __iter__(self):
            return iter("abcdefghi")

    source = "for i, size in enumerate(loader):\n    rows = size + 1\n    if i > 4: train(2)\n    train(1)"
    loop = staged_loops(ast.parse(source), "t", lambda node: True)["t:1"]
    turns = enumerated_turns(Loader(), 1)
    assert turns is not None
    assert loop.boundaries(turns, {"size": 3, "rows": 4}) == [4]
    values = turns.values()
    assert [values(0), values(5)] == [(1, "a"), (6, "b")]
