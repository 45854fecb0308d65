"""Steps that are others behind a pass of a loop."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

STAGES = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for size in SIZES:
    for epoch in range(4):
        for batch in range(20):
            loss = model(torch.zeros(4, 3, size, size, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for batch in range(5):
                model(torch.zeros(64, 3, 96, 96, device="cuda"))
"""


TWO = """
import torch
from torch import nn
critic, generator = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
of_critic, of_generator = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, generator))
for turn in range(100):
    for _ in range(2):
        loss = critic(torch.randn(32, 64, device="cuda")).mean()
        if turn % 16 == 0:
            loss = loss + critic(torch.randn(99, 64, device="cuda")).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    of_generator.zero_grad()
    critic(generator(torch.randn(320, 64, device="cuda"))).mean().backward()
    of_generator.step()
"""


def test_what_another_optimizer_learns_between_two_steps_is_no_later_step(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TWO)
    command = ["python", str(script)]
    (forecast,), _ = forecast_program(parse_command(command), command, [device("t4")])
    assert forecast.rests
    assert not [text for text in forecast.warnings if "are others" in text]


@pytest.mark.parametrize(("sizes", "times"), [((32, 64), 4.4), ((64, 32), 0.23), ((48, 48), None)])
def test_larger_pictures_in_a_later_turn_of_an_outer_loop(tmp_path, sizes, times):
    """The arithmetic of the two convolutions goes with the pictures that they make, of 2 and 4 fewer rows and columns."""
    script = tmp_path / "train.py"
    script.write_text(STAGES.replace("SIZES", f"iter({sizes})"))  # of which nobody knows what comes
    command = ["python", str(script)]
    (forecast,), _ = forecast_program(parse_command(command), command, [device("t4")])
    texts = [text for text in forecast.warnings if "are others" in text]
    assert len(texts) == (times is not None)
    if times is not None:
        assert "train.py:7" in texts[0]
        share = float(texts[0].partition("others: ")[2].partition(" times")[0])
        assert share == pytest.approx(times, rel=0.1)


def test_sizes_in_a_list_are_stages_that_are_run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STAGES.replace("SIZES", "(32, 64)"))
    command = ["python", str(script)]
    (forecast,), _ = forecast_program(parse_command(command), command, [device("t4")])
    assert any("trains in 2 stages" in text for text in forecast.warnings)
    assert not any("are others" in text for text in forecast.warnings)
