"""Turns of a loop over tokens that stand for several."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import forerun
from forerun.forecasting.program_warnings import _of_generation
from forerun.virtual.cuda import token_loops
from forerun.virtual.cuda.decoding import PlayedTokens
from forerun.virtual.cuda.repeated_calls import RepeatedCalls
from forerun.virtual.cuda.test_decoding import llama
from forerun.virtual.cuda.token_loops import GOES_ON, TokenLoop, innermost_loop
from forerun.virtual.put_back import replaced


def test_what_a_turn_does_counts_for_each_of_its_tokens():
    with forerun.virtual_cuda("t4") as gpu:
        recorder = gpu._session.recorder
        loop, ids = TokenLoop(recorder, 10), torch.zeros(2, 5, dtype=torch.long, device="cuda")
        loop.stand_for(4)
        ids = loop.cat([ids, ids[:, -1:]], dim=-1)
        kernel = recorder.trace.ops[-1]
        loop.next_turn()
        assert (ids.shape, loop.left) == ((2, 9), 6)
        assert recorder.trace.calls[kernel.call].times == 1
        assert recorder.trace.calls[recorder.trace.ops[-1].call].times == 4
        ids = loop.cat([ids, ids[:, -1:]], dim=-1)
        assert (ids.shape, loop.left) == ((2, 10), 5)
        assert loop.cat([ids, ids]).shape == (4, 10)


def test_a_turn_with_two_calls_of_models_is_one_token():
    """As with classifier-free guidance, whose second cache grows beside the first."""
    with forerun.virtual_cuda("t4") as gpu, torch.no_grad():
        loop, repeats = TokenLoop(gpu._session.recorder, 10), RepeatedCalls(gpu._session.recorder)
        layer, ids = nn.Linear(4, 4).cuda(), torch.zeros(2, 5, dtype=torch.long, device="cuda")
        with replaced(token_loops, "_LOOPS", [loop]):
            for calls, left in ((1, 9), (2, 0)):
                for _ in range(calls):
                    repeats(nn.Module.__call__, layer, (torch.ones(2, 4, device="cuda"),), {})
                loop.cat([ids, ids[:, -1:]], dim=-1)
                assert loop.left == left


@pytest.mark.parametrize(("options", "goes_on"), [({}, True), ({"eos_token_id": None}, False)])
def test_a_loop_that_a_token_may_end_is_told(options, goes_on, monkeypatch):
    with forerun.virtual_cuda("t4") as gpu, torch.no_grad():
        model, tokens = llama().to("cuda"), PlayedTokens(gpu._session.recorder)
        original = nn.Module.__call__
        monkeypatch.setattr(
            type(model), "__call__", lambda m, *args, **kwargs: tokens(original, m, args, kwargs), raising=False
        )
        out = model.generate(torch.full((1, 8), 5, device="cuda"), max_new_tokens=12, **options)
        assumed = [each for each in gpu._session.assumptions.by_line.values() if each.what == GOES_ON]
    assert out.shape == (1, 20)
    assert innermost_loop() is None
    assert [each.value for each in assumed] == (["12 new tokens"] if goes_on else [])


def test_a_loop_that_asks_whether_it_ends_goes_on(monkeypatch):
    """As in transformers 4.57; elsewhere, a loop that ends by a value that nobody knows is taken to converge."""
    with forerun.virtual_cuda("t4") as gpu:
        converges = type(gpu._session.assumptions.loops)
        monkeypatch.setattr(converges, "end", lambda *_: SimpleNamespace(turns=0, answer=True))
        loop, scores = TokenLoop(gpu._session.recorder, 100), torch.ones(4, 5000, device="cuda").exponential_()
        assert bool(scores.max() == 0)
        with replaced(token_loops, "_LOOPS", [loop]), replaced(loop, "asks", True):
            assert not bool(scores.max() == 0)


def test_the_warning_says_how_many():
    text = _of_generation(SimpleNamespace(line="train.py:3", value="12 new tokens"))
    assert text.startswith("train.py:3 generates 12 new tokens, as many as it may")
