"""A run's own report as claims: a sound one passes, and each kind of unsound one is found."""

import pytest

from forerun.audit.check import audit
from forerun.audit.from_run import claims_of_run
from forerun.errors import InvalidSettings, RunNotFound
from forerun.ledger.store import open_ledger
from forerun.records import ParameterCounts, RunEvidence, StepPhases, StepReport
from forerun.verify.compare import Criterion, verify
from forerun.verify.test_compare import forecast, measurement

RUN = {
    "name": "r", "workload": "w", "settings": {"a": 1}, "settings_hash": "h", "gpu": "cpu", "folder": "f", "versions": {},
}  # fmt: skip
CRITERIA = (
    Criterion(name="is good", quantity="auc", comparison="above", bound=0.9),
    Criterion(name="beats length", quantity="auc", comparison="above", bound="length.auc"),
    Criterion(name="beats all", quantity="auc", comparison="above", bound="*.auc"),
    Criterion(name="loss is low", quantity="pair_loss", comparison="above", bound="pair_floor"),
    Criterion(name="step was forecast", quantity="step.seconds", comparison="error within", bound=0.3),
)
METRICS = {"auc": 0.95, "length.auc": 0.65, "parses": 0.98, "copied.parses": 1.0, "pair_loss": 2.5, "pair_floor": 2.1}


def reports(count=100, seconds=3.0):
    return [
        StepReport(
            step=n, epoch=n / 50, loss=1.0, learning_rate=1e-3, step_seconds=seconds, phases=StepPhases(), samples=1,
            tokens=10, padded_tokens=10,
        )
        for n in range(1, count + 1)
    ]  # fmt: skip


@pytest.fixture
def audited_claims(tmp_path):
    def of(measured, steps=None, predicted=None):
        with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
            run_id = ledger.start_run(**RUN)
            ledger.record_forecast(run_id, predicted or forecast())
            ledger.record_measurement(run_id, measured)
            for report in reports() if steps is None else steps:
                ledger.record_step(run_id, report)
            claims = {claim.id: claim for claim in audit(claims_of_run(ledger, "last", CRITERIA)).claims}
        for result in verify(run_id, predicted or forecast(), measured, CRITERIA).criteria:
            assert (claims[result.name].verdict == "wrong") == (result.judged and not result.passed), "one truth"
        return claims

    return of


def verdicts(claims):
    return {name: claim.verdict for name, claim in claims.items() if claim.verdict != "consistent"}


def test_a_sound_run_is_consistent(audited_claims):
    claims = audited_claims(measurement(metrics=METRICS))
    assert verdicts(claims) == {}
    assert {"steps", "parameters", "memory parts", "step x steps", "flop rate", "is good", "beats length"} <= set(
        claims
    )
    assert claims["floor of pair_loss"].findings[0].rule == "R04"


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"metrics": {**METRICS, "auc": 0.6}}, "beats length", "wrong"),
        ({"metrics": {**METRICS, "auc": 0.8}}, "is good", "wrong"),
        ({"metrics": {**METRICS, "ngrams.auc": 0.97}}, "beats all", "wrong"),
        ({"metrics": METRICS, "forward": 5.0}, "step was forecast", "wrong"),
        ({"metrics": {**METRICS, "pair_loss": 1.5}}, "floor of pair_loss", "impossible"),
        ({"forward": 0.1, "backward": 0.1}, "flop rate", "impossible"),
        ({"steps": 90}, "steps", "wrong"),
        ({"forward": 4.0}, "forecast of the run", "unsupported"),
    ],
)
def test_what_is_unsound_is_found(audited_claims, changes, name, verdict):
    claims = audited_claims(measurement(**{"metrics": METRICS, **changes}))
    assert claims[name].verdict == verdict, claims[name].worst


def test_an_interval_that_holds_a_baseline_settles_nothing(audited_claims):
    metrics = {**METRICS, "auc_low": 0.93, "auc_high": 0.97, "ngrams.auc": 0.94}
    assert audited_claims(measurement(metrics=metrics))["beats all"].verdict == "unsupported"


def test_an_empty_checkpoint_and_times_that_do_not_add_up(audited_claims):
    measured = measurement(metrics=METRICS).model_copy(update={"parameters": ParameterCounts(total=25, trainable=1000)})
    claims = audited_claims(measured, steps=reports(seconds=9.0))
    assert claims["checkpoint"].verdict == "impossible"
    assert claims["step x steps"].verdict == "wrong"


def test_what_others_load_forbids_to_judge_is_not_wrong(audited_claims):
    evidence = RunEvidence(other_processes_share=0.9)
    measured = measurement(forward=9.0, metrics=METRICS).model_copy(update={"evidence": evidence})
    assert audited_claims(measured)["step was forecast"].verdict == "unsupported"


def test_a_run_that_has_not_finished(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        run_id = ledger.start_run(**RUN)
        ledger.record_forecast(run_id, forecast())
        with pytest.raises(InvalidSettings, match="no measurement. Finish it with --resume"):
            claims_of_run(ledger, run_id)
        with pytest.raises(RunNotFound):
            claims_of_run(ledger, "20200101")
