"""A run's page for a pull request says the page's numbers, and nothing of it becomes markup."""

from forerun.report.markdown import markdown_page
from forerun.report.test_pages import content


def test_it_says_verdict_and_numbers():
    first, more = markdown_page(content()).split("<details>")
    for words in (
        "All 1 criteria passed.",
        "It fits: at most 13.0 GiB of 40.0 GiB",
        "| beats chance | 0.900 |",
        "| step: seconds |",
    ):
        assert words in first.replace("\\_", "_"), first
    for words in ("| activation | 3.00 GiB |", "| forward | 200 ms | 250 ms |", "| y | – |", "Time: uncalibrated."):
        assert words in more
    assert more.count("</details>") == 1


def test_what_was_not_measured_is_no_number():
    text = markdown_page(content(measurement=None, verdict=None, steps=[]))
    assert "| step time | 500 ms | forecast |" in text
    assert "| forward | 200 ms | – |" in text


def test_a_name_is_no_markup():
    assert "<b>x" not in markdown_page(content(title="<b>x</b> on cpu")).replace("\\<b>x", "")
