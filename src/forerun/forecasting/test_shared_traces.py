"""A recipe on many cards: the same forecasts as one by one, from fewer traces and data that are opened once."""

import pytest

from forerun import api
from forerun.api import find_device, forecast_on_cards, forecast_settings, resolve
from forerun.forecasting.shared_traces import SharedTraces
from forerun.virtual import repeated_blocks

CARDS = ("t4", "a100-40gb", "a100-80gb")
TINY = ("batch.sequence_length=16", "evaluation.examples=4", "schedule.max_steps=10")


@pytest.mark.medium
def test_cards_share_data_and_traces_and_get_the_forecasts_of_each_alone(monkeypatch):
    settings, calls = resolve("okadfa", TINY), []
    alone = [forecast_settings(settings, find_device(gpu)) for gpu in CARDS]

    def count(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (calls.append(name), function(*a, **k))[1])

    count(api, "open_experiment")
    count(repeated_blocks, "trace_step_by_blocks")
    together = forecast_on_cards(settings, [find_device(gpu) for gpu in CARDS])
    assert [f.step for f in together] == [f.step for f in alone]
    assert [f.memory for f in together] == [f.memory for f in alone]
    # both A100s answer alike what a step asks of its card
    assert [calls.count(name) for name in ("open_experiment", "trace_step_by_blocks")] == [1, 2]


def test_another_workload_or_another_fact_has_a_trace_of_its_own():
    shared, made = SharedTraces(), []

    def make(device):
        made.append(device.compute_capability)
        return len(made)

    def ask(workload, gpu):
        return shared.trace("step", workload, find_device(gpu), make)

    first, second = object(), object()
    questions = (first, "a100-40gb"), (first, "a100-80gb"), (first, "t4"), (second, "a100-40gb")
    assert [ask(*question) for question in questions] == [1, 1, 2, 3]
