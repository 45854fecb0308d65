"""`%%forerun` in IPython's own shell: the forecast, the notebook afterwards, and errors as those of the cell."""

import subprocess
import sys

import pytest

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell

from forerun.notebook import CellForecast, load_ipython_extension

MADE_BEFORE = """
import torch
from torch import nn
net = nn.Linear(8, 8)
optimizer = torch.optim.AdamW(net.parameters())
weight, value, batch, losses = net.weight, net.weight.detach().clone(), torch.ones(4, 8), []
"""
TRAINING = """%%forerun t4
net.cuda()
batch = batch.cuda()
large = nn.Linear(512, 512).cuda()
for step in range(50):
    loss = net(batch).sum() + large(torch.ones(2, 512, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(step)
"""


@pytest.fixture
def cell():
    """Runs a cell; its result, whose `error_in_exec` is the cell's error."""
    shell = InteractiveShell()
    load_ipython_extension(shell)
    yield lambda text: shell.run_cell(text, store_history=True)
    shell.history_manager.end_session()


@pytest.mark.medium
def test_a_cell_is_forecast_and_the_notebook_is_as_it_was(cell, capsys):
    assert cell(MADE_BEFORE).success
    result = cell(TRAINING).result
    assert isinstance(result, CellForecast)
    assert result.forecast.gpu == "t4"
    assert result.forecast.parameters.total == 8 * 8 + 8 + 512 * 512 + 512
    assert result.forecast.memory.breakdown.optimizer_state_bytes >= 2 * 4 * 72
    assert "was stopped after 3 optimizer steps" in repr(result)
    assert result._repr_html_().startswith("<iframe")
    assert "cell 2:8" in result._repr_html_(), "the line of the cell, counted with the magic's own"
    left = cell(
        "(net.weight is weight, torch.equal(weight, value), batch.sum().item(), losses, step, 'large' in globals(), "
        "optimizer.param_groups[0]['params'][0] is weight, len(optimizer.state), 'loss' in globals())"
    )
    assert left.result == (True, True, 32.0, [0, 1], 2, False, True, 0, False)
    assert cell("net(batch).sum().backward(); optimizer.step(); torch.equal(weight, value)").result is False
    capsys.readouterr()


def test_a_second_run_counts_its_own_parameters(cell, capsys):
    cell("import torch\nfrom torch import nn\nkept = []")
    text = """%%forerun t4,a10 --steps 1
    net = nn.Linear(8, 8).cuda()
    kept.append(net)
    net(torch.ones(1, 8).cuda()).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    """
    first, second = (cell(text.replace("    ", "")).result for _ in range(2))
    assert first.forecast.parameters.total == second.forecast.parameters.total == 72
    assert [each.gpu for each in second.forecasts] == ["t4", "a10"]
    assert "Forecast by GPU" in repr(second)
    capsys.readouterr()


@pytest.mark.medium
def test_an_error_is_the_cells_own(cell, capsys):
    cell("import torch")
    result = cell("%%forerun t4\nx = torch.ones(3).cuda()\ny = 5\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    output = capsys.readouterr().out
    assert "cell 2:4" in output
    assert "run_program" not in output
    assert cell("(y, 'x' in globals())").result == (5, False)
    result = cell("%%forerun t4\nblocks = []\nwhile True:\n    blocks.append(torch.empty(2**30, device='cuda'))")
    assert isinstance(result.error_in_exec, torch_error())
    output = capsys.readouterr().out
    assert "Does not fit: needs 4.00 GiB beside 12.0 GiB, t4 has 14.6 GiB" in output
    assert "recorder.py" not in output
    assert not cell("torch.cuda.is_available()").result


def torch_error():
    import torch

    return torch.OutOfMemoryError


def test_the_whole_cell_runs_where_it_is_asked_for(cell, capsys):
    cell("import torch\nfrom torch import nn\ncount = 0")
    text = "net = nn.Linear(2, 2).cuda()\no = torch.optim.SGD(net.parameters(), lr=0.1)\nfor _ in range(9):\n"
    text += "    net(torch.ones(1, 2).cuda()).sum().backward(); o.step(); o.zero_grad(); count += 1\n"
    result = cell(f"%%forerun t4 --to-end\n{text}").result
    assert result.forecast.script.steps_seen == cell("count").result == 9
    assert "was stopped" not in repr(result)
    capsys.readouterr()


def test_bad_options_are_usage_errors(cell, capsys):
    for line, message in (("t5", "Nearest: t4"), ("", "required: gpu")):
        assert not cell(f"%%forerun {line}\n1").success
        assert message in capsys.readouterr().err


def test_the_module_is_the_extension_and_loading_it_imports_no_torch():
    code = (
        "import sys, forerun; from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell();"
        "shell.run_line_magic('load_ext', 'forerun'); assert 'forerun' in shell.magics_manager.magics['cell'];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")
def test_a_kernel_shows_the_page(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    setting = "import torch\nfrom torch import nn\nbatch, losses = torch.ones(4, 8), []"
    remade = "net = nn.Linear(8, 8).cuda()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)"
    training = TRAINING.replace("forerun t4", "forerun t4 --steps 2").replace("net.cuda()", remade)
    cells = ["%load_ext forerun", setting, training, "print(batch.sum(), losses)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (page,) = [output for output in notebook.cells[2].outputs if output.output_type == "execute_result"]
    assert page["data"]["text/html"].startswith("<iframe")
    assert "What is alive at the peak" in page["data"]["text/html"]
    assert "cell 3 on t4" in page["data"]["text/plain"]
    assert "tensor(32.) [0]" in notebook.cells[3].outputs[0]["text"]
    assert list(tmp_path.iterdir()) == []
