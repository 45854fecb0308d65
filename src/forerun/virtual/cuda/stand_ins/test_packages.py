"""Installed packages stay what they are."""

import sys

import forerun


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
