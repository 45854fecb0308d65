"""The rank that is traced is the rank that is run: DDP and FSDP2 against real processes that talk over gloo."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forerun.data.plan import BatchShape
from forerun.hardware.detect import detect_cpu
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import OP
from forerun.virtual.trace_step import trace_step

DRIVER = Path(__file__).with_name("rank_driver.py")
UNSEEN = (
    "profiler._record_function_enter_new.default",
    "profiler._record_function_exit._RecordFunction",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten._local_scalar_dense.default",
    "prim.device.default",
    "aten.zeros.default",
)
"""Bookkeeping, and the making of the batch."""
WAIT = "_c10d_functional.wait_tensor.default"


def run_ranks(settings, store, number):
    """Reports of `number` ranks, one each."""
    command = [sys.executable, str(DRIVER), str(store)]
    text = settings.model_dump_json()
    ranks = [
        subprocess.Popen([*command, str(rank), text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(number)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors[-2000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.parity
@pytest.mark.medium
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_one_rank_is_that_of_a_real_group(kind, precision, tmp_path):
    settings = settings_from(
        {
            "name": "p", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": precision,
            "batch": {"micro_batch_size": 2, "sequence_length": 48, "gradient_accumulation_steps": 2},
            "parallel": {"kind": kind, "world_size": 2},
        }
    )  # fmt: skip
    real = run_ranks(settings, tmp_path / "store", 2)[0]
    alone = real if kind == "ddp" else run_ranks(settings, "fake", 1)[0]
    trace = trace_step(settings, generic_workload("causal-lm"), detect_cpu().device, BatchShape(2, 48))
    warm = [trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP]
    traced, names = Counter(trace.calls[op.call].name for op in warm), Counter(real["names"])
    for counts in (traced, names):  # autograd's sums: `test_trace_is_run.py` says why
        counts["aten.add.Tensor"] += counts.pop("aten.add_.Tensor", 0)
    scattered = names["c10d._reduce_scatter_base_.default"]  # gloo makes each of a split and a copy
    names.subtract({"aten.split.Tensor": scattered, "aten.copy_.default": scattered})
    names["aten.copy_.default"] += names.pop("aten.mul.out", 0)  # DDP divides while it copies when no hook does that
    names[WAIT] += names.pop(
        "_c10d_functional._wrap_tensor_autograd.default", 0
    )  # a real result is waited for when read
    for unseen in UNSEEN:
        traced.pop(unseen, None)
        names.pop(unseen, None)
    assert traced - names == names - traced == Counter()
    forecast = replay_memory(trace, is_host=True).peak_allocated_bytes
    buckets = 4 * trace.trainable_parameters if kind == "ddp" else 0  # DDP's stay alive from step to step
    assert abs(forecast - alone["peak"] - buckets) <= 0.01 * forecast + 4096
