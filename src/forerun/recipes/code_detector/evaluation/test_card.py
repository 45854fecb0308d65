import dataclasses

import numpy as np
import pytest

from forerun.errors import BadData, InvalidSettings
from forerun.recipes.code_detector.data.test_training_data import corpus, settings
from forerun.recipes.code_detector.data.training_data import open_data
from forerun.recipes.code_detector.evaluation import card as c
from forerun.recipes.code_detector.evaluation.scores import CRITERIA, SplitScores, criteria_for
from forerun.recipes.code_detector.evaluation.unseen_people import unseen_people
from forerun.recipes.code_detector.options import options_of, part_of
from forerun.recipes.code_detector.service.detector_card import CARD, NO_SECOND_OPINION, read_card


@pytest.fixture(scope="module")
def data():
    return open_data(settings(), corpus(2400))


@pytest.fixture(scope="module")
def scores(data):
    """Good scores with noise."""
    random = np.random.default_rng(0)
    return {
        split: SplitScores(
            1 / (1 + np.exp(-random.normal([2.0 if s.is_ai else -2.0 for s in data.samples[split]], 1.5))), np.eye(1)
        )
        for split in ("val", "test")
    }


@pytest.fixture(scope="module")
def card(data, scores):
    return c.make_card(scores, data, settings())


def test_thresholds_keep_their_budgets_on_validation_and_say_what_cannot_be_promised(card):
    small, one, five = card.points
    assert small.threshold is None
    assert card.served == one
    assert one.validation_upper <= 0.01
    assert five.threshold < one.threshold
    assert five.fpr_low < 0.05
    assert one.ppv["0.01"] < one.ppv["0.5"]


def test_calibration_and_abstention_are_part_of_it(card, data):
    assert card.calibration_error < 0.07
    sizes = sorted(len(ids) for ids in data.ids["val"])
    assert sum(size < card.least_tokens for size in sizes) <= 0.05 * len(sizes)
    assert [point.limit for point in card.by_size][0] == 0
    assert card.by_certainty[-1].error < card.by_certainty[0].error


def test_a_second_opinion_has_thresholds_of_its_own_and_stands_beside_the_detector_alone(card, data, scores):
    """A second reader that is right about everybody takes away the false flags and no others."""
    sure = {
        split: dataclasses.replace(own, second=np.asarray([0.9 if s.is_ai else 0.1 for s in data.samples[split]]))
        for split, own in scores.items()
    }
    paired = c.make_card(sure, data, settings())
    assert paired.alone == card.points
    assert paired.has_second_opinion
    assert paired.served.second_threshold == 0.1
    assert (paired.served.threshold, paired.served.tpr) == (card.served.threshold, card.served.tpr)
    assert paired.served.fpr == 0
    rates = {row.name: row.tpr for row in paired.slices}
    assert rates["language python"] == pytest.approx(paired.served.tpr)
    assert c.card_metrics(paired)["alone.budget_1_percent.tpr"] == card.served.tpr
    [table, *_] = c.card_tables(paired)
    assert [row[1] for row in table.rows] == ["with the second opinion"] * 3 + ["the detector alone"] * 3
    assert NO_SECOND_OPINION in card.full_statement
    assert NO_SECOND_OPINION not in paired.full_statement


def test_slices_hold_every_file_once_per_attribute(card):
    named = {row.name: row for row in card.slices}
    assert named["language python"].files == card.test_files
    assert sum(row.files for row in card.slices if "tokens" in row.name) == card.test_files
    generator = named["written by secretgenerator"]
    assert (generator.files, generator.ai_files) == (card.test_files, named["language python"].ai_files)
    assert generator.roc_auc == pytest.approx(card.roc_auc)


def test_its_figures_and_its_curve_go_into_the_run(card):
    figures = c.card_metrics(card)
    assert figures["budget_1_percent.ppv_at_prevalence_0.05"] == card.served.ppv["0.05"]
    assert figures["coverage_0.8.error"] == card.by_certainty[2].error
    assert figures["slice.language python.roc_auc"] == pytest.approx(card.roc_auc)
    assert "budget_0.1_percent.tpr" not in figures  # cannot be promised
    curve = c.coverage_curve(card)
    assert [len(series.x) for series in curve.series] == [len(card.by_certainty), len(card.by_size)]
    assert curve.series[0].x[0] == 1


def test_reference_is_a_distribution(card):
    for shares in (card.reference.token_shares, card.reference.probability_shares, card.reference.languages.values()):
        assert sum(shares) == pytest.approx(1)
    assert c.shares(np.asarray([0.05, 0.15, 0.1]), np.asarray([0.1])) == pytest.approx([1 / 3, 2 / 3])


def test_card_is_written_and_read_back(card, tmp_path):
    c.write_card(card, tmp_path)
    assert read_card(tmp_path) == card
    text = (tmp_path / c.MARKDOWN).read_text()
    assert all(sentence in text for sentence in (*c.STATEMENT, unseen_people().sentence()))
    assert text.count("\n## ") == 4
    (tmp_path / CARD).write_text("{}")
    with pytest.raises(BadData, match="Export the run again"):
        read_card(tmp_path)


def test_formatting_can_be_taken_away():
    neutral = settings(recipe={"form": "normalised"})
    neutral_data = open_data(neutral, corpus())
    index = next(
        n for n, sample in enumerate(neutral_data.samples["train"]) if "\t" in sample.code and "\n" in sample.code
    )
    assert "\t" not in neutral_data.tokeniser.decode(neutral_data.ids["train"][index].tolist())
    assert len(criteria_for(neutral)) == 3 < len(criteria_for(settings())) == len(CRITERIA)


def test_parts_are_left_out_by_name():
    held_out = part_of(corpus(), options_of(settings(recipe={"hold_out": "family:secretgenerator"})))
    assert {sample.split for sample in held_out.samples if sample.family == "secretgenerator"} == {"test"}
    with pytest.raises(BadData, match="SECRETSOURCE"):
        part_of(corpus(), options_of(settings(recipe={"hold_out": "source:nowhere"})))
    with pytest.raises(InvalidSettings, match=r"recipe.hold_out"):
        options_of(settings(recipe={"hold_out": "nowhere"}))
