"""Modules that are imported while a program runs on the virtual GPU are as any other afterwards."""

import gc
import inspect
import sys
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

import forerun
from forerun.virtual.put_back import replaced

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


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.optim.Optimizer, "zero_grad"),
        (torch.optim.Optimizer, "__init__"),
        (torch.nn.Module, "zero_grad"),
        (torch.nn.Module, "load_state_dict"),
        (torch.nn.Module, "_apply"),
        (torch.nn.parallel.DistributedDataParallel, "__init__"),
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
        (torch.cuda, "manual_seed"),
        (torch.cuda, "synchronize"),
        (torch.distributed, "init_process_group"),
        (DataLoader, "__init__"),
    ],
)
def test_a_replaced_function_keeps_its_signature(owner, name):
    """accelerate asks an optimizer's `zero_grad` for `set_to_none`, Lightning a loader for what it can be made with."""
    original = getattr(owner, name)
    seen = []

    def build():
        layer = torch.nn.Linear(4, 4)

        def step():
            seen.append((getattr(owner, name), inspect.signature(getattr(owner, name))))
            layer(torch.zeros(2, 4)).sum().backward()

        return layer, step

    forerun.forecast_step(build, gpu="t4")
    assert seen[0][0] is not original
    assert all(signature == inspect.signature(original) for _, signature in seen)
    assert getattr(owner, name) is original


def test_nothing_of_a_run_is_kept(tmp_path):
    """A replacement holds the recorder of its run, and that every event of it."""

    class Held:
        pass

    held = Held()
    seen = weakref.ref(held)
    with replaced(torch, "manual_seed", lambda seed, held=held: held):
        del held
        assert seen() is not None
    gc.collect()
    assert seen() is None
