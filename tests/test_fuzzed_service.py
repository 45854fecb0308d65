"""Thousands of requests made from the service's own OpenAPI document, right and wrong ones: no 5xx, nothing leaked.

FORERUN_FUZZ_REQUESTS says how many (600), FORERUN_FUZZ_EXPORT a folder of `forerun export` to be asked instead of a
detector that is written out here.
"""

import os
from collections import Counter
from pathlib import Path

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from forerun.recipes.code_detector.embedding.test_vectors import untrained
from forerun.recipes.code_detector.service.app import ServiceLimits, make_app
from forerun.recipes.code_detector.service.store import PredictionStore
from forerun.recipes.code_detector.service.test_app import FakeDetector
from service_driver import serving

REQUESTS = int(os.environ.get("FORERUN_FUZZ_REQUESTS", "600"))
EXPORT = os.environ.get("FORERUN_FUZZ_EXPORT")
CANARY = "CANARY_OF_ANOTHER_STUDENT"
TELLTALE = (CANARY, "Traceback", "site-packages", str(Path(__file__).parents[1]), "sqlite")


def detector():
    if EXPORT is None:
        return FakeDetector()
    from forerun.recipes.code_detector.service.serving import open_detector

    return open_detector(Path(EXPORT))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    store = PredictionStore(f"sqlite:///{tmp_path_factory.mktemp('s')}/p.sqlite", keep_code=True)
    limits = ServiceLimits(requests_per_second=0)  # one client asks thousands
    with serving(make_app(detector(), limits=limits, store=store, embedding=untrained())) as url:
        yield url


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_5xx_and_no_leak(address):
    schemathesis = pytest.importorskip("schemathesis")
    planted = {"code": f"# {CANARY}\n" + "def f(x):\n    return x\n" * 9, "language": "python", "name": CANARY}
    assert requests.post(f"{address}/v1/detect", json=planted).status_code == 200
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    kinds = list(schemathesis.GenerationMode)
    statuses: Counter[int] = Counter()
    with requests.Session() as session:
        for operation in operations:
            for kind in kinds:
                _fuzz(operation, kind, session, statuses, REQUESTS // (len(operations) * len(kinds)) + 1)
    print(f"\n{statuses.total()} requests: {dict(sorted(statuses.items()))}")
    assert statuses.total() >= REQUESTS
    assert not [status for status in statuses if status >= 500]
    assert {200, 422} <= set(statuses)


def _fuzz(operation, kind, session, statuses, number):
    if kind.name == "NEGATIVE" and operation.method == "get":
        kind = type(kind).POSITIVE  # nothing in it can be wrong

    @given(case=operation.as_strategy(generation_mode=kind))
    @settings(
        max_examples=number, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case):
        response = case.call(session=session)
        statuses[response.status_code] += 1
        text = response.content.decode("utf-8", "replace")
        assert response.status_code < 500, text
        assert not [word for word in TELLTALE if word in text and word not in str(case.body)], text

    before = statuses.total()
    while statuses.total() - before < number:  # hypothesis ends early where there is little to vary
        left = statuses.total()
        ask()
        if statuses.total() == left:
            break
