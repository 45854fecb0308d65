"""Studies that a database holds, looked at from outside: their trials and which settings mattered.

Importances take seconds, and follow from the trials alone: they are kept, and looked up where no trial came since.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from forerun.errors import InvalidSettings
from forerun.forecasting.traces import kept_answer
from forerun.tune.results import study_importances, trials_document
from forerun.tune.study import close_study, completed, open_study


def studies_in(url: str) -> list[dict[str, Any]]:
    """Every study of the database at `url` with its trials and importances; none where it is a file that is not there.

    Raises:
        InvalidSettings: it cannot be read.
    """
    try:
        place = sa.make_url(url)
        if place.get_backend_name() == "sqlite" and not Path(str(place.database)).is_file():
            return []
        names = optuna.get_all_study_names(url)
    except (SQLAlchemyError, ImportError, OSError, RuntimeError) as error:
        raise InvalidSettings(
            f"--storage: the studies cannot be read: {str(error).splitlines()[0]} Give the URL that `forerun "
            f"tune --storage` was given."
        ) from error
    return [_document(url, name) for name in names]


def _document(url: str, name: str) -> dict[str, Any]:
    study = open_study(url, name, None, None)
    try:
        trials = completed(study)
        settings = list(dict.fromkeys(name for trial in trials for name in trial.params))
        whole = [name for name in settings if all(name in trial.params for trial in trials)]
        return {
            "name": name, "settings": settings, "trials": trials_document(study.get_trials(deepcopy=False)),
            "importances": _importances(study, whole),
        }  # fmt: skip
    finally:
        close_study(study)


def _importances(study: optuna.Study, names: list[str]) -> list[dict[str, Any]]:
    content = [[trial.params, trial.value] for trial in completed(study)]
    digest = hashlib.sha256(json.dumps([content, names], sort_keys=True, default=str).encode()).hexdigest()
    return kept_answer(
        {"question": "importances", "trials": digest}, lambda: [vars(each) for each in study_importances(study, names)]
    )
