"""Tensors, optimizers and events of programs on a virtual GPU: what they are, and which values are known."""

import copy

import pytest
import torch
from torch import nn

import forerun
from forerun.forecasting.held_tensors import find_held_tensors
from forerun.hardware.catalogue import device

FLOAT_BYTES = 4


def test_values_that_are_known_are_right_and_others_are_told():
    with forerun.virtual_cuda("t4") as gpu:
        mask = torch.tensor([1, 0, 1, 1], device="cuda")
        assert mask.sum().item() == 3
        assert mask.nonzero().squeeze(1).tolist() == [0, 2, 3]
        assert torch.arange(6, device="cuda")[mask.cumsum(0)].tolist() == [1, 1, 2, 3]
        assert (mask.bool() & (mask > 0)).all().item() is False
        assert gpu.assumed == []
        unknown = torch.randn(8, device="cuda").sum()
        assert unknown.item() == 1.0
        assert len(gpu.assumed) == 1
        mask.copy_((torch.rand(4, device="cuda") > 0.5).long())
        assert not torch.isnan(unknown)
        assert torch.isfinite(unknown)


class MakesTensorsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.tensor(2.0, device=ctx.saved_tensors[0].device) * torch.ones(64, device="cuda")


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_backward_passes_make_tensors_on_the_device(is_reentrant):
    def block(x):
        return x + torch.arange(64, device=x.device) * torch.tensor([1.0], device="cuda")

    with forerun.virtual_cuda("t4"):
        x = torch.randn(8, 64, device="cuda", requires_grad=True)
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=is_reentrant)
        MakesTensorsInBackward.apply(y).sum().backward()
        (gradient,) = torch.autograd.grad(MakesTensorsInBackward.apply(x).sum(), x)
        assert x.grad.is_cuda
        assert gradient.device == x.device


def test_operators_on_tensors_that_hold_tensors_are_those_on_what_they_hold():
    """torchao's float8 weights are such; their shards and the state of their optimizer had no memory before."""
    from torch.testing._internal.two_tensor import TwoTensor

    with forerun.virtual_cuda("a10") as gpu:
        parts = [torch.zeros(1024, 1024, device="cuda") for _ in range(2)]
        weight = nn.Parameter(TwoTensor(*parts))
        before = torch.cuda.memory_allocated()
        optimizer = torch.optim.AdamW([weight], foreach=False)
        (weight * 2).sum().backward()
        optimizer.step()
        state = optimizer.state[weight]["exp_avg"]
        assert isinstance(state, TwoTensor)
        del optimizer
        held = torch.cuda.memory_allocated() - before
        assert held >= 2 * 1024 * 1024 * FLOAT_BYTES * 2  # a gradient and, of the state, one average
        assert gpu.assumed == []


def test_products_with_a_dtype_of_their_own_count():
    with forerun.virtual_cuda("a10") as gpu:
        a, b = torch.zeros(64, 32, device="cuda", dtype=torch.bfloat16), torch.zeros(32, 16, device="cuda").bfloat16()
        torch.mm(a, b, out_dtype=torch.float32)
        torch.addmm(torch.zeros(64, 16, device="cuda"), a, b, out_dtype=torch.float32)
    assert gpu.clock.hardware_flops == 2 * (2 * 64 * 32 * 16)


def test_a_product_of_complex_numbers_is_four_real_ones():
    """As long as a real product of matrices of twice the rows and columns, which has as many multiply-adds."""

    def run(rows, columns, dtype):
        with forerun.virtual_cuda("a100-40gb") as gpu:
            left = torch.zeros(rows, columns, device="cuda", dtype=dtype)
            left @ torch.zeros(columns, 512, device="cuda", dtype=dtype)
        (product,) = [each for each in gpu.clock.operators if "mm" in each.name]
        return gpu.clock.hardware_flops, product.seconds

    flops, seconds = run(512, 1024, torch.complex64)
    assert flops == 8 * 512 * 1024 * 512
    assert (flops, seconds) == run(1024, 2048, torch.float32)


@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.parametrize("width", [64, 1024])
def test_an_optimizer_made_before_the_model_moves_updates_what_moved(width, is_earlier):
    """With values on the host (64) or none (1024: too large), and made inside the virtual GPU or before it."""

    def build():
        net = nn.Linear(width, width, bias=False)
        return net, torch.optim.AdamW(net.parameters())

    net, optimizer = build() if is_earlier else (None, None)
    with forerun.virtual_cuda("a10") as gpu:
        net, optimizer = (net, optimizer) if is_earlier else build()
        net.to("cuda")
        net(torch.zeros(4, width, device="cuda")).sum().backward()
        assert net.weight.grad is not None
        optimizer.step()
    assert gpu.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * width**2 * FLOAT_BYTES, rel=0.05)


def test_events_tell_the_virtual_time():
    with forerun.virtual_cuda("t4") as gpu:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        matrix = torch.randn(4096, 4096, device="cuda")
        begin.record()
        for _ in range(10):
            matrix @ matrix
        end.record()
        torch.cuda.synchronize()
        milliseconds = begin.elapsed_time(end)
    flops = 10 * 2 * 4096**3
    assert milliseconds > 1000 * flops / device("t4").peak("float32")
    assert milliseconds <= 1000 * gpu.clock.seconds


def test_old_programs_name_types_of_tensors():
    with forerun.virtual_cuda("t4"):
        weight = torch.cuda.FloatTensor([1, 2, 3])
        assert (weight.dtype, weight.shape, weight.device.type) == (torch.float32, (3,), "cuda")
        assert torch.cuda.LongTensor(4, 5).shape == (4, 5)
        assert weight.sum().item() == 6
        assert isinstance(weight, torch.cuda.FloatTensor)
        assert not isinstance(weight.cpu(), torch.cuda.FloatTensor)
        assert not isinstance(weight.long(), torch.cuda.FloatTensor)
        assert torch.ones(2).type(torch.cuda.HalfTensor).dtype is torch.float16
        assert weight.new([4.0, 5.0]).tolist() == [4, 5]
        assert weight.new(4, 5).shape == (4, 5)


def test_tensors_from_values_of_the_device():
    with forerun.virtual_cuda("t4"):
        weight = torch.ones(3, device="cuda", dtype=torch.float64)
        fresh = weight.new_tensor([[1, 2]])
        assert (fresh.dtype, fresh.shape, fresh.is_cuda) == (torch.float64, (1, 2), True)
        assert (fresh + 1).tolist() == [[2, 3]]
        together = torch.tensor([weight.sum(), weight.sum() + 1])
        assert (together.tolist(), together.dtype, together.is_cuda) == ([3, 4], torch.float64, False)
        assert torch.ones(2).new_tensor(1, device="cuda").is_cuda


def test_attention_is_fused_in_inference_mode_too():
    with forerun.virtual_cuda("a10") as gpu, torch.inference_mode():
        query = torch.ones(2, 8, 512, 64, device="cuda", dtype=torch.float16)
        nn.functional.scaled_dot_product_attention(query, query, query).sum().item()
        assert not torch.is_grad_enabled()
    assert any("flash" in call.name for call in gpu.trace.calls)
    assert torch.is_grad_enabled()


def test_the_accelerator_has_no_index_of_its_own():
    with forerun.virtual_cuda("t4"):
        assert torch.device(f"{torch.accelerator.current_accelerator()}:0") == torch.device("cuda", 0)


def test_copies_of_models_on_the_device():
    with forerun.virtual_cuda("t4"):
        net = nn.Linear(64, 64).cuda()
        twin = copy.deepcopy(net)
        assert twin.weight.is_cuda
        assert twin.weight.data_ptr() != net.weight.data_ptr()
        assert net.weight[:].data_ptr() == net.weight.data_ptr()


def test_the_default_device_is_the_virtual_one():
    with forerun.virtual_cuda("t4"):
        torch.set_default_device("cuda")
        try:
            assert torch.tensor(2.0).is_cuda
            assert torch.zeros(2).is_cuda
            assert not torch.tensor(2.0, device="cpu").is_cuda
        finally:
            torch.set_default_device(None)


def test_random_lengths_are_drawn_from_their_range_and_the_hosts_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with forerun.virtual_cuda("t4") as gpu:
        lengths = torch.randint(300, 800, (16,), device="cuda")
        places = torch.randperm(16, device="cuda")
        assert all(300 <= length < 800 for length in lengths.tolist())
        assert sorted(places.tolist()) == list(range(16))
        assert 0 <= torch.rand(1, device="cuda").item() < 1
    assert gpu.assumed
    assert torch.equal(torch.rand(2), expected)


def test_class_maps_of_square_images_are_no_attention_matrices():
    net = nn.Conv2d(3, 5, 3, padding=1)
    with forerun.virtual_cuda("t4") as gpu:
        net.cuda()
        torch.softmax(net(torch.zeros(16, 3, 128, 128, device="cuda")), 1).sum().backward()
    assert find_held_tensors(gpu.trace, gpu.memory) == []


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 4, 96])
def test_a_backward_convolution_does_twice_what_the_forward_one_does(groups, transposed):
    """PyTorch's own counter has it 97 times as much with 96 groups."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    with forerun.virtual_cuda("a10") as gpu:
        layer = kind(96, 96, 3, padding=1, groups=groups, bias=False, device="cuda")
        layer(torch.zeros(2, 96, 16, 16, device="cuda", requires_grad=True)).sum().backward()
    flops = {call.name.split(".")[1]: call.flops for call in gpu.trace.calls if "convolution" in call.name}
    assert flops["convolution"] == 2 * 2 * 16**2 * 96 * 96 // groups * 9
    assert flops["convolution_backward"] == 2 * flops["convolution"]
