"""What a user types is read, or refused with what was found."""

import json

import pytest

from forerun.errors import InvalidSettings
from forerun.units import GIB, GIGA
from forerun.verify.measured_step import forecast_in, observation_of
from forerun.verify.test_compare import forecast


def test_units_are_read():
    observation = observation_of(["step=540ms, peak=18.2GiB", "device=20GB"])
    assert observation.seconds == pytest.approx(0.54)
    assert observation.memory == {"peak": round(18.2 * GIB), "device": 20 * GIGA}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step=0.54", "with its unit"),
        ("peak=18.2", "with its unit"),
        ("step=18.2GiB", "with its unit"),
        ("step=-1s", "above zero"),
        ("step=nans", "above zero"),
        ("peak=infGiB", "above zero"),
        ("peak=0GiB", "above zero"),
        ("loss=1s", "found 'loss=1s'"),
        ("0.54s", "found '0.54s'"),
        ("step=1s,step=2s", "twice"),
        ("step=0,54s", "with its unit"),
        ("", "found ''"),
    ],
)
def test_bad_input_is_refused_by_name(text, says):
    with pytest.raises(InvalidSettings, match="--measured") as refusal:
        observation_of([text])
    assert says in str(refusal.value)


def test_a_forecast_is_read_from_its_document(tmp_path):
    path = tmp_path / "out.json"
    path.write_text(json.dumps({**forecast().model_dump(mode="json", by_alias=True), "what_if": []}))
    assert forecast_in(path, None) == forecast()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"schema": "forerun.plan/1", "gpu": "t4"}'])
def test_no_forecast_is_refused(tmp_path, content):
    path = tmp_path / "out.json"
    path.write_text(content)
    with pytest.raises(InvalidSettings, match="--forecast"):
        forecast_in(path, None)


def test_of_several_the_gpu_is_named(tmp_path):
    path = tmp_path / "out.json"
    document = forecast().model_dump(mode="json", by_alias=True)
    path.write_text(json.dumps({"forecasts": [document, {**document, "gpu": "t4"}]}))
    assert forecast_in(path, "t4").gpu == "t4"
    for gpu in (None, "h200"):
        with pytest.raises(InvalidSettings, match="Name one of them"):
            forecast_in(path, gpu)
