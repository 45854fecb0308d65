"""The length of a program, read off the loops around its optimizer step."""

import itertools
import math
import textwrap
import weakref

import pytest

from forerun.virtual.cuda.length import find_length
from forerun.virtual.cuda.loop_counters import LoopCounters


def length_in(tmp_path, code, batches=0, backward=(), loaders=None):
    """What is found where the code calls `step()`."""
    path = tmp_path / "loop.py"
    path.write_text(textwrap.dedent(code))
    found = []
    exec(
        compile(path.read_text(), str(path), "exec"),
        {
            "step": lambda: found.append(find_length(batches, backward, "", loaders)),
            "math": math,
            "count": itertools.count,
        },
    )
    return found[0]


def test_epochs_times_batches(tmp_path):
    code = """
    args = type("Args", (), {"epochs": 3})
    loader = list(range(10))
    for epoch in range(args.epochs):
        for i, batch in enumerate(loader):
            step()
    """
    length = length_in(tmp_path, code, batches=1)
    assert (length.steps, length.steps_per_epoch, length.source) == (30, 10, "the loops at loop.py:5, loop.py:4")
    assert length_in(tmp_path, code, batches=4).steps == 3 * 2  # four batches a step; the rest of an epoch is left


@pytest.mark.parametrize(
    ("update", "steps"),
    [
        ("if (i + 1) % 4 == 0: optimizer.step()", 2),
        ("if (i + 1) % 4 == 0 or i + 1 == len(loader): optimizer.step()", 3),
        ("is_due = i == len(loader) - 1 or i % 4 == 3\n    if is_due: optimizer.step()", 3),
        ("if (i + 1) % 4 and i + 1 < len(loader): continue\n    optimizer.step()", 3),
        ("if i % 4 == 3: optimizer.step()\n    if i % 9 == 0 or i == 3: print(i)", 2),
        ("if i % 4 == 3 or i % 3 == 0: optimizer.step()", 2),
    ],
)
def test_the_last_batches_make_a_step_where_the_condition_says_so(tmp_path, update, steps):
    head = "class optimizer: step = staticmethod(lambda: None)\nloader = list(range(10))\n"
    code = f"{head}for i, batch in enumerate(loader):\n    {update}\n    step()\n"
    assert length_in(tmp_path, code, batches=4).steps == steps


def test_loops_over_what_their_own_line_makes(tmp_path):
    code = """
    for rate in (0.1 * 2, 0.01):
        for epoch in range(3):
            for batch in type("Loader", (), {"__iter__": lambda self: iter([1, 2])})():
                step()
    """
    assert length_in(tmp_path, code, batches=1) is None
    assert length_in(tmp_path, code, batches=1, loaders={"loop.py:4": 20}).steps == 2 * 3 * 20


PHASES = """
loaders = {{"train": list(range(10)), "val": list(range(4))}}
{before}
for epoch in range(3):
    for phase in {phases}:
        {inside}
        for batch in loaders[phase]:
            if {condition}:
                step()
"""


@pytest.mark.parametrize(
    ("phases", "condition", "inside"),
    [
        ("['train', 'val']", "phase == 'train'", ""),
        ("('train', 'val')", "not phase != 'train'", ""),
        ("names", "is_train", "is_train = phase == 'train'"),
        ("loaders", "phase in ('train', 'trainval')", ""),
        ("loaders.keys()", "phase == 'train'", ""),
        ("[each for each in loaders]", "phase == 'train'", ""),
    ],
)
def test_one_of_two_phases_trains(phases, condition, inside, tmp_path):
    """PyTorch's tutorial of transfer learning has them; the other one evaluates."""
    code = PHASES.format(before="names = list(loaders)", phases=phases, condition=condition, inside=inside or "pass")
    length = length_in(tmp_path, code, batches=1)
    if phases.startswith("[each"):  # what a comprehension makes is not asked for
        assert length is None
    else:
        assert (length.steps, length.steps_per_epoch) == (30, 10)


def test_phases_with_their_loaders(tmp_path):
    code = """
    for epoch in range(3):
        for phase, loader in {"train": [1, 2], "val": [3]}.items():
            for batch in loader:
                if phase == "val":
                    pass
                else:
                    step()
    """
    assert length_in(tmp_path, code, batches=1) is None
    named = "both = {'train': [1, 2], 'val': [3]}\n" + textwrap.dedent(code).replace(
        '{"train": [1, 2], "val": [3]}', "both"
    )
    assert length_in(tmp_path, named, batches=1).steps == 3 * 2


def test_conditions_of_something_else_leave_all_turns(tmp_path):
    code = """
    is_on, sizes = True, [1, 2, 3]
    for size in sizes:
        for turn in range(4):
            if is_on:
                step()
    """
    assert length_in(tmp_path, code, batches=1).steps == 3 * 4


def test_loops_in_other_functions_count(tmp_path):
    code = """
    def train_epoch(loader):
        for batch in loader:
            step()
    def main():
        for epoch in range(2 * 5):
            train_epoch([1, 2, 3])
    for other in range(100):
        pass
    main()
    """
    assert length_in(tmp_path, code, batches=1).steps == 30


def test_a_turn_of_the_loop_may_be_a_micro_step_or_hold_several(tmp_path):
    code = """
    for turn in range(40):
        pass  # backward
        step()
    """
    assert length_in(tmp_path, code, backward=["loop.py:3"] * 4).steps == 10
    code = """
    for turn in range(40):
        for micro in range(4):
            pass  # backward
        step()
    """
    assert length_in(tmp_path, code, backward=["loop.py:4"] * 4).steps == 40


def test_a_loop_that_may_be_left_says_so(tmp_path):
    code = """
    for turn in range(40):
        step()
        if turn > 7:
            break
    """
    assert length_in(tmp_path, code).source.endswith("at most: one of them can be left early")


def steps_by_counters(tmp_path, code):
    """What is found at the second step, and how many steps there are."""
    path, counters, found = tmp_path / "loop.py", LoopCounters(), []
    path.write_text(textwrap.dedent(code))

    def step():
        found.append(find_length(0, (), "", None, counters))

    exec(compile(path.read_text(), str(path), "exec"), {"step": step, "count": itertools.count})
    return found[1], len(found)


@pytest.mark.parametrize(
    "code",
    [
        "n = 0\nwhile n < 57:\n for b in range(10):\n  step()\n  n += 1\n  if n >= 57: break",
        "n = 0\nfor e in range(9):\n for b in range(10):\n  step(); n += 1\n  if n == 57: break\n if n >= 57: break",
        "for i in count():\n step()\n if i + 1 > 30: break",
        "for i in count():\n if i > 30: break\n step()",
        "for e in range(6):\n for i in range(10):\n  step()\n  if i == 3: break",
        "def train(c):\n n = 0\n for e in range(9):\n  for b in range(10):\n   if n > c['most']: return\n   step(); n += 1"
        "\ntrain({'most': 33})",
        "most = None\nfor i in range(12):\n step()\n if most is not None and i >= most: break",
        "debug = False\nfor i in range(12):\n step()\n if debug and i > 2: break",
        "n, done = 0, False\nwhile not done:\n for b in range(10):\n  step(); n += 1\n  if n >= 57: done = True; break",
        "import sys\ndef main():\n n = 0\n while True:\n  for b in range(10):\n   step(); n += 1\n   if n == 57: sys.exit()\n"
        "try: main()\nexcept SystemExit: pass",
        "n, most = 0, 33\nfor e in range(10**9):\n for b in range(10):\n  step(); n += 1\n  if 0 < most <= n: break\n"
        " if 0 < most <= n: break",
        "class S:\n n = 0\ns = S()\nwhile True:\n step()\n s.n += 8\n if 200 <= s.n: break",
    ],
)
def test_counters_that_end_loops_are_read(tmp_path, code):
    length, steps = steps_by_counters(tmp_path, code)
    assert length.steps == steps
    assert ("at most" in length.source) == ("most is" in code or "debug" in code)


@pytest.mark.parametrize(
    ("each", "turns"),
    [
        ("zip(range(4), [1, 2, 3])", 3), ("enumerate(zip([1, 2], [3, 4, 5]))", 2), ("islice(range(9), 5)", 5),
        ("islice(range(9), 2, 100)", 7), ("itertools.islice([1, 2], 30)", 2), ("zip([1, 2], count())", 2),
        ("zip(range(4), itertools.cycle([1, 2]))", 4), ("zip(again([1, 2]), range(5))", 5),
        ("zip(itertools.repeat(1, 3), itertools.repeat(2), range(9))", None),
    ],
)  # fmt: skip
def test_the_shortest_of_several_ends_a_loop(tmp_path, each, turns):
    again = "def again(rows):\n while True:\n  for row in rows: yield row\n"
    code = f"import itertools\nfrom itertools import islice\n{again}for x in {each}:\n step()"
    length = length_in(tmp_path, code)
    assert (length and length.steps) == turns


def test_a_slice_of_an_unknown_length_is_at_most_that_long(tmp_path):
    assert length_in(tmp_path, "from itertools import islice\nfor x in islice(count(), 12):\n step()").steps == 12
    assert length_in(tmp_path, "for x in zip(map(abs, [1, 2]), range(3)):\n step()") is None


@pytest.mark.parametrize(
    "code",
    [
        "total = 0.0\nfor i in range(40):\n step(); total += 1.0\n if total > 5: break",
        "bad = 0\nfor i in range(40):\n step(); bad += 1\n if i == 39: bad = 0\n if bad > 5: break",
        "n = 0\nfor i in range(40):\n step(); n += 1\n if n > 100: raise ValueError",
    ],
)
def test_sums_and_rounds_without_progress_are_no_counters(tmp_path, code):
    length, _ = steps_by_counters(tmp_path, code)
    assert length.steps == 40


def test_a_counter_that_each_turn_resets_ends_that_turn_alone(tmp_path):
    code = "for e in range(4):\n n = 0\n for b in range(10):\n  n += 1\n  if n > 6: break\n  step()"
    length, steps = steps_by_counters(tmp_path, code)
    assert length.steps == steps == 24


@pytest.mark.parametrize("head", ["while True:", "for each in iter(lambda: 1, 2):", "for each in (i for i in 'ab'):"])
def test_loops_without_a_length_say_nothing(tmp_path, head):
    code = f"{head}\n    step()\n    break\n"
    assert length_in(tmp_path, code) is None


def test_no_loop_says_nothing(tmp_path):
    assert length_in(tmp_path, "step()") is None


def test_asking_for_the_length_keeps_nothing_alive():
    """Variables of a frame that was looked at stayed in it: logits of the second step at the peak of the third."""

    class Value:
        pass

    def train():
        for _ in range(3):
            value = Value()
            reference = weakref.ref(value)
            find_length(1)
            del value
            assert reference() is None

    train()


@pytest.mark.parametrize(("around", "steps"), [("for step_number in range(40)", 40), ("for _ in stream()", None)])
def test_a_loop_that_each_step_begins_anew_is_a_part_of_it(tmp_path, around, steps):
    """As DeepSpeed's engine runs the schedule of a pipeline, whose last command is the update."""
    path, found = tmp_path / "loop.py", []
    code = f"""
    def stream():
        while True:
            yield 0
    def schedule():
        yield from (["forward", "backward"], ["backward"], ["update"])
    def train_batch():
        for commands in schedule():
            for command in commands:
                if command == "update":
                    step()
    {around}:
        train_batch()
        if count():
            break
    """
    path.write_text(textwrap.dedent(code))

    def step():
        found.append(find_length(0, (), "", has_repeated=len(found) > 1))

    exec(compile(path.read_text(), str(path), "exec"), {"step": step, "count": lambda: len(found) == 3})
    assert found[:2] == [None, None]
    assert (found[2] and found[2].steps) == steps
