import gc

import torch

from forerun.virtual.live_objects import live_objects


def test_derived_ones_are_found_and_dropped_ones_are_not():
    parameter, plain = torch.nn.Parameter(torch.ones(3)), torch.ones(3)
    optimizer = torch.optim.AdamW([parameter])
    tensors = live_objects(torch.Tensor)
    assert any(each is parameter for each in tensors)
    assert any(each is plain for each in tensors)
    assert not any(each is plain for each in live_objects(torch.nn.Parameter))
    assert any(each is optimizer for each in live_objects(torch.optim.Optimizer))
    del optimizer, tensors
    gc.collect()
    assert not any(
        parameter is each for other in live_objects(torch.optim.Optimizer) for each in other.param_groups[0]["params"]
    )


def test_what_answers_for_its_class_is_not_asked():
    class Loud:
        @property
        def __class__(self):
            raise AssertionError("it was asked")

    loud = Loud()
    assert not any(each is loud for each in live_objects(torch.Tensor))
    assert any(each is loud for each in live_objects(Loud))
