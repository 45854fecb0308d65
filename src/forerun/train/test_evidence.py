"""What a run says of its machine; NVML is played here."""

from types import SimpleNamespace

import pytest

from forerun.train import evidence
from forerun.train.evidence import SECONDS_BETWEEN_READINGS, Witness


@pytest.fixture
def nvml(monkeypatch):
    readings = []

    def load(handle):
        readings.append(handle)
        return SimpleNamespace(gpu=80)

    library = SimpleNamespace(
        NVML_CLOCK_SM=1, nvmlDeviceGetUtilizationRates=load, nvmlDeviceGetClockInfo=lambda handle, kind: 990,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4,
    )  # fmt: skip
    monkeypatch.setattr(evidence, "_nvml_handle", lambda: (library, "gpu", 1980))
    return readings


def test_a_gpu_is_read_now_and_then_and_not_after_each_step(nvml, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(evidence.time, "monotonic", lambda: now[0])
    witness = Witness("cuda")
    for _ in range(10):  # ten steps of a tenth of a second
        witness.step_done()
        now[0] += 0.1
    assert len(nvml) == 2 == round(1.0 / SECONDS_BETWEEN_READINGS)
    assert (witness.busy_share, witness.clock_share) == (0.8, 0.5)
    answer = witness.evidence(10, 0)
    assert (answer.clock_share, answer.throttled_share) == (0.5, 1.0)


def test_without_a_gpu_nothing_is_read(nvml):
    witness = Witness("cpu")
    witness.step_done()
    assert (nvml, witness.busy_share, witness.clock_share) == ([], None, None)
