"""Micro-batches that repeat are played: the same operators, the same memory, and the module hardly runs."""

import pytest
import torch
from torch import nn

import forerun
from forerun.trace import OP
from forerun.virtual.cuda.repeated_micro_batches import ALIKE, RepeatedMicroBatches

FIRST = 1
"""The first micro-batch makes the gradients; it is never played."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.head, self.calls = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 1000), 0

    def forward(self, x, labels=None):
        self.calls += 1
        hidden = torch.relu(self.norm(self.layer(x)))
        logits = self.head(hidden)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"logits": logits, "hidden": hidden, "loss": loss, "labels": labels}


def loss_inside(net, x, labels):
    output = net(x, labels=labels)
    assert output["labels"] is labels
    output["loss"].backward()


def loss_outside(net, x, labels):
    nn.functional.cross_entropy(net(x)["logits"].float(), labels).backward()


def loss_of_two_results(net, x, labels):
    output = net(x, labels=labels)
    (output["loss"] + output["hidden"].pow(2).mean()).backward()


def train(micro_batch, times, is_played, prepare=lambda net: None, rows=lambda number: 32):
    """Names of the operators, the peak, how often the module ran, and the bytes and batches counted at the end."""
    with forerun.virtual_cuda("t4") as gpu:
        net = Net().cuda()
        prepare(net)
        recorder = gpu._session.recorder
        repeats, original, backward = RepeatedMicroBatches(recorder), nn.Module.__call__, torch.autograd.backward

        def call(module, *args, **kwargs):
            if module is not net:
                return original(module, *args, **kwargs)
            return repeats(original, module, args, kwargs)

        def watched(*args, **kwargs):
            repeats.backward_begins([args[0]])
            backward(*args, **kwargs)
            repeats.backward_is_over()

        if is_played:
            nn.Module.__call__, torch.autograd.backward = call, watched
        try:
            for number in range(times):
                x = torch.zeros(rows(number), 64, device="cuda")
                micro_batch(net, x, torch.zeros(rows(number), dtype=torch.long, device="cuda"))
        finally:
            nn.Module.__call__, torch.autograd.backward = original, backward
        names = [gpu.trace.calls[gpu.trace.ops[i].call].name for kind, i in gpu.trace.events if kind == OP]
        left = recorder.live_bytes, net.norm.num_batches_tracked.item()
        return names, gpu.memory.peak_allocated_bytes, net.calls, left


@pytest.mark.parametrize("micro_batch", [loss_inside, loss_outside, loss_of_two_results])
def test_played_micro_batches_do_what_micro_batches_do(micro_batch):
    run, played = train(micro_batch, 10, False), train(micro_batch, 10, True)
    assert (run[2], played[2]) == (10, FIRST + ALIKE)
    assert played[:2] == run[:2]
    assert played[3] == run[3]


def test_each_shape_is_learnt_by_itself():
    run, played = (train(loss_inside, 12, each, rows=lambda number: 32 + number % 2) for each in (False, True))
    assert (run[2], played[2]) == (12, FIRST + 2 * ALIKE)
    assert played[:2] == run[:2]


def hold_its_loss(net):
    forward = net.forward

    def keeping(x, labels=None):
        net.auxiliary = forward(x, labels)["hidden"].mean()
        return forward(x, labels)

    net.forward = keeping


def hold_its_inputs(net):
    forward, inputs = net.forward, []
    net.forward = lambda x, labels=None: inputs.append(x + 1) or forward(x, labels)


def look_at_gradients(net):
    net.head.weight.register_post_accumulate_grad_hook(lambda parameter: None)


def look_at_results(net):
    net.head.register_forward_hook(lambda module, inputs, output: None)


@pytest.mark.parametrize("prepare", [hold_its_loss, hold_its_inputs, look_at_gradients, look_at_results])
def test_what_leaves_more_behind_than_its_results_runs(prepare):
    run, played = (train(loss_inside, 8, each, prepare) for each in (False, True))
    assert played[2] == run[2]
    assert played[:2] == run[:2]


def two_calls_for_one_loss(net, x, labels):
    (net(x)["logits"].mean() + net(x + 1)["logits"].mean()).backward()


def twice_through_the_graph(net, x, labels):
    loss = net(x, labels)["loss"]
    loss.backward(retain_graph=True)
    loss.backward()


def with_gradients_for_its_input(net, x, labels):
    x.requires_grad_()
    net(x, labels)["loss"].backward()


def with_something_from_before(net, x, labels):
    weights = net.head.weight.pow(2).sum()
    (net(x, labels)["loss"] + weights).backward()


def with_gradients_zeroed_after_the_call(net, x, labels):
    loss = net(x, labels)["loss"]
    net.zero_grad()
    loss.backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(
    "micro_batch",
    [
        with_gradients_zeroed_after_the_call,
        with_something_from_before,
        two_calls_for_one_loss,
        twice_through_the_graph,
        with_gradients_for_its_input,
    ],
)
def test_other_ways_to_the_loss_run(micro_batch):
    run, played = train(micro_batch, 6, False), train(micro_batch, 6, True)
    assert played == run


def test_masks_that_decide_how_much_is_computed_must_be_the_same():
    class Masked(Net):
        def forward(self, x, mask):
            self.calls += 1
            return self.head(x[mask])

    with forerun.virtual_cuda("t4") as gpu:
        net, repeats = Masked().cuda(), RepeatedMicroBatches(gpu._session.recorder)
        for rows in (3, 3, 3, 3, 3, 5, 5):
            mask = torch.zeros(8, 8, dtype=torch.bool)
            mask[:rows] = True
            output = repeats(nn.Module.__call__, net, (torch.zeros(8, 8, 64).cuda(), mask.cuda()), {})
            assert output.shape == (8 * rows, 1000)
            repeats.backward_begins([output])
            output.mean().backward()
            repeats.backward_is_over()
        assert net.calls == FIRST + ALIKE + ALIKE


def test_masks_that_decide_nothing_may_differ():
    class Masked(Net):
        def forward(self, x, mask):
            self.calls += 1
            return self.head(x * mask[..., None])

    with forerun.virtual_cuda("t4") as gpu:
        net, repeats = Masked().cuda(), RepeatedMicroBatches(gpu._session.recorder)
        for rows in range(7):
            mask = torch.zeros(8, 8, dtype=torch.bool)
            mask[:rows] = True
            output = repeats(nn.Module.__call__, net, (torch.zeros(8, 8, 64).cuda(), mask.cuda()), {})
            repeats.backward_begins([output])
            output.mean().backward()
            repeats.backward_is_over()
        assert net.calls == FIRST + ALIKE


def test_gradients_that_are_zeroed_after_a_call_for_once_are_there_after_the_backward_pass():
    with forerun.virtual_cuda("t4") as gpu:
        net, repeats = Net().cuda(), RepeatedMicroBatches(gpu._session.recorder)
        for number in range(6):
            x = torch.zeros(32, 64, device="cuda")
            loss = repeats(nn.Module.__call__, net, (x,), {})["logits"].mean()
            if number == 5:
                net.zero_grad()
            repeats.backward_begins([loss])
            loss.backward()
            repeats.backward_is_over()
        assert net.calls == FIRST + ALIKE
        assert all(parameter.grad is not None for parameter in net.parameters())
