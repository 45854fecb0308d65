"""Programs that train one model after the other, and those that run out of memory and go on."""

import gc

from tests.exec_runs import run

from forerun.hardware.catalogue import device

WIDTH, LAYERS = 2048, 6
MODEL_BYTES = 4 * LAYERS * (WIDTH**2 + WIDTH)
TRIALS = f"""
import gc, sys, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.pow(2).mean()

def trial(rows, steps=5):
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(rows, {WIDTH}, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run_code(tmp_path, code, gpus):
    """Forecasts of a script on each GPU, and its run on the first."""
    path = tmp_path / "train.py"
    path.write_text(code)
    return run(str(path), gpus=gpus)


def test_a_model_that_the_program_drops_is_freed(tmp_path, capsys):
    (forecast,), result = run_code(
        tmp_path, TRIALS + "for rows in (64, 64, 64):\n    trial(rows)\n    gc.collect()\n"
        "    print('LEFT', torch.cuda.memory_allocated())\n", gpus=("t4",),
    )  # fmt: skip
    assert result.error == ""
    left = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("LEFT")]
    assert max(left) < 0.2 * MODEL_BYTES  # workspaces of products
    assert forecast.memory.peak_allocated_bytes < 6 * MODEL_BYTES


HALVING = (
    TRIALS
    + """
rows = 2**20
while True:
    try:
        trial(rows)
        break
    except torch.cuda.OutOfMemoryError:
        rows //= 2
        torch.cuda.empty_cache()
print("ROWS", rows)
"""
)


def test_memory_is_that_of_the_training_that_went_through(tmp_path, capsys):
    gc.disable()  # what failed is freed at once, as on a card: nothing of ours holds it in a cycle
    try:
        (small, large), result = run_code(tmp_path, HALVING, gpus=("t4", "a100-80gb"))
    finally:
        gc.enable()
    rows = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("ROWS")]
    assert rows[1] > 2 * rows[0]  # each card has a run of its own
    for forecast, batch in zip((small, large), rows, strict=True):
        kept = 4 * WIDTH * batch * (LAYERS + 1)
        assert forecast.fits
        assert kept < forecast.memory.peak_allocated_bytes < kept + 4 * 4 * WIDTH * batch + 6 * MODEL_BYTES
        assert forecast.memory.device_bytes.expected < device(forecast.gpu).memory_bytes
    assert any("ran out of memory 3 times and went on" in each for each in small.warnings)
    assert result.out_of_memory is None


def test_what_fails_behind_the_last_step_does_not_count(tmp_path):
    code = (
        TRIALS
        + "for rows in (64, 2**20):\n    try:\n        trial(rows)\n    except torch.OutOfMemoryError:\n        pass\n"
    )
    (forecast,), _ = run_code(tmp_path, code, gpus=("t4",))
    assert forecast.fits
    assert forecast.memory.peak_allocated_bytes < 6 * MODEL_BYTES
    assert any("ran out of memory once and went on" in each for each in forecast.warnings)


def test_an_optimizer_that_failed_before_its_first_step_gives_way(tmp_path):
    code = (
        TRIALS
        + """
def too_large():
    model = nn.Linear(2**15, 2**16, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = model.weight.detach()
    optimizer.step()
try:
    too_large()
except torch.OutOfMemoryError:
    gc.collect()
trial(64)
"""
    )
    (forecast,), result = run_code(tmp_path, code, gpus=("t4",))
    assert result.error == ""
    assert forecast.script.steps_seen == 3
    assert forecast.fits
