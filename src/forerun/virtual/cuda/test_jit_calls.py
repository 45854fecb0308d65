"""What is traced runs once and stands for its trace; losses whose lengths stay on the host."""

import torch

import forerun


def test_a_traced_module_trains_as_itself():
    with forerun.virtual_cuda("t4") as gpu:
        net = torch.nn.Linear(8, 2).cuda()
        traced = torch.jit.trace(net, torch.ones(1, 8, device="cuda"))
        assert [op.phase.value for op in gpu.trace.ops if "addmm" in gpu.trace.calls[op.call].name] == ["forward"]
        traced(torch.ones(4, 8, device="cuda")).sum().backward()
        assert net.weight.grad is not None
        both = torch.jit.trace(lambda x, y: x + y, (torch.ones(2).cuda(), torch.ones(2).cuda()))
        assert both(torch.ones(3).cuda(), torch.ones(3).cuda()).shape == (3,)
    real = torch.jit.trace(torch.nn.Linear(8, 2), torch.ones(1, 8))
    assert isinstance(real, torch.jit.ScriptModule)


def test_a_compiled_module_is_told_of_once_and_functions_of_libraries_are_not():
    with forerun.virtual_cuda("t4") as gpu:
        torch.jit.script(_scaled)
        assert gpu._session.not_followed == []
        for _ in range(2):
            net = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.ReLU()).cuda())
        net(torch.ones(4, 8, device="cuda")).sum().backward()
        (text,) = gpu._session.not_followed
    assert "TorchScript" in text
    assert net[0].weight.grad is not None


def _scaled(x: torch.Tensor, factor: float):
    return x * factor


def test_losses_over_alignments_take_lengths_of_the_host():
    with forerun.virtual_cuda("t4"):
        scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
        targets = torch.randint(1, 20, (4, 10), device="cuda")
        lengths = torch.full((4,), 50), torch.full((4,), 10)
        for where in ("cpu", "cuda"):
            for reduction, shape in (("mean", ()), ("sum", ()), ("none", (4,))):
                loss = torch.nn.CTCLoss(reduction=reduction, zero_infinity=True)
                own = loss(scores.log_softmax(-1), targets, lengths[0], lengths[1].to(where))
                assert (own.shape, own.device.type) == (shape, "cuda")
                own.sum().backward()
        assert scores.grad is not None
