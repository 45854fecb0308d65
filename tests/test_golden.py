"""The op stream of one step of a tiny encoder and decoder, pinned: any change in what is traced shows here first.

Recorded with PyTorch 2.13 and transformers 5.23; another version may issue other operators, so the test runs only with
the versions in the file. Write again on purpose with `python tests/test_golden.py`, and say in the commit why.
"""

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.trace_step import trace_step

FOLDER = Path(__file__).parent / "golden"
CASES = {
    "encoder": ("tiny-bert", "sequence-classification", "fp16-mixed", "t4"),
    "decoder": ("tiny-llama", "causal-lm", "bf16-mixed", "a100-40gb"),
}


def versions():
    return {name: ".".join(version(name).partition("+")[0].split(".")[:2]) for name in ("torch", "transformers")}


def stream(name, workload, precision, gpu):
    batch = {"micro_batch_size": 2, "sequence_length": 32}
    settings = settings_from(
        {"name": name, "workload": workload, "model": {"name": name}, "precision": precision, "batch": batch,
         "optimizer": {"max_gradient_norm": 1.0}}
    )  # fmt: skip
    trace = trace_step(settings, generic_workload(workload), device(gpu), BatchShape(2, 32))
    ops = [op for op in trace.ops if op.phase.value != "prepare"]
    replay = replay_memory(trace)
    return {
        "versions": versions(),
        "ops": [f"{op.phase.value} {op.module or '-'} {trace.calls[op.call].name}" for op in ops],
        "flops": sum(trace.calls[op.call].flops for op in ops),
        "peak_allocated_bytes": replay.peak_allocated_bytes,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
        "breakdown": replay.breakdown.model_dump(),
    }


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_the_op_stream_is_the_recorded_one(case):
    recorded = json.loads((FOLDER / f"{case}.json").read_text())
    if recorded["versions"] != versions():
        pytest.skip(f"recorded with {recorded['versions']}")
    current = stream(*CASES[case])
    assert Counter(current["ops"]) - Counter(recorded["ops"]) == Counter(recorded["ops"]) - Counter(current["ops"])
    assert current == recorded


def test_the_streams_hold_what_a_step_must():
    """Not only equal to a file: forward, backward and update, fused update, the target's attention."""
    for case, attention in (("encoder", "efficient"), ("decoder", "flash")):
        ops = json.loads((FOLDER / f"{case}.json").read_text())["ops"]
        assert any("optimizer" in op and "_fused_adamw_" in op for op in ops)
        assert sum(f"_scaled_dot_product_{attention}_attention.default" in op for op in ops) == 2
        assert sum(f"_scaled_dot_product_{attention}_attention_backward" in op for op in ops) == 2


if __name__ == "__main__":
    for case, arguments in CASES.items():
        (FOLDER / f"{case}.json").write_text(json.dumps(stream(*arguments), indent=1))
