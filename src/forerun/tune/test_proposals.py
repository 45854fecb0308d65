import optuna
import pytest

from forerun.runs.search_space import Dimension
from forerun.tune.proposals import NumberedProposals, suggest, without_fixed

SPACE = [
    Dimension(name="rate", low=1e-4, high=1e-1, is_logarithmic=True),
    Dimension(name="loss", values=("plain", "focal")),
    Dimension(name="gamma", low=1.0, high=3.0, only_if=("loss", ("focal",))),
    Dimension(name="augmentation.method", values=("none", "swap")),
]
START = {"rate": 0.01, "loss": "plain", "augmentation.method": "none"}


def score(point):
    return -abs(point["rate"] - 0.003) + 0.1 * (point["loss"] == "focal")


def run(trials, kind, restart_every=1000, seed=0):
    """Scores of a study whose process is replaced now and then."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.InMemoryStorage()
    tried = []
    for number in range(trials):
        if number % restart_every == 0:
            sampler = NumberedProposals(SPACE, START, kind, seed)
            study = optuna.create_study(
                study_name="s", storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
            )
        trial = study.ask()
        tried.append(suggest(trial, SPACE))
        study.tell(trial, score(tried[-1]))
    return tried


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_another_process_proposes_the_same(kind):
    whole = run(16, kind)
    assert run(16, kind, restart_every=3) == whole
    assert run(16, kind, seed=1) != whole
    assert whole[0] == START


def test_half_proposed_trials_are_completed_as_they_began():
    storage = optuna.storages.InMemoryStorage()

    def study():
        sampler = NumberedProposals(SPACE, START, "tpe", 0)
        return optuna.create_study(
            study_name="s", storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )

    whole = run(12, "tpe")
    for number in range(11):
        trial = study().ask()
        study().tell(trial.number, score(suggest(trial, SPACE)))
        assert number == trial.number
    broken = study().ask()
    suggest(broken, SPACE[:1])  # killed here
    again = optuna.trial.Trial(study(), broken._trial_id)
    assert suggest(again, SPACE) == whole[11]


def test_what_does_not_matter_is_not_asked():
    for point in run(30, "tpe"):
        assert ("gamma" in point) == (point["loss"] == "focal")


def test_the_sampler_learns():
    scores = [score(point) for point in run(40, "tpe")]
    assert sum(s > 0.09 for s in scores[-15:]) > sum(s > 0.09 for s in scores[1:16])


def test_what_the_user_fixes_is_not_searched():
    names = [d.name for d in without_fixed(SPACE, ["rate=0.5", "recipe.augmentation.policies=[]"])]
    assert names == ["loss", "gamma"]
