"""Predictions of a service, their outcomes and the size of what came in, in a local SQLite file.

Student code is private: by default only its SHA-256, its size and eleven counts of its formatting (to see drift) are
kept, never its text. With `keep_code` the text is kept too, which exporting edge cases for retraining needs.
`forget_before` and `forget` delete for good.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import Engine
from sqlalchemy.pool import NullPool

from forerun.recipes.code_detector.evaluation.baselines import formatting_counts
from forerun.recipes.code_detector.service.messages import CodeFile, DetectAnswer
from forerun.records import Record

Outcome = Literal["confirmed", "refuted"]
_METADATA = MetaData()
_PREDICTIONS = Table(
    "predictions",
    _METADATA,
    Column("id", String, primary_key=True),
    Column("at", DateTime, nullable=False, index=True),
    Column("endpoint", String, nullable=False),
    Column("model", String, nullable=False),
    Column("language", String, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("probability", Float, nullable=False),
    Column("verdict", String, nullable=False),
    Column("code_sha256", String, nullable=False, index=True),
    Column("code", Text),
    Column("features", JSON),
)
_FEEDBACK = Table(
    "feedback",
    _METADATA,
    Column("prediction_id", String, primary_key=True),
    Column("at", DateTime, nullable=False),
    Column("outcome", String, nullable=False),
)


class Prediction(Record):
    """One answer that was given."""

    id: str
    at: datetime
    endpoint: str
    model: str
    language: str
    tokens: int
    characters: int
    probability: float
    """Calibrated, also where no verdict was given."""
    verdict: str
    code_sha256: str
    code: str | None
    features: list[float] | None = None
    """The counts of `evaluation.baselines.FORMATTING_COUNTS`; null in rows of older services."""
    outcome: Outcome | None = None
    """The outcome that feedback gave; null without feedback."""

    @classmethod
    def of(cls, answer: DetectAnswer, file: CodeFile, probability: float, endpoint: str) -> "Prediction":
        """The row of an answer."""
        return cls(
            id=answer.prediction_id,
            at=_now(),
            endpoint=endpoint,
            model=answer.model,
            language=file.language,
            tokens=answer.tokens,
            characters=len(file.code),
            probability=probability,
            verdict=answer.verdict,
            code_sha256=hashlib.sha256(file.code.encode("utf-8", "replace")).hexdigest(),
            code=file.code,
            features=formatting_counts(file.code),
        )


class PredictionStore:
    """Predictions and feedback behind a SQLAlchemy URL; safe to use from several threads."""

    def __init__(self, url: str, *, keep_code: bool = False):
        self.keeps_code = keep_code
        # NullPool: a connection per use, so that no thread keeps the file open or waits for another's connection.
        self._engine = create_engine(url, poolclass=NullPool)
        event.listen(self._engine, "connect", _set_pragmas)
        _METADATA.create_all(self._engine)
        if "features" not in {column["name"] for column in inspect(self._engine).get_columns("predictions")}:
            with self._engine.begin() as connection:  # a store of an older service
                connection.execute(text("ALTER TABLE predictions ADD COLUMN features JSON"))

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, for tests and maintenance."""
        return self._engine

    def add(self, predictions: Sequence[Prediction]) -> None:
        """Enter predictions; their code only where it is to be kept."""
        rows: list[dict[str, Any]] = [
            prediction.model_dump(exclude={"outcome"}) | ({} if self.keeps_code else {"code": None})
            for prediction in predictions
        ]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(insert(_PREDICTIONS), rows)

    def add_feedback(self, prediction_id: str, outcome: Outcome) -> Literal["entered", "unknown", "contradicts"]:
        """Note what became of a prediction; the first word counts, and the same one may be said again."""
        with self._engine.begin() as connection:
            stored_id = connection.execute(select(_PREDICTIONS.c.id).where(_PREDICTIONS.c.id == prediction_id)).first()
            if stored_id is None:
                return "unknown"
            row = {"prediction_id": prediction_id, "at": _now(), "outcome": outcome}
            connection.execute(insert(_FEEDBACK).prefix_with("OR IGNORE", dialect="sqlite"), [row])  # two at once
            first = select(_FEEDBACK.c.outcome).where(_FEEDBACK.c.prediction_id == prediction_id)
            return "entered" if connection.execute(first).scalar_one() == outcome else "contradicts"

    def predictions(self, days: float | None = None) -> list[Prediction]:
        """All, or those of the last `days`, oldest first, with their outcomes."""
        query = (
            select(_PREDICTIONS, _FEEDBACK.c.outcome)
            .join(_FEEDBACK, _FEEDBACK.c.prediction_id == _PREDICTIONS.c.id, isouter=True)
            .order_by(_PREDICTIONS.c.at)
        )
        if days is not None:
            query = query.where(_PREDICTIONS.c.at >= _now() - timedelta(days=days))
        with self._engine.connect() as connection:
            return [Prediction.model_validate(dict(row._mapping)) for row in connection.execute(query)]

    def forget_before(self, days: float) -> int:
        """Delete what is older than `days`; returns how many predictions went."""
        return self._forget(select(_PREDICTIONS.c.id).where(_PREDICTIONS.c.at < _now() - timedelta(days=days)))

    def forget(self, prediction_id: str) -> int:
        """Delete everything about the file of a prediction: all predictions on the same text, and their feedback."""
        same = select(_PREDICTIONS.c.code_sha256).where(_PREDICTIONS.c.id == prediction_id)
        return self._forget(select(_PREDICTIONS.c.id).where(_PREDICTIONS.c.code_sha256.in_(same)))

    def _forget(self, id_query: Any) -> int:
        with self._engine.begin() as connection:
            names = [row.id for row in connection.execute(id_query)]
            for start in range(0, len(names), 500):  # SQLite before 3.32 takes 999 variables in a statement
                part = names[start : start + 500]
                connection.execute(delete(_FEEDBACK).where(_FEEDBACK.c.prediction_id.in_(part)))
                connection.execute(delete(_PREDICTIONS).where(_PREDICTIONS.c.id.in_(part)))
        return len(names)


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def _set_pragmas(connection: Any, record: Any) -> None:
    """Deleted text is overwritten, and writers wait for one another."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.execute("PRAGMA busy_timeout = 5000")
    cursor.close()
