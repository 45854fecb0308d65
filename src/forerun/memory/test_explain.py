"""What is named as alive at the peak is what the replay counted there."""

from forerun.memory.explain import by_module, live_at_peak
from forerun.memory.replay import replay_memory
from forerun.memory.test_replay import BLOCK, step
from forerun.trace import Op, Phase


def test_the_live_tensors_sum_to_the_peak():
    trace = step()
    replay = replay_memory(trace)
    live = live_at_peak(trace, replay)
    assert sum(t.bytes for t in live) == replay.peak_allocated_bytes
    assert [t.bytes for t in live] == sorted((t.bytes for t in live), reverse=True)
    assert live[0].category == "temporary"


def test_a_tensor_is_named_after_the_operator_that_follows_its_birth():
    trace = step()
    trace.ops[0] = Op(0, Phase.FORWARD, 0, "layers.3.mlp.up")
    trace.lines[0] = "model.py:7"
    live = live_at_peak(trace, replay_memory(trace))
    step_tensors = [t for t in live if t.category != "parameter"]
    assert {t.line for t in step_tensors} == {"model.py:7"}
    assert by_module(live)["layers.*.mlp.up"] == {"temporary": 2 * BLOCK, "activation": BLOCK}
