"""Tensors of a program's own classes keep their class on the virtual device, and their operators are recorded once."""

import copy
import math

import pytest
import torch

import forerun


class Scan(torch.Tensor):
    """As MONAI, fastai and torchvision make their own: attributes travel with what operators return."""

    spacing = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        source = next((each for each in args if isinstance(each, Scan)), None)
        if isinstance(result, Scan) and source is not None:
            result.spacing = source.spacing
        return result

    def new_empty(self, *_, **__):
        raise AssertionError("shapes of convolutions are found by PyTorch's Python code, on bare tensors")


def scan(*shape):
    made = torch.rand(*shape).as_subclass(Scan)
    made.spacing = 0.5
    return made


@pytest.mark.parametrize("size", [8, 1024])  # real on the host, fake from its birth
def test_a_class_goes_to_the_device_and_through_operators(size):
    with forerun.virtual_cuda("t4") as gpu:
        on_host = scan(size, size)
        on_card = on_host.to("cuda")
        results = [on_card, on_card * 2 + torch.ones(size, device="cuda"), on_card.sum(0)[:3], on_card.clone()]
        assert all(isinstance(each, Scan) and each.is_cuda for each in results)
        assert [each.spacing for each in results] == [0.5] * 4
        assert type(on_card).__name__ == "Scan"
        assert not isinstance(on_card.as_subclass(torch.Tensor), Scan)
        bare = torch.ones(size, size, device="cuda") @ torch.ones(size, device="cuda")
        assert not isinstance(bare, Scan)
    assert sum(call.name.startswith("aten.mul") for call in gpu.trace.calls) == 1


def test_gradients_of_a_class():
    with forerun.virtual_cuda("t4"):
        net = torch.nn.Linear(8, 2, device="cuda")
        inputs = scan(4, 8).cuda().requires_grad_()
        convolution = torch.nn.Conv2d(1, 1, 3, padding=1, device="cuda")
        loss = net(convolution(inputs[None, None])[0, 0].relu_()).square().mean()
        loss.backward()
        assert [each.grad.shape for each in (net.weight, inputs)] == [(2, 8), (4, 8)]
        assert isinstance(loss.item(), float)


def test_the_host_keeps_its_classes():
    before = torch.Tensor.as_subclass
    with forerun.virtual_cuda("t4"):
        small = scan(2, 2)
        assert [type(small), type(small + 1)] == [Scan, Scan]
        assert float(small.sum()) > 0
    assert torch.Tensor.as_subclass is before


def test_attributes_that_are_copied_whole_are_the_programs_alone():
    """MONAI and fastai copy `__dict__` from one tensor to another; what makes a tensor fake stays with each."""
    with forerun.virtual_cuda("t4"):
        one, other = scan(4, 4).cuda(), scan(3).cuda()
        one.spacing = 0.25
        other.note = "left out"
        other.__dict__ = copy.deepcopy(one.__dict__)
        assert vars(other) == {"spacing": 0.25}
        other.__dict__.update({"spacing": 2.0, "unit": "mm"})
        del other.__dict__["unit"]
        assert (other.spacing, one.spacing, len(vars(other)), hasattr(other, "unit")) == (2.0, 0.25, 1, False)
        assert (other + 1).shape == (3,)
        assert (one @ one).shape == (4, 4)


def test_a_copied_model_is_of_the_same_session():
    """Averaged models are deep copies; buffers are copied with their attributes, to which the fake mode belongs."""
    with forerun.virtual_cuda("t4"):
        net = torch.nn.BatchNorm1d(4).cuda()
        average = copy.deepcopy(net)
        net(torch.ones(8, 4, device="cuda"))
        average.running_mean.mul_(0.5).add_(net.running_mean, alpha=0.5)
        assert average.running_mean.fake_mode is net.running_mean.fake_mode
        assert average.running_mean.untyped_storage()._cdata != net.running_mean.untyped_storage()._cdata


def test_attributes_stay_with_data_of_another_device():
    """As FSDP1's flat parameters have theirs, which move to the host and back."""
    with forerun.virtual_cuda("t4"):
        parameter = torch.nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
        parameter.shapes = [(1024, 1024)]
        parameter.data = parameter.to("cpu")
        assert (parameter.device.type, parameter.shapes) == ("cpu", [(1024, 1024)])
        parameter.data = parameter.to("cuda")
        assert (parameter.device.type, parameter.shapes) == ("cuda", [(1024, 1024)])


def test_attributes_of_a_class_go_to_other_tensors_whole():
    """fastai gives one tensor the `__dict__` of another, and casts to the type of another."""
    with forerun.virtual_cuda("t4"):
        on_card = scan(8).cuda()
        plain = torch.ones(8, device="cuda")
        plain.__dict__ = on_card.__dict__
        assert (plain.spacing, (plain + 1).device.type) == (0.5, "cuda")
        bare = on_card.as_subclass(torch.Tensor)
        bare.__dict__ = {"spacing": 2.0}
        assert (bare.spacing, (bare + on_card).shape) == (2.0, (8,))
        on_host = torch.ones(8).as_subclass(type(on_card))
        assert isinstance(on_host, Scan)
        assert not on_host.is_cuda
        on_host.__dict__ = on_card.__dict__
        assert (on_host.spacing, float(on_host.sum())) == (0.5, 8.0)
        on_card.__dict__.update(spacing=3.0)
        assert (on_card.spacing, dict(on_card.__dict__)) == (3.0, {"spacing": 3.0})
        on_card.__dict__.clear()
        assert on_card.spacing is None
        assert (on_card * 2).is_cuda
    assert "__setattr__" not in vars(torch._subclasses.fake_tensor.FakeTensor)


class Flat(torch.nn.Parameter):
    """As fairscale and Megatron make theirs."""

    def __new__(cls, parts, requires_grad=True):
        return super().__new__(cls, torch.cat([each.detach().flatten() for each in parts]), requires_grad)

    def __init__(self, parts, requires_grad=True):
        self.shapes = [tuple(each.shape) for each in parts]

    def views(self):
        sizes = [math.prod(shape) for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(self.split(sizes), self.shapes, strict=True)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parameters_of_a_programs_own_class_are_of_it(device):
    """`Parameter.__new__` leaves the class out where its data are not plain tensors."""
    with forerun.virtual_cuda("t4"):
        net = torch.nn.Module()
        net.flat = Flat([torch.ones(8, 4, device=device), torch.ones(8, device=device)])
        net.cuda()
        assert isinstance(net.flat, Flat)
        assert net.flat.is_cuda
        weight, bias = net.flat.views()
        optimizer = torch.optim.AdamW(net.parameters())
        torch.nn.functional.linear(torch.ones(2, 4, device="cuda"), weight, bias).sum().backward()
        optimizer.step()
        assert [net.flat.grad.shape, optimizer.state[net.flat]["exp_avg"].shape] == [(40,), (40,)]
        assert not Flat([torch.ones(2, device="cuda")], requires_grad=False).requires_grad
    assert torch.nn.Parameter.__new__.__module__ == "torch.nn.parameter"
