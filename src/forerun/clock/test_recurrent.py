"""Seconds of recurrent layers: chains of steps, layers and directions beside each other."""

import pytest

from forerun.clock.priors import PriorCosts
from forerun.clock.recurrent import RecurrentCall, recurrent_seconds
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec


def lstm(steps=100, rows=32, inputs=128, hidden=256, layers=1, bidirectional=False, name="", dtype="float32"):
    width = 4 if dtype == "float32" else 2
    x = TensorSpec((steps, rows, inputs), (rows * inputs, inputs, 1), dtype, steps * rows * inputs * width)
    rest = (2, hidden, 0, layers, False, 0.0, True, bidirectional, ())
    before = (x,) * (10 if name else 6)
    return Call(f"aten._cudnn_rnn{name}.default", (*before, *rest), (), (x,), (), 1, 0, 0)


def test_a_longer_sequence_takes_longer_in_proportion():
    costs = PriorCosts(device("a100-40gb"))
    ratio = costs.device_seconds(lstm(steps=400)) / costs.device_seconds(lstm(steps=100))
    assert ratio == pytest.approx(4, rel=0.1)


def test_small_steps_wait_for_kernels_not_for_arithmetic():
    """Half the units have a quarter of the products' work, and at this size take nearly as long."""
    costs = PriorCosts(device("a100-40gb"))
    small, large = (costs.device_seconds(lstm(hidden=hidden)) for hidden in (64, 128))
    assert small > 0.7 * large


def test_layers_run_along_the_wave_front_and_directions_beside_each_other():
    """Appleyard et al. 2016, section 3.3; counted in waits of one second each."""

    def waits(**options):
        return recurrent_seconds(lstm(**options), lambda batch, m, n, k: float(k == 256 and m == 32), 1e30)

    assert waits() == pytest.approx(100, rel=1e-3)
    assert waits(layers=4) == pytest.approx(103, rel=1e-3)
    assert waits(layers=4, bidirectional=True) == pytest.approx(400, rel=1e-3)


def test_packed_sequences_have_the_steps_of_the_longest():
    x = TensorSpec((20, 16), (16, 1), "float32", 20 * 64)
    call = Call("aten._cudnn_rnn.default", (*(x,) * 6, 3, 32, 0, 1, False, 0.0, True, True, (4, 4, 4, 3, 3, 1, 1)), (),
                (x,), (), 1, 0, 0)  # fmt: skip
    shape = RecurrentCall.read(call)
    assert (shape.steps, shape.tokens, shape.gates, shape.directions) == (7, 20, 3, 2)


def test_the_backward_pass_has_more_products():
    costs = PriorCosts(device("a100-40gb"))
    backward, forward = (costs.device_seconds(lstm(rows=1024, name=name)) for name in ("_backward", ""))
    assert 1.2 * forward < backward < 3 * forward
