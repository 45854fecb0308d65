"""What of a program's other files trains."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command
from forerun.virtual.cuda.own_names import training_names

MODEL = """
import torch
class Model:
    def __init__(self):
        self.net = torch.nn.Linear(512, 256).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def backward_net(self):
        self.net(torch.randn(8, 512, device="cuda")).sum().backward()
    def optimize_parameters(self):
        self.optimizer.zero_grad()
        self.backward_net()
        self.optimizer.step()
    def forward(self):
        return self.net
"""
FACTORY = """
import importlib
def create(name):
    return importlib.import_module(f"models.{name}_model").Model()
"""
TRAIN = """
import torch
from models import create
model = create("plain")
for epoch in range(4):
    for turn in range(100):
        model.optimize_parameters()
        if (turn + 1) % 50 == 0:
            torch.save(model.net.state_dict(), "latest.pt")
    with torch.no_grad():
        model.forward()(torch.randn(64, 512, device="cuda"))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text(FACTORY)
    (tmp_path / "models" / "plain_model.py").write_text(MODEL)
    (tmp_path / "models" / "not_python_3.py").write_text("print 'an old file'")
    (tmp_path / "another.py").write_text("def evaluate(loss):\n    loss.backward()\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_methods_that_lead_to_a_backward_pass(folder):
    """Of the package that the script imports, not of a script beside it."""
    assert training_names(str(folder / "train.py")) == {"backward_net", "optimize_parameters"}


def test_files_that_import_one_another(tmp_path):
    (tmp_path / "train.py").write_text("from engine import epoch\nimport os, no_such_module\n")
    (tmp_path / "engine.py").write_text("import steps, train\ndef epoch():\n    steps.one()\n    log()\n")
    (tmp_path / "steps.py").write_text("import engine\ndef one(): loss.backward()\ndef log(): pass\n")
    assert training_names(str(tmp_path / "train.py")) == {"epoch", "one"}


def test_folders_of_data_beside_a_module_of_their_name_are_not_walked_through(tmp_path):
    (tmp_path / "train.py").write_text("import data\n")
    (tmp_path / "data.py").write_text("def one(): loss.backward()\n")
    deep = tmp_path / "data" / "pictures" / "cats"
    deep.mkdir(parents=True)
    (deep / "no_part.py").write_text("def two(): loss.backward()\n")
    assert training_names(str(tmp_path / "train.py")) == {"one"}


def test_loops_over_what_another_file_trains_are_followed(folder):
    """As CycleGAN's script has it: its evaluations and checkpoints were not seen."""
    command = ["python", str(folder / "train.py")]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.exit_code, run.failed_rest, forecast.run.total_steps) == (0, "", 400)
    assert {(rest.line, rest.times) for rest in forecast.rests} == {("train.py:8", 8), ("train.py:6", 4)}
    assert forecast.run.checkpoints_written == 8
