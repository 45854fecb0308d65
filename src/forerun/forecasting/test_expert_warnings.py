"""What is assumed of routing is said with figures that can be counted by hand."""

import itertools
import re

import pytest

from forerun.api import forecast
from forerun.forecasting.expert_warnings import TILE_ROWS, tiles

SIZE, LENGTH, CHOSEN, EXPERTS = 2, 64, 2, 4
MIXTRAL = {
    "name": "m", "workload": "causal-lm", "precision": "bf16-true", "data": {"examples": 8},
    "batch": {"micro_batch_size": SIZE, "sequence_length": LENGTH},
    "model": {"name": "tiny-mixtral", "config": {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}},
}  # fmt: skip


def test_rows_and_experts_are_those_of_the_step():
    (warning,) = [w for w in forecast(MIXTRAL, "a100-40gb").warnings if "experts" in w]
    rows = SIZE * LENGTH * CHOSEN
    assert warning.startswith(f"Assumed: {rows} rows are routed evenly over {EXPERTS} experts, {rows // EXPERTS} each.")
    dense = MIXTRAL | {"model": {"name": "tiny-llama"}}
    assert not any("experts" in w for w in forecast(dense, "a100-40gb").warnings)


def test_seconds_are_those_of_all_micro_steps():
    """Two micro-steps are traced; the second stands for the others."""

    def told(micro_steps):
        batch = MIXTRAL["batch"] | {"gradient_accumulation_steps": micro_steps}
        settings = MIXTRAL | {"batch": batch, "data": {"examples": 64}}
        (warning,) = [w for w in forecast(settings, "a100-40gb").warnings if "experts" in w]
        number, unit = re.search(r"take ([\d.]+) (\S+) a step", warning).groups()
        return float(number) * {"µs": 1, "ms": 1000}[unit]

    assert told(8) == pytest.approx(8 * told(1), rel=0.01)


@pytest.mark.parametrize(("rows", "groups"), [(5, 2), (300, 3), (129, 2), (2, 3), (512, 2)])
def test_tiles_by_trying_every_routing(rows, groups):
    cuts = itertools.combinations_with_replacement(range(rows + 1), groups - 1)
    counts = [sum(-(-(end - begin) // TILE_ROWS) for begin, end in itertools.pairwise((0, *cut, rows))) for cut in cuts]
    assert tiles(rows, groups, even=False) == max(counts)
    assert min(counts) <= tiles(rows, groups, even=True) <= max(counts)
