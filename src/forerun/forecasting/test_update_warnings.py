from forerun.forecasting.update_warnings import update_warnings
from forerun.settings.load import settings_from

RUN = {"name": "m", "workload": "causal-lm", "model": {"name": "tiny-gpt2"}, "data": {"examples": 8}}
RANKS = {"parallel": {"kind": "ddp", "world_size": 8}}
MUON = {"optimizer": {"name": "muon"}}


def warnings(more, optimizer_seconds=0.08, step_seconds=0.2):
    return update_warnings(settings_from(RUN | more), optimizer_seconds, step_seconds)


def test_an_update_that_every_rank_repeats_is_said():
    (text,) = warnings(RANKS | MUON)
    assert "each of 8 ranks updates all matrices" in text
    assert "80.0 ms of the step" in text
    assert "10.0 ms" in text
    assert warnings(MUON) == []
    assert warnings(MUON | {"parallel": {"kind": "fsdp", "world_size": 8}}) == []


def test_a_large_update_by_the_default_kernel_is_said():
    (text,) = warnings({})
    assert text.startswith("The update is 80.0 ms, 40.0 % of the step, by the fused kernel")
    assert warnings({}, optimizer_seconds=0.01) == [], "of adapters"
    assert warnings({"optimizer": {"implementation": "foreach"}}) == []
