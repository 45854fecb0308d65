"""Steps of several loaders, loops and settings: those side by side in one step count once, those behind one another all."""

import pytest
from tests.exec_runs import forecast

LOADERS = """
    from itertools import cycle
    from torch.utils.data import DataLoader, TensorDataset
    def rows(count, batch):
        return DataLoader(TensorDataset(torch.randn(count, 64)), batch)
    def forever(loader):
        while True:
            for batch in loader:
                yield batch
    labelled, others = rows(200, 10), rows(600, 10)
"""


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for (x,), (u,) in zip(labelled, others):\n            update()\n", 2 * 20),
        ("for (x,), (u,) in zip(cycle(labelled), others):\n            update()\n", 2 * 60),
        ("more = iter(others)\n        for (x,) in labelled:\n            next(more); update()\n", 2 * 20),
        ("more = iter(cycle(labelled))\n        for (x,) in others:\n            next(more); update()\n", 2 * 60),
        (
            "more = forever(others)\n        for i, (x,) in enumerate(labelled):\n            [next(more) for _ in range(7)]\n"
            "            model(x.cuda()).sum().backward()\n"
            "            if i % 2 == 1: optimizer.step(); optimizer.zero_grad()\n", 2 * 10,
        ),
    ],
)  # fmt: skip
def test_a_batch_of_each_of_two_loaders_is_one_step(tmp_path, loop, steps):
    document, _ = forecast(tmp_path, f"{LOADERS}    for epoch in range(2):\n        {loop}")
    assert (document.run.total_steps, document.run.steps_per_epoch) == (steps, steps // 2)


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for (x,) in labelled: update()\n        for (x,) in others: update()\n", 2 * (20 + 60)),
        ("run(labelled); run(others)\n", 2 * (20 + 60)),
        ("for (x,) in chain(labelled, others): update()\n", 2 * (20 + 60)),
        ("for (x,) in labelled: update()\n        with torch.no_grad():\n            for (x,) in others: model(x.cuda())\n", 40),
        ("for (x,) in labelled: update()\n        for x in iter(source, None): update()\n", 40),
        ("run(labelled)\n        if epoch % 2 == 0:\n            run(others)\n", 40),
        ("run(labelled)\n        if epoch > 0:\n            run(others)\n", 40),
    ],
)  # fmt: skip
def test_several_loops_in_each_turn_of_one_are_counted(tmp_path, loop, steps):
    head = (
        f"{LOADERS}    from itertools import chain\n    def run(loader):\n        for (x,) in loader:\n            update()\n"
        "    source = iter([1, 2, 3, None] * 9).__next__\n"
    )
    document, _ = forecast(tmp_path, f"{head}    for epoch in range(2):\n        {loop}")
    assert document.run.total_steps == steps
    is_open = any("makes further steps in each turn" in warning for warning in document.warnings)
    assert is_open == ("source" in loop)


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for rate, width in itertools.product([0.1, 0.2, 0.3], [64, 512]):\n        update(width)\n", 6),
        ("for rate, width in zip([0.1, 0.2, 0.3], (64, 512, 1024)):\n        update(width)\n", 3),
        ("for pair in itertools.combinations(range(5), 2):\n        for _ in range(4):\n            update()\n", 40),
    ],
)
def test_all_that_itertools_makes_of_settings_is_counted(tmp_path, loop, steps):
    document, _ = forecast(tmp_path, f"    import itertools\n    {loop}")
    assert document.run.total_steps == steps


def test_loops_of_two_optimizers_in_each_turn_are_counted_once(tmp_path):
    """A policy's and its value's, as PPO has them: each is a loop of its own."""
    document, _ = forecast(
        tmp_path,
        """
        other = nn.Linear(64, 8).cuda()
        second = torch.optim.SGD(other.parameters(), 0.1)
        for turn in range(10):
            for _ in range(5):
                update()
            for _ in range(20):
                other(torch.randn(32, 64).cuda()).square().mean().backward()
                second.step()
                second.zero_grad()
        """,
    )
    assert document.run.total_steps == 10 * (5 + 20)
