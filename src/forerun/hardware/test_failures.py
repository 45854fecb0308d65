"""Published rates say what their reports say."""

import pytest

from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.hardware.failures import failures_of, published_failures


@pytest.mark.literature
def test_the_clusters_of_llama_3_and_rsc_1_are_interrupted_as_often_as_their_reports_say():
    rows = published_failures()
    # "one failure every three hours" at 16,384 GPUs; RSC-1's projection is 1.8 hours at 16,384 (arXiv 2410.21680)
    assert rows["llama-3-405b"].hours_between / 16384 == pytest.approx(3, rel=0.05)
    assert rows["meta-rsc-1"].hours_between / 16384 == pytest.approx(1.8, rel=0.01)


def test_every_report_has_a_source_a_known_gpu_and_hours_that_its_gpus_can_have_run():
    for row in published_failures().values():
        assert len(row.source) > 60
        assert device(row.gpu).name == row.gpu
        assert row.gpu_hours / row.gpus > 10
        assert 10_000 < row.hours_between < 100_000


def test_hours_are_taken_as_they_are_and_names_are_not_guessed():
    assert failures_of(25_000.0)[0] == 25_000
    assert failures_of(None)[0] == float("inf")
    with pytest.raises(InvalidSettings, match=r"found 'llama-3'. Nearest: llama-3-405b"):
        failures_of("llama-3")
