from rich.console import Console

from forerun.network.catalogue import fabrics, networks
from forerun.report.network_tables import networks_json, networks_view, rows_with


def printed(*view):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(networks_view(*view))
    return capture.get()


def test_the_tables_fit_80_columns_and_name_every_row():
    text = printed(networks(), fabrics())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert all(row.name in text for row in (*networks(), *fabrics()))


def test_search_finds_names_clouds_and_gpus():
    assert {row.name for row in rows_with("AWS", networks())} >= {"efa-p4d", "efa-p5", "efa-p5en"}
    assert [row.name for row in rows_with("h200", fabrics())] == ["nvlink4"]
    assert "nvlink" not in printed(rows_with("azure", networks()), rows_with("azure nd a100", fabrics()))
    assert rows_with("no such thing", networks()) == []


def test_the_document_has_rates_and_sources():
    document = networks_json(networks(), fabrics())
    assert document["schema"] == "forerun.networks/1"
    rows = {row["name"]: row for row in document["networks"]}
    assert rows["ib-ndr400"]["machine_bytes_per_second"] == 4e11
    assert rows["efa-p5"]["rates"]["measured"]
    assert all(row["source"] for row in (*document["networks"], *document["links"]))
