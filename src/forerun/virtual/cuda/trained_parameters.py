"""All parameters of a program that are on the device, in whatever module or list they are."""

import gc
from collections.abc import Collection

import torch

from forerun.step.parallel import local
from forerun.trace import Category
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.recorder import Recorder


def own_parameters(recorder: Recorder, states: Collection[int]) -> None:
    """Find every parameter on the device, those that nothing updates included; `states` are storages that are none."""
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    every = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
    # what an earlier session left uncollected in this process is not the program's
    placed = [each for each in every if is_virtual(local(each)) and recorder.knows(each)]
    placed = [each for each in placed if recorder.storage_of(each) not in states]
    recorder.own(placed, Category.PARAMETER)
    trace = recorder.trace
    trace.total_parameters = sum(parameter.numel() for parameter in placed)
    trace.trainable_parameters = sum(parameter.numel() for parameter in placed if parameter.requires_grad)
