"""A badge says what the forecast says, in an SVG that is read aloud and cannot be broken by a name."""

from xml.etree import ElementTree

import pytest

from forerun.report.badge import badge_of
from forerun.report.test_pages import forecast

SVG = "{http://www.w3.org/2000/svg}"


def read(*forecasts):
    root = ElementTree.fromstring(badge_of(forecasts))
    return root, [text.text for text in root.iter(f"{SVG}text")]


def test_it_says_what_decides():
    root, texts = read(forecast(gpu="t4"))
    assert texts == ["fits", "t4 ✓ 13.0 of 40.0 GiB"], "the conservative number"
    assert root.find(f"{SVG}title").text == "Forecast: fits t4; 10.0 GiB expected, at most 13.0 GiB, of 40.0 GiB"
    assert root.get("aria-labelledby") == root.find(f"{SVG}title").get("id")


def test_each_card_has_its_part_and_colour():
    _, texts = read(forecast(gpu="t4", fits=False), forecast(gpu="h200"))
    assert [text.split(" ")[1] for text in texts[1:]] == ["✗", "✓"]
    assert badge_of([forecast(fits=False)]).count("#b91c1c") == 1


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b", 'x" onload="y'])
def test_a_name_stays_text(name):
    root, texts = read(forecast(gpu=name))
    assert texts[1].startswith(name)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {"svg", "title", "g", "rect", "text"}
