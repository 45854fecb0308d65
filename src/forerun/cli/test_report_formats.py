"""`forerun report` from a ledger: a page, Markdown and a badge of one run."""

from typer.testing import CliRunner

from forerun.cli.main import command_line
from forerun.ledger.store import open_ledger
from forerun.report.test_pages import forecast, measurement, reports, verdict


def test_one_run_as_page_markdown_and_badge(tmp_path):
    url, page, badge = f"sqlite:///{tmp_path / 'l.sqlite'}", tmp_path / "page.html", tmp_path / "fits.svg"
    with open_ledger(url) as ledger:
        run_id = ledger.start_run(
            name="mini", workload="tiny", settings={"name": "mini"}, settings_hash="x", gpu="t4", folder="nowhere", versions={}
        )  # fmt: skip
        ledger.record_forecast(run_id, forecast(gpu="t4"))
        for step in reports(100):
            ledger.record_step(run_id, step)
        ledger.record_measurement(run_id, measurement())
        ledger.record_verdict(run_id, verdict().model_copy(update={"run_id": run_id}))

    def report(*words):
        result = CliRunner().invoke(command_line(), ["report", run_id[:13], *words], env={"FORERUN_LEDGER": url})
        assert result.exception is None, result.exception
        return result.stdout

    assert report("--to", str(page), "--badge", str(badge)).strip() == str(page)
    assert page.stat().st_size < 2e6, "one file to send on"
    assert "13.0 of 40.0 GiB" in badge.read_text()
    text = report("--format", "markdown")
    assert text.startswith("### mini on t4")
    report("--format", "markdown", "--to", str(tmp_path / "run.md"))
    assert (tmp_path / "run.md").read_text().strip() == text.strip()
