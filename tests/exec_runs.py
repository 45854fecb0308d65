"""Scripts of this folder on a virtual GPU, for the tests of `forerun exec`."""

import textwrap
from pathlib import Path

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"


def run(script: str, *arguments: str, gpus=("t4",), **options):
    """Forecasts of a script of this folder, and its run."""
    command = ["python", str(SCRIPTS / script), *arguments]
    return forecast_program(parse_command(command), command, [device(name) for name in gpus], **options)


HEAD = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def update(rows=32):
    loss = nn.functional.cross_entropy(model(torch.randn(rows, 64, device="cuda")), torch.arange(rows).cuda() % 8)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

DATA_PARALLEL = """
    wrapped = nn.DataParallel(nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for batch in range(9):
        outputs = wrapped(torch.randn(4096, 64))
        assert outputs.shape == (4096, 8)
        outputs.square().mean().backward()
        optimizer.step()
        assert all(parameter.grad is not None for parameter in wrapped.parameters())
        optimizer.zero_grad()
"""


def forecast(tmp_path, body, ranks=None, head=HEAD, cards=None, **options):
    """The forecast of a script and its run."""
    path = tmp_path / "train.py"
    path.write_text(head + textwrap.dedent(body))
    command = ["python", str(path)]
    forecasts, run = forecast_program(
        parse_command(command, ranks, cards=cards), command, [device("rtx-3090")], **options
    )
    assert run.exit_code == 0, run.error
    return forecasts[0], run
