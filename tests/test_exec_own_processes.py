"""Scripts that start their ranks as processes of their own: one by one, or by Ray Train."""

import sys
import textwrap

import pytest
from tests.exec_runs import forecast

from forerun.errors import InvalidSettings

ONE_BY_ONE = """
import os
import torch
from torch import distributed, multiprocessing, nn
from torch.utils.data import DataLoader, Subset

def average(model):
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad.data)
        parameter.grad.data /= distributed.get_world_size()

def work(rank, ranks):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    distributed.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    model = nn.Linear(256, 256).to(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Subset(torch.zeros(640, 256), range(rank * 160, rank * 160 + 160)), 8)
    for epoch in range(3):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(rank)).square().mean().backward()
            average(model)
            optimizer.step()

if __name__ == "__main__":
    processes = []
    for rank in range(4):
        processes.append(multiprocessing.get_context("spawn").Process(target=work, args=(rank, 4)))
        processes[-1].start()
    for process in processes:
        process.join()
        assert (process.exitcode, process.is_alive()) == (0, False)
"""


def test_ranks_that_a_script_starts_one_by_one(tmp_path):
    """As PyTorch's tutorial does, with gradients averaged by a loop and rows that each rank picks itself."""
    document, _ = forecast(tmp_path, "", ranks=4, head=ONE_BY_ONE)
    assert (document.world_size, document.run.total_steps) == (4, 3 * 20)
    assert document.step.samples_per_second == pytest.approx(4 * 8 / document.step.seconds.expected)
    assert [finding for finding in document.findings if finding.kind == "missing-sampler"] == []
    whole = ONE_BY_ONE.replace(
        "Subset(torch.zeros(640, 256), range(rank * 160, rank * 160 + 160))", "torch.zeros(160, 256)"
    )
    document, _ = forecast(tmp_path, "", ranks=4, head=whole)
    assert [finding for finding in document.findings if finding.kind == "missing-sampler"] != []


def test_processes_for_something_else_run_and_are_named(tmp_path):
    script = """
        import multiprocessing
        other = multiprocessing.get_context("fork").Process(target=len, args=([],))
        other.start()
        other.join()
        assert other.exitcode == 0
    """
    document, _ = forecast(tmp_path, "", head=textwrap.dedent(script))
    assert any("processes of its own (train.py:4)" in warning for warning in document.warnings)


RAY = """
class DataParallelTrainer:
    running_in_local_mode = False

    def __init__(self, function, workers):
        self.function = function
        self.scaling_config = type("Scaling", (), {"num_workers": workers})

    def fit(self):
        assert self.running_in_local_mode
        return self.function()
"""
RAY_SCRIPT = """
import torch
from torch import distributed, nn
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def work():
    distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in range(30):
        model(torch.randn(8, 256, device="cuda")).square().mean().backward()
        optimizer.step()

DataParallelTrainer(work, 4).fit()
"""


def test_the_function_of_ray_train_runs_as_a_rank(tmp_path, monkeypatch):
    """A package as Ray's is in this, whose workers would be processes of its cluster."""
    package = tmp_path / "site-packages" / "ray" / "train" / "v2" / "api"
    package.mkdir(parents=True)
    (package / "data_parallel_trainer.py").write_text(RAY)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        document, _ = forecast(tmp_path, "", ranks=4, head=RAY_SCRIPT)
        assert (document.world_size, document.run.total_steps) == (4, 30)
        with pytest.raises(InvalidSettings, match="num_workers is 4, and the job has 1.*--nproc-per-node 4"):
            forecast(tmp_path, "", head=RAY_SCRIPT)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ray"]:
            del sys.modules[name]
