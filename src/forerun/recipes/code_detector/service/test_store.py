from datetime import timedelta

import pytest
from sqlalchemy import text, update

from forerun.recipes.code_detector.service import store as s
from forerun.recipes.code_detector.service.store import Prediction, PredictionStore


def prediction(number: int, code: str = "", **changes) -> Prediction:
    values = {
        "id": f"p{number}", "at": s._now(), "endpoint": "detect", "model": "m", "language": "python", "tokens": 100,
        "characters": 400, "probability": 0.5, "verdict": "no-finding", "code_sha256": f"hash of {code or number}",
        "code": code or f"code {number}",
    }  # fmt: skip
    return Prediction.model_validate(values | changes)


@pytest.fixture
def store(tmp_path):
    return PredictionStore(f"sqlite:///{tmp_path}/p.sqlite")


def aged(store, number, days):
    with store.engine.begin() as connection:
        connection.execute(
            update(s._PREDICTIONS).where(s._PREDICTIONS.c.id == f"p{number}").values(at=s._now() - timedelta(days=days))
        )


def test_code_is_kept_only_where_it_is_asked_for(store, tmp_path):
    store.add([prediction(1)])
    assert store.predictions()[0].code is None
    keeping = PredictionStore(f"sqlite:///{tmp_path}/q.sqlite", keep_code=True)
    keeping.add([prediction(1)])
    assert keeping.predictions()[0].code == "code 1"


def test_the_first_feedback_stays_and_strangers_get_none(store):
    store.add([prediction(1), prediction(2)])
    assert store.add_feedback("p1", "refuted") == "entered"
    assert store.add_feedback("p1", "refuted") == "entered"
    assert store.add_feedback("p1", "confirmed") == "contradicts"
    assert store.add_feedback("p3", "confirmed") == "unknown"
    assert [(p.id, p.outcome) for p in store.predictions()] == [("p1", "refuted"), ("p2", None)]


def test_old_predictions_go_with_their_feedback(store):
    store.add([prediction(n) for n in range(1200)])
    for number in (0, 1, 2):
        aged(store, number, 91)
    store.add_feedback("p1", "refuted")
    assert len(store.predictions(days=30)) == 1197
    assert store.forget_before(90) == 3
    assert store.forget_before(0) == 1197
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM feedback")).scalar() == 0


def test_forgetting_a_file_takes_every_prediction_on_it(tmp_path):
    store = PredictionStore(f"sqlite:///{tmp_path}/p.sqlite", keep_code=True)
    store.add([prediction(1, "UNMISTAKABLE"), prediction(2, "UNMISTAKABLE"), prediction(3)])
    assert store.forget("p1") == 2
    assert [p.id for p in store.predictions()] == ["p3"]
    assert b"UNMISTAKABLE" not in (tmp_path / "p.sqlite").read_bytes()
    assert store.forget("nobody") == 0


def test_a_store_of_an_older_service_is_read_on(tmp_path):
    url = f"sqlite:///{tmp_path}/old.sqlite"
    old = PredictionStore(url)
    with old.engine.begin() as connection:
        connection.execute(text("ALTER TABLE predictions DROP COLUMN features"))
        connection.execute(
            text(
                "INSERT INTO predictions VALUES ('p', '2026-01-01 00:00:00', 'e', 'm', 'l', 1, 1, 0.5, 'v', 'h', NULL)"
            )
        )
    again = PredictionStore(url)
    again.add([prediction(2, features=[1.0, 0.5])])
    assert [row.features for row in again.predictions()] == [None, [1.0, 0.5]]
