"""Installed packages stay what they are."""

import importlib
import importlib.util
import sys

import pytest

import forerun
from forerun.virtual.cuda.stand_ins.packages import StandInFinder, StandInPackage


def test_an_installed_package_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("here = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with forerun.virtual_cuda("t4"):
        import apex

        assert apex.here
    sys.modules.pop("apex")


def test_one_that_cannot_load_without_cuda_is(tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with forerun.virtual_cuda("a100-40gb"):
        from flash_attn import flash_attn_func

        assert flash_attn_func.__module__.startswith("forerun")


def test_asking_whether_a_package_is_there_makes_nothing_of_it():
    """transformers 4.45 asks for Liger while it is imported itself, and Liger's stand-in needs transformers."""
    made = []

    def modules():
        made.append(True)
        return {"kernels_of_others": {"one": 1}, "kernels_of_others.inner": {"two": 2}}

    package = StandInPackage("kernels_of_others", "kernels-of-others", "1.0", modules)
    finder = StandInFinder([package])
    sys.meta_path.insert(0, finder)
    try:
        assert importlib.util.find_spec("kernels_of_others") is not None
        assert not made
        inner = importlib.import_module("kernels_of_others.inner")
        assert (inner.two, sys.modules["kernels_of_others"].one, made) == (2, 1, [True])
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("kernels_of_others.missing")
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.startswith("kernels_of_others")]:
            del sys.modules[name]


@pytest.mark.parametrize(("text", "is_here"), [("import torch", True), ("from vllm import LLM", False)])
def test_an_engine_that_is_installed_gives_way_to_its_stand_in_where_a_program_names_it(
    text, is_here, tmp_path, monkeypatch
):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("here = True\n")
    (tmp_path / "train.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py")])
    with forerun.virtual_cuda("a100-40gb"):
        vllm = importlib.import_module("vllm")
        assert "here" in vars(vllm) if is_here else vllm.__spec__.origin == "forerun"
    sys.modules.pop("vllm", None)


def test_one_that_keeps_its_fault_to_itself_is_too(tmp_path, monkeypatch):
    """xformers can be imported for another PyTorch, and remembers why its kernels did not load."""
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers" / "__init__.py").write_text("here = True\n")
    (tmp_path / "xformers" / "_cpp_lib.py").write_text("_cpp_library_load_exception = OSError('built for 2.10')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with forerun.virtual_cuda("t4"):
        import xformers
        from xformers._cpp_lib import _register_extensions

        assert not hasattr(xformers, "__file__")
        assert _register_extensions().build_env == {}
