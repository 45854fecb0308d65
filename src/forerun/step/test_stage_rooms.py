"""Rooms of stages, on a stand-in for PyTorch's stage: made when something arrives, gone when it was used."""

from types import SimpleNamespace

import torch

from forerun.step.stage_rooms import Rooms


class Base:
    def __init__(self):
        shape = SimpleNamespace(shape=(4,), dtype=torch.float32)
        self.device, self.is_last = torch.device("cpu"), False
        self.args_recv_info = {
            n: (SimpleNamespace(source=0, tensor_meta=shape, buffer=torch.empty(4)),) for n in (0, 1)
        }
        self.grad_recv_info = {
            n: (SimpleNamespace(source=2, tensor_meta=shape, buffer=torch.empty(4)),) for n in (0, 1)
        }

    def _prepare_forward_infra(self):
        return "shapes"

    def get_fwd_recv_ops(self, number):
        return [info.buffer for info in self.args_recv_info[number]]

    def forward_one_chunk(self, number):
        return torch.ones(4) * number

    def backward_one_chunk(self, number):
        return number


class Stage(Rooms, Base):
    pass


def test_rooms_are_made_for_what_arrives_and_gone_when_it_was_used():
    stage = Stage()
    assert stage._prepare_forward_infra() == "shapes"
    assert [info.buffer for each in stage.args_recv_info.values() for info in each] == [None, None]
    assert [room.shape for room in stage.get_fwd_recv_ops(1)] == [(4,)]
    assert stage.args_recv_info[0][0].buffer is None
    assert stage.backward_one_chunk(1) == 1
    assert (stage.args_recv_info[1][0].buffer, stage.grad_recv_info[1][0].buffer) == (None, None)


def test_what_was_sent_is_given_back_with_the_next_and_a_last_stage_sends_nothing():
    stage = Stage()
    first = stage.forward_one_chunk(0)
    assert first.untyped_storage().nbytes() == 16
    second = stage.forward_one_chunk(1)
    assert (first.untyped_storage().nbytes(), second.untyped_storage().nbytes()) == (0, 16)
    stage.is_last, stage.last_sent = True, None
    logits = [stage.forward_one_chunk(number) for number in range(2)]
    assert [each.untyped_storage().nbytes() for each in logits] == [16, 16]
