"""What a program does on the GPU before it trains is in its run, and all of one that does not train."""

import pytest
from tests.exec_runs import forecast

HEAD = "import torch\nlayer = torch.nn.Linear(4096, 4096).cuda()\n"
EMBEDS = """
    with torch.no_grad():
        for _ in range(40):
            features = layer(torch.zeros(4096, 4096, device="cuda"))
"""
TRAINS = """
    head = torch.nn.Linear(64, 8).cuda()
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(50):
        head(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FLOPS = 40 * 2 * 4096**3
FASTEST, SLOWEST = 35.6e12, 12e12
"""Of products in fp32 on an RTX 3090 without tensor cores: its peak, and a third of it."""


def test_a_program_that_does_not_train_has_the_time_of_all_that_it_does(tmp_path):
    whole, _ = forecast(tmp_path, EMBEDS, head=HEAD)
    assert FLOPS / FASTEST < whole.run.seconds.expected < FLOPS / SLOWEST
    assert whole.run.phases.evaluation_seconds == whole.run.seconds.expected
    assert whole.run.seconds.optimistic < whole.run.seconds.expected < whole.run.seconds.conservative
    assert whole.run.cost > 0
    assert whole.step.seconds.expected == 0
    assert any("does not train" in warning for warning in whole.warnings)


def test_what_comes_before_the_first_step_is_startup(tmp_path):
    alone, _ = forecast(tmp_path, TRAINS, head=HEAD)
    both, _ = forecast(tmp_path, EMBEDS + TRAINS, head=HEAD)
    embedded, _ = forecast(tmp_path, EMBEDS, head=HEAD)
    assert both.run.phases.training_seconds == pytest.approx(alone.run.phases.training_seconds, rel=0.01)
    before = both.run.phases.startup_seconds - alone.run.phases.startup_seconds
    assert before == pytest.approx(embedded.run.seconds.expected, rel=0.05)
    assert any(warning.startswith("Before its first step") for warning in both.warnings)
    assert not any(warning.startswith("Before its first step") for warning in alone.warnings)


def test_what_a_library_does_before_its_loop_is_what_its_first_step_has_more(tmp_path):
    library = tmp_path / "site-packages" / "trainer_of_others.py"
    library.parent.mkdir()
    body = "".join(f"{line}\n" for line in ("import torch", "def fit():", *TRAINS.strip("\n").splitlines()))
    library.write_text(body)
    call = f"import sys; sys.path.insert(0, {str(library.parent)!r})\n{HEAD}"
    both, _ = forecast(tmp_path, EMBEDS + "    import trainer_of_others; trainer_of_others.fit()\n", head=call)
    embedded, _ = forecast(tmp_path, EMBEDS, head=HEAD)
    assert both.run.phases.startup_seconds == pytest.approx(embedded.run.seconds.expected, rel=0.05)
