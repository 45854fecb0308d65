"""The page of the service in a real browser: it checks, compares and highlights; nothing of a file becomes markup."""

import re
import shutil
import subprocess

import pytest

from forerun.recipes.code_detector.service.app import make_app
from forerun.recipes.code_detector.service.test_app import FakeDetector
from service_driver import serving

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def address():
    with serving(make_app(FakeDetector())) as url:
        yield url


def rendered_page(url: str, profile) -> str:
    """The page's document after its scripts have run."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
        "--virtual-time-budget=8000", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def test_an_example_is_checked(address, tmp_path):
    page = rendered_page(f"{address}/#example-detect", tmp_path)
    assert "Model fake (0123456789abcdef)" in page
    assert "Worth a conversation" in page or "No finding" in page
    assert "It proves nothing." in page
    assert "What this does not prove" in page


def test_copies_are_highlighted_on_both_sides(address, tmp_path):
    page = rendered_page(f"{address}/#example-compare", tmp_path)
    assert "stretches in common" in page
    assert len(re.findall(r'class="e\d"', page)) > 30
    assert page.count('class="code"') == 2
    own, disguised = page.split('class="code"')[1:]
    for side, line in ((own, "means.append(total / width)"), (disguised, "result.append(acc / n)")):
        assert re.search(
            r'<div class="e\d"><span class="number">\d+</span><span class="text"> *' + re.escape(line), side
        )


def test_an_assignment_is_ranked_and_can_be_corrected(address, tmp_path):
    page = rendered_page(f"{address}/#example-batch", tmp_path)
    assert "Most similar pairs" in page
    first = page.split("<tbody>")[1].split("</tr>")[0]
    assert {"first.py", "third.py"} == set(re.findall(r"\w+\.py", first))  # the same functions in another order
    assert page.count("A person's") == 3
