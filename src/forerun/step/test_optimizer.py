"""Every rule of the contract: what it updates, and that its state survives a checkpoint bit for bit."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from forerun.errors import NotSupported
from forerun.settings.schema import OptimizerSettings
from forerun.step.optimizer import MuonWithAdamW, build_optimizer
from forerun.train import checkpoint
from forerun.train.parts import Parts

RULES = ("adamw", "sgd", "adafactor", "lion", "muon", "adamw-8bit", "paged-adamw-8bit")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 128), nn.Linear(128, 64), nn.LayerNorm(64), nn.Linear(64, 8))


def train(network, optimizer, steps, seed):
    torch.manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 64, (4, 6))
        network(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def network_and_optimizer(name):
    if name in ("lion", "adamw-8bit", "paged-adamw-8bit"):
        pytest.importorskip("bitsandbytes")
    network = model()
    settings = OptimizerSettings(name=name, learning_rate=0.01)
    return network, build_optimizer(network, settings)


def stepping(network, optimizer):
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return SimpleNamespace(optimizer=optimizer, parameter_names=names, pipeline=None)


def test_state_that_was_kept_by_places_is_read(tmp_path):
    """Checkpoints of before 2026-11-25 have the place of a parameter in the optimizer where newer ones have its name."""
    network, optimizer = network_and_optimizer("adamw")
    train(network, optimizer, 2, seed=1)
    step = stepping(network, optimizer)
    tensors = checkpoint._optimizer_tensors(step)  # type: ignore[arg-type]
    places = {
        step.parameter_names[id(parameter)]: str(place)
        for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
    }
    old = {}
    for key, value in tensors.items():
        name, _, rest = key.partition(":")
        old[f"{places[name]}:{rest}"] = value.clone()
    file = tmp_path / "state.safetensors"
    save_file(old, file)
    kept = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    source = Parts({file: {key: [0] * value.ndim for key, value in old.items()}})
    checkpoint._restore_optimizer(step, source)  # type: ignore[arg-type]
    assert set(optimizer.state) == set(kept)
    for parameter, state in kept.items():
        assert all(torch.equal(optimizer.state[parameter][name], value) for name, value in state.items())


@pytest.mark.parametrize("name", RULES)
def test_a_run_goes_on_bit_for_bit_from_its_saved_state(name, tmp_path):
    """Three updates, saved and loaded, three more; against six in one go. The 8-bit state has matrices of 8,192."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
        whole, optimizer = network_and_optimizer(name)
        train(whole, optimizer, 3, seed=1)
        train(whole, optimizer, 3, seed=2)
        first, optimizer = network_and_optimizer(name)
        train(first, optimizer, 3, seed=1)
        tensors = checkpoint._optimizer_tensors(stepping(first, optimizer))  # type: ignore[arg-type]
        file = tmp_path / "state.safetensors"
        save_file({key: value.clone() for key, value in tensors.items()}, file)
        second, optimizer = network_and_optimizer(name)
        second.load_state_dict(first.state_dict())
        saved = Parts({file: {key: [0] * value.ndim for key, value in tensors.items()}})
        checkpoint._restore_optimizer(stepping(second, optimizer), saved)  # type: ignore[arg-type]
        train(second, optimizer, 3, seed=2)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_muon_gets_the_inner_matrices_and_adamw_the_rest():
    """As its authors use it; each half is PyTorch's own update."""
    network, optimizer = network_and_optimizer("muon")
    assert isinstance(optimizer, MuonWithAdamW)
    sizes = [[p.shape for g in inner.param_groups for p in g["params"]] for inner in optimizer.inner]
    assert sizes == [[(64, 128), (8, 64)], [(64, 128), (64,), (64,), (64,), (8,)]]
    train(network, optimizer, 2, seed=1)
    reference = model()
    matrices = [reference[1].weight, reference[3].weight]
    vectors = [reference[1].bias, reference[2].weight, reference[2].bias, reference[3].bias]
    pair = SimpleNamespace()
    muon = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.01)
    adamw = torch.optim.AdamW(
        [{"params": [reference[0].weight], "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.01, foreach=True,
    )  # fmt: skip
    pair.step = lambda: (muon.step(), adamw.step())
    pair.zero_grad = lambda: (muon.zero_grad(), adamw.zero_grad())
    train(reference, pair, 2, seed=1)
    for one, other in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "implementation"), [("adafactor", "fused"), ("lion", "foreach")])
def test_implementations_that_do_not_exist_are_refused(name, implementation):
    with pytest.raises(NotSupported, match=r"optimizer\.implementation"):
        build_optimizer(model(), OptimizerSettings(name=name, implementation=implementation))
