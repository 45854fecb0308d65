import pytest

from forerun.models.hub_refusals import hub_remedy, pinned


class GatedRepoError(Exception):
    """As huggingface_hub names it."""


@pytest.mark.parametrize(
    ("name", "parts"), [("a/b", ("a/b", None)), ("a/b@v1.0", ("a/b", "v1.0")), ("gpt2", ("gpt2", None))]
)
def test_a_pin_stands_behind_the_id(name, parts):
    assert pinned(name) == parts


def test_the_cause_is_looked_for_under_what_wraps_it():
    outer = OSError("it failed")
    outer.__cause__ = ValueError("because")
    outer.__cause__.__cause__ = GatedRepoError("no")
    assert "accept its terms on the page of a/b," in hub_remedy(outer, "a/b@v1", "Else.")
    assert hub_remedy(OSError("?"), "a/b", "Else.").endswith("config.json is enough, and needs no hub. Else.")
