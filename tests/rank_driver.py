"""One rank runs a few steps on real tensors; prints the peak of the third and the operators of the fourth.

Its peers are processes that talk over gloo, or nobody when STORE is "fake": gloo copies what it reduces.

Usage: rank_driver.py STORE RANK SETTINGS-JSON
"""

import json
import os
import sys
from collections import Counter

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.measure import run_measuring_allocations


class OpNames(TorchDispatchMode):
    """Counts aten calls on plain tensors."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "_local_tensor") for kind in types):
            return NotImplemented
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def main(store, rank, text):
    torch.set_num_threads(1)
    settings = settings_from(json.loads(text))
    world = settings.parallel.world_size
    if store == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    else:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.manual_seed(0)
    workload = generic_workload(settings.workload)
    step = build_step(settings, workload, "cpu", pretrained=False)
    shape = settings.batch
    batches = [
        workload.example_batch(settings, shape.micro_batch_size, shape.sequence_length)
        for _ in range(shape.gradient_accumulation_steps)
    ]
    for _ in range(2):
        step.run(batches, StepObserver())
    _, peak = run_measuring_allocations(lambda: step.run(batches, StepObserver()), step, batches)
    with OpNames() as real:
        step.run(batches, StepObserver())
    print(json.dumps({"names": real.names, "peak": peak}), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
