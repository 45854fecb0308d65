"""Modules that are imported while a program runs on the virtual GPU are as any other afterwards."""

import sys

import torch

import forerun

MODULE = """
from safetensors.torch import save_file
from torch import save, compile
from torch.cuda import is_available
from torch.distributed import init_process_group
from os import replace, mkdir
"""


def test_a_module_imported_meanwhile_holds_no_replacement(tmp_path, monkeypatch):
    """It would save empty files in the next real run of the process."""
    (tmp_path / "imported_meanwhile.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    seen = []

    def build():
        import imported_meanwhile

        layer = torch.nn.Linear(4, 4)
        seen.append(imported_meanwhile.is_available())

        def step():
            imported_meanwhile.save_file(layer.state_dict(), tmp_path / "during.safetensors")
            layer(torch.zeros(2, 4)).sum().backward()

        return layer, step

    forerun.forecast_step(build, gpu="t4")
    module = sys.modules.pop("imported_meanwhile")
    assert seen == [True]
    assert not (tmp_path / "during.safetensors").exists()
    assert module.is_available is torch.cuda.is_available
    assert module.save is torch.save
    assert module.compile is torch.compile
    assert module.init_process_group is torch.distributed.init_process_group
    module.save_file({"weight": torch.ones(3)}, tmp_path / "after.safetensors")
    assert (tmp_path / "after.safetensors").stat().st_size > 12
