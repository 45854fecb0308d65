"""A search over own data leaves the test rows alone until its finalists, and its space holds the settings themselves."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from forerun.hardware.detect import detect
from forerun.own import search
from forerun.own.sweep_table import comparison
from forerun.own.task import VALIDATION
from forerun.runs.recipe import SweepRun
from forerun.runs.registry import searchable
from forerun.runs.run import start_training
from forerun.settings.load import settings_from
from own_sets import write_set

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")


def trial(folder, kind, **sections):
    base = write_set(folder / "data", kind, rows=120, **sections)
    return search.load_experiment(settings_from(base.model_dump(), search.TRIAL))


@pytest.mark.parametrize(
    ("kind", "score", "sign"), [("one", "macro_f1", 1), ("chat", "loss", -1), ("preference", "accuracy", 1)]
)
def test_a_trial_is_judged_on_validation_rows_and_a_finalist_on_the_test_rows(tmp_path, kind, score, sign):
    experiment = trial(tmp_path, kind, adapter={"kind": "lora", "rank": 4} if kind == "chat" else {})
    assert searchable(experiment.settings) is search
    space, start = search.search_space(experiment), search.search_start(experiment)
    assert {dimension.name for dimension in space} == set(start)
    again = settings_from(experiment.settings.model_dump(), search.search_overrides(start, experiment))
    assert again.hash == experiment.settings.hash
    training = start_training(experiment, detect().device, tmp_path / "run")
    for _ in zip(range(3), training.steps(), strict=False):
        pass
    metrics = experiment.baselines(experiment.judge(training.step)).metrics
    assert all(name.startswith(VALIDATION) for name in metrics)
    assert search.searched_score(metrics, experiment.settings)[0] == sign * metrics[f"{VALIDATION}{score}"]
    note = search.score_note(experiment.settings)
    assert note.startswith(f"Score: {score.replace('_', ' ')} of the validation rows")
    assert ("negated" in note) == (sign < 0)
    answers = search.held_out_scores(experiment, training.step)
    end = search.final_comparison(experiment, {"0": [answers], "1": [answers, answers]}, "1", 1)
    assert end["metric"] == score
    assert ("lead" in end) == (sign < 0)
    assert end["finalists"]["0"]["below_winner"][0] == pytest.approx(0)
    for name, (middle, low, high) in end["over_baselines"].items():
        assert low <= middle <= high
        assert middle == pytest.approx(sign * (end["metrics"][score] - end["metrics"][f"{name}.{score}"]))


def test_a_sweep_shows_the_score_of_each_variant_beside_its_strongest_baseline(tmp_path):
    settings = write_set(tmp_path / "data", "one", rows=120)

    class Measured:
        metrics = {"macro_f1": 0.75, "macro_f1.low": 0.7, "macro_f1.high": 0.8, "tf-idf.macro_f1": 0.6,
                   "majority.macro_f1": 0.3}  # fmt: skip

    run = SweepRun("a", settings, None, Measured())  # type: ignore[arg-type]
    (table,), _ = comparison([run, replace(run, name="b")])
    assert table.rows[0] == ["a", 0.75, "0.700 to 0.800", "0.600, tf-idf", None]
    assert "validation rows" in table.note
