"""Data sets of the hub come without code of their own, and with a refusal in words where they do not come."""

import pytest

from forerun.data.hub_rows import load_from_hub
from forerun.errors import BadData, MissingExtra

datasets = pytest.importorskip("datasets")


def test_a_version_that_runs_scripts_of_data_sets_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "__version__", "2.21.0")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(MissingExtra, match=r"datasets 2.21.0 may run code .* pip install 'datasets>=4'"):
        load_from_hub("someone/rows")


def test_a_folder_with_a_script_is_not_run(tmp_path):
    ran = tmp_path / "RAN"
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "rows.py").write_text(f"open({str(ran)!r}, 'w').write('it was run')\n")
    with pytest.raises(BadData, match="the hub could not give"):
        load_from_hub(str(folder))
    assert not ran.exists()
