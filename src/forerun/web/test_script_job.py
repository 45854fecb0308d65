"""A pasted script is forecast behind walls, or not at all; what becomes of it is a document or a clear error."""

import sys

import pytest

from forerun.errors import InvalidSettings, NotSupported
from forerun.web import script_job
from forerun.web.script_job import forecast_script

SCRIPT = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
open("left-behind.txt", "w").write("x")
"""


def cell(code):
    """Another program in place of the cell, which is given the same words."""
    return (sys.executable, "-c", code)


def test_no_walls_no_run():
    refuses = cell("import sys; print('namespaces: not permitted', file=sys.stderr); sys.exit(77)")
    with pytest.raises(NotSupported, match=r"no isolation.*namespaces: not permitted.*forerun exec"):
        forecast_script("x = 1", "t4", print, cell=refuses)


def test_what_leaves_no_document_says_its_last_line():
    lines = []
    broken = cell("import sys; print('one\\ntwo', file=sys.stderr); sys.exit(2)")
    with pytest.raises(InvalidSettings, match="exit code 2.*two"):
        forecast_script("x = 1", "t4", lines.append, cell=broken)
    assert lines == ["one", "two"]


def test_it_gets_a_folder_and_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    code = "import json, os, sys; print(json.dumps([os.listdir(sys.argv[1]), dict(os.environ), sys.argv[2:]]))"
    files, environment, command = forecast_script("x = 1", "t4", print, cell=cell(code))
    assert files == ["train.py"]
    assert "secret" not in str(environment)
    assert command[1:] == ["-m", "forerun", "exec", "--gpu", "t4", "--json", "--", "python", "train.py"]


def test_it_ends_in_time(monkeypatch):
    monkeypatch.setattr(script_job, "LIMIT_SECONDS", 0.2)
    with pytest.raises(InvalidSettings, match="exit code -9"):
        forecast_script("x = 1", "t4", print, cell=cell("import time; time.sleep(60)"))


@pytest.mark.parametrize("script", ["", " \n", "#" * (script_job.LARGEST_SCRIPT + 1)])
def test_nothing_and_too_much_are_refused(script):
    with pytest.raises(InvalidSettings, match="characters of Python"):
        forecast_script(script, "t4", print)


@pytest.mark.medium
def test_a_script_is_forecast():
    try:
        document = forecast_script(SCRIPT, "t4", print)
    except NotSupported as error:
        pytest.skip(str(error))
    assert document["schema"] == "forerun.forecast/1"
    assert document["parameters"]["total"] == 256 * 257
    assert document["script"]["exit_code"] == 0
