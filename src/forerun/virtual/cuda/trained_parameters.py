"""Parameters of a program: all that are on the device, in whatever module or list they are, and those it updates."""

import weakref
from collections.abc import Collection, Sequence

import torch

from forerun.step.offload import MINIMAL_ELEMENTS, record_update
from forerun.step.parallel import local
from forerun.trace import Category
from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.live_objects import live_objects
from forerun.virtual.recorder import Recorder


def own_parameters(recorder: Recorder, states: Collection[int]) -> None:
    """Find every parameter on the device, those that nothing updates included; `states` are storages that are none."""
    every = [tensor for tensor in live_objects(torch.Tensor) if isinstance(tensor, torch.nn.Parameter)]
    # what an earlier session left uncollected in this process is not the program's
    placed = [each for each in every if is_virtual(local(each)) and recorder.knows(each)]
    placed = [each for each in placed if recorder.storage_of(each) not in states]
    recorder.own(placed, Category.PARAMETER)
    trace = recorder.trace
    placed = [each for each in placed if local(each).untyped_storage().nbytes() or not each.numel()]  # FSDP2 gathers
    trace.total_parameters = sum(parameter.numel() for parameter in placed)
    trace.trainable_parameters = sum(parameter.numel() for parameter in placed if parameter.requires_grad)


def still_without_gradient(recorder: Recorder, missing: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Those `missing` a gradient before an optimizer's step whose closure made them none."""
    recorder.own([each.grad for each in missing if each.grad is not None], Category.GRADIENT)
    return [each for each in missing if each.grad is None]


class UpdatedParameters:
    """Those that the program's optimizers update, while the program has them: a model that it drops is freed."""

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, torch.nn.Parameter] = weakref.WeakValueDictionary()
        self._with_gradient: set[int] = set()
        """Identities of those that had a gradient in a step: layers are left out by chance in some."""

    def take(self, optimizer: torch.optim.Optimizer, recorder: Recorder) -> None:
        """Those that an optimizer is about to update; what the host updates is recorded as its work."""
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        fresh = [parameter for parameter in every if id(parameter) not in self._alive]
        self._alive.update({id(parameter): parameter for parameter in fresh})
        recorder.own(fresh, Category.PARAMETER)
        on_host = [each for each in every if each.device.type == "cpu" and each.grad is not None]
        if sum(local(each).numel() for each in on_host) >= MINIMAL_ELEMENTS:
            record_update(on_host, DEVICE)

    def never_reached(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those of some that are about to be updated, want a gradient and had none in any step."""
        self._with_gradient |= {id(each) for each in parameters if each.grad is not None}
        wanting = (each for each in parameters if each.requires_grad and each.grad is None and each.numel())
        return [each for each in wanting if id(each) not in self._with_gradient]

    @property
    def have_gradients(self) -> bool:
        """Whether any of them has one."""
        return any(parameter.grad is not None for parameter in list(self._alive.values()))

    def clear_gradients(self) -> None:
        """As `zero_grad` does."""
        for parameter in list(self._alive.values()):
            parameter.grad = None

    def __bool__(self) -> bool:
        return bool(self._alive)
