"""The page of the five origins is what `benchmarks.origins` makes of its parts, and its commands exist."""

import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
from benchmarks.origins.collect import GPUS, documents, keep, kept  # noqa: E402
from benchmarks.origins.page import pages  # noqa: E402
from benchmarks.origins.recipe_pages import profile_key, profiles, recipe_pages, with_figures  # noqa: E402

from forerun.api import find_device, forecast_settings, resolve  # noqa: E402
from forerun.audit.shipped_claims import shipped_documents  # noqa: E402
from forerun.runs.registry import recipe_names, target_names  # noqa: E402


def test_the_page_is_made_of_its_parts():
    for path, text in (pages() | recipe_pages()).items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m benchmarks.origins`"


def test_every_document_has_claims_a_recipe_and_targets():
    assert [document["name"] for document in documents()] == list(shipped_documents())
    for document in documents():
        assert document["recipe"] in recipe_names()
        assert {run["target"] for run in document["full"]} <= set(target_names())


def test_every_forecast_has_all_six_gpus():
    for name, entry in kept()["forecasts"].items():
        assert [row["gpu"] for row in entry["content"]["rows"]] == list(GPUS), name


def test_every_recipe_page_has_its_recorded_run_and_every_profile_its_forecast():
    for path, text in recipe_pages().items():
        assert "<!-- figures: run, by" in text, path
    assert {profile_key(each) for each in profiles()} == set(kept()["profiles"])
    assert {each["target"] for each in profiles()} <= set(target_names())


def test_a_detectors_thresholds_come_from_its_exported_card():
    figures = dict.fromkeys(("threshold", "tpr", "fpr", "fpr_low", "fpr_high"), 0.25)
    point = {"budget": 0.05, "ppv": dict.fromkeys(("0.01", "0.05", "0.1", "0.5"), 0.5), **figures}
    none = {"budget": 0.001, "threshold": None}
    own = {"run": "r1", "points": [none, point], "alone": []}
    parts = {"detectors": {"d": {"date": "2026-11-25", "content": own}}}
    page = "<!-- figures: decisions, by python -m benchmarks.origins -->\n<!-- end of figures -->"
    text = with_figures(page, {"name": "d", "recipe": "code-detector"}, parts)
    assert "Run r1, exported 2026-11-25." in text
    assert "| 0.1 % | none can be promised | | | | | |" in text
    assert "| 5 % | 0.250, none | 0.250 | none | 0.250 (0.250 to 0.250) | none | 0.50 / 0.50 / 0.50 / 0.50 |" in text
    own |= {"points": [none, point | {"second_threshold": 0.75}], "alone": [none, point | {"tpr": 0.5}]}
    text = with_figures(page, {"name": "d", "recipe": "code-detector"}, parts)
    assert "| 5 % | 0.250, 0.750 | 0.250 | 0.500 |" in text


def test_every_line_and_every_system_was_run():
    lines = tomllib.loads((ROOT / "benchmarks/origins/lines.toml").read_text(encoding="utf-8"))["line"]
    assert {(line["document"], line["line"], line["command"]) for line in lines} == {
        tuple(entry["content"][key] for key in ("document", "line", "command")) for entry in kept()["lines"].values()
    }
    assert {document["title"] for document in documents()} == set(kept()["transcripts"])


def test_entries_made_at_the_same_time_are_all_kept_and_every_reader_sees_a_whole_file(tmp_path):
    file, content = tmp_path / "parts.json", list(range(6_000))
    names = [[f"{writer}: {number}" for number in range(4)] for writer in range(3)]
    keep("lines", "first", content, file)
    with ThreadPoolExecutor(len(names)) as pool:
        writers = [pool.submit(lambda own: [keep("lines", name, content, file) for name in own], own) for own in names]
        while not all(writer.done() for writer in writers):
            assert "first" in kept(file)["lines"]
    assert set(kept(file)["lines"]) == {"first", *(name for own in names for name in own)}
    assert [writer.exception() for writer in writers] == [None] * len(names)


def test_an_entry_that_cannot_be_written_leaves_the_others(tmp_path):
    file = tmp_path / "parts.json"
    keep("lines", "first", 1, file)
    with pytest.raises(TypeError):
        keep("lines", "second", {1, 2}, file)
    assert set(kept(file)["lines"]) == {"first"}


STALE = 0.05
"""Difference of a dated forecast from today's that asks for the page to be made again."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3-ortho: Fast", "4-autocast: BERT-base, 32 x 128, fp16"])
def test_forecasts_on_the_page_are_not_stale(name):
    """The cheapest full-size runs, forecast again on their document's GPU."""
    document = next(each for each in documents() if each["name"] == name.partition(":")[0])
    run = next(each for each in document["full"] if each["name"] == name.partition(": ")[2])
    forecast = forecast_settings(resolve(run["target"], run.get("set", [])), find_device(document["on"]))
    kept_figures = kept()["forecasts"][name]["content"]["as_written"]
    now = {"device_bytes": forecast.memory.device_bytes.conservative, "run_seconds": forecast.run.seconds.expected}
    before = {"device_bytes": kept_figures["device_bytes"], "run_seconds": kept_figures["run_seconds"]["expected"]}
    assert now == pytest.approx(before, rel=STALE), "run `make origins`"


@pytest.mark.slow
def test_audits_are_those_of_today():
    """The verdicts on the page, made again."""
    from benchmarks.origins import collect

    before = {name: entry["content"] for name, entry in kept()["audits"].items()}
    made = {}
    collect.make_audits(lambda what: None, enter=lambda part, name, content: made.update({name: content}))
    verdicts = [{n: [c["verdict"] for c in e["claims"]] for n, e in each.items()} for each in (before, made)]
    assert verdicts[0] == verdicts[1], "run `python -m benchmarks.origins audits`"
