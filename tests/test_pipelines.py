"""Steps of a pipeline are those of one process: losses, norms and weights, under every schedule and other splits."""

import json
from pathlib import Path

import pytest
import torch
from tests.rank_processes import run_ranks

DRIVER = Path(__file__).with_name("pipeline_driver.py")
pytestmark = [pytest.mark.medium, pytest.mark.parity]


def run(folder, world, parallel):
    folder.mkdir(parents=True, exist_ok=True)
    printed = run_ranks(DRIVER, world, str(folder), json.dumps(parallel))
    (line,) = [text for text in printed.splitlines() if text.startswith("[[")]
    weights = {}
    for rank in range(world):
        weights |= torch.load(folder / f"weights-{rank}.pt", weights_only=True)
    return json.loads(line), weights


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("alone"), 1, {})


@pytest.mark.parametrize(
    ("world", "parallel"),
    [
        (2, {"pipeline": 2, "schedule": "gpipe"}), (2, {"pipeline": 2}),
        (2, {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2}),
        (2, {"pipeline": 2, "schedule": "zero-bubble", "virtual_stages": 2}),
        (4, {"pipeline": 2, "shard": 2, "schedule": "interleaved", "virtual_stages": 2}),
        (4, {"pipeline": 2, "tensor": 2, "sequence_parallel": True}),
    ],
)  # fmt: skip
def test_stages_are_one_model(tmp_path, alone, world, parallel):
    """fp32 sums in another order, and AdamW divides small gradients by their size: 2e-4 after three updates of 1e-3."""
    results, weights = run(tmp_path, world, parallel)
    for mine, other in zip(results, alone[0], strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    assert set(weights) == set(alone[1]), "stages keep the names of the whole model"
    for name, weight in alone[1].items():
        assert torch.allclose(weights[name], weight, atol=2e-4), name
