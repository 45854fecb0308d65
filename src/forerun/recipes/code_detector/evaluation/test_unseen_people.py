"""The recorded rates are said with their promise, the worst first, and go into every card."""

from forerun.recipes.code_detector.evaluation.unseen_people import UnseenPeople, unseen_people
from forerun.recipes.code_detector.service.known_human import KnownHuman


def test_the_worst_source_comes_first_with_what_became_of_the_promise():
    rates = (
        KnownHuman(name="library", files=342, flagged=0, low=0.0, high=0.009),
        KnownHuman(name="contest", files=100, flagged=30, low=0.22, high=0.4),
        KnownHuman(name="six files", files=6, flagged=6, low=0.6, high=1.0),
    )
    sentence = UnseenPeople(run="r1", date="2026-11-25", budget=0.01, rates=rates).sentence()
    assert sentence.endswith("30 of 100 of contest (30.0%, promise broken); 0 of 342 of library (0.0%, promise kept).")
    assert "promise of 1%" in sentence
    before = KnownHuman(
        name="contest", files=100, flagged=0, low=0.0, high=0.1, language="java", flagged_alone=30, looked_at=True
    )
    people = UnseenPeople(run="r1", date="2026-11-25", budget=0.01, rates=(before,))
    expected = "0 of 100 of contest (looked at before), java (0.0%, promise open, 30 without its second opinion)"
    assert expected in people.sentence()


def test_what_ships_was_measured():
    people = unseen_people()
    assert people.run
    assert people.rates
    assert all(0 <= row.low <= row.flagged / row.files <= row.high for row in people.rates)
