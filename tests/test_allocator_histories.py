"""The simulated allocator against histories that a true one wrote, on an H100 with PyTorch 2.11.

Written by `benchmarks/truth/measure_programs.py --histories` on 2026-11-26: one process each, eight steps.
"""

import gzip
import json
from pathlib import Path

import pytest

from forerun.memory.snapshot import replay_snapshot

FOLDER = Path(__file__).parent / "golden" / "allocator-h100"
EXACT = ("efficientnet_fp32", "gpt_large_checkpointed", "lstm_language_model")


def replay_of(name):
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="ascii") as file:
        rows = map(json.loads, file)
        entries = [{"action": a, "addr": address, "size": size, "stream": stream} for a, address, size, stream in rows]
    return replay_snapshot({"device_traces": [entries]})


@pytest.mark.golden
@pytest.mark.parametrize("name", EXACT)
def test_reserved_memory_is_exact(name):
    replay = replay_of(name)
    assert replay.unknown_frees == 0
    assert replay.simulated_reserved_bytes == replay.recorded_reserved_bytes > 0


@pytest.mark.golden
def test_a_program_that_empties_its_cache_is_within_a_percent():
    """Lightning gives the cache back at the end; which segments stay follows from their order there."""
    replay = replay_of("lightning_vit")
    assert replay.simulated_reserved_bytes == pytest.approx(replay.recorded_reserved_bytes, rel=0.01)
