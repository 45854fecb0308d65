"""How long cuDNN takes for recurrent layers: products over all time steps at once, and a chain of small ones.

Method, after Appleyard et al. 2016 (arXiv:1604.01946, sections 3.1 to 3.3), whose optimisations cuDNN has: gates share
one product; the product with the input runs over all steps together; the product with the state must wait for the step
before, and its pointwise operations are one kernel; layers run beside each other along the wave front, so that L layers
of T steps take T + L - 1 waits; the weights' gradients are one product over all steps. Directions of a bidirectional
layer run beside each other, but the next layer waits for both.

No public timings of these operators on today's GPUs went into it: `CAUTION` is for every forecast that has them.

Not covered: persistent kernels, which keep the weights on chip (PyTorch takes them for fp16 layers of at most 1,024
units and 128 rows on some GPUs), so small fp16 layers may be faster.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forerun.clock.costs import KERNEL_SECONDS
from forerun.trace import Call, TensorSpec

OPERATOR = "aten._cudnn_rnn"
GATES = (1, 1, 4, 3)
"""Products of a cell with its input, by the number of `cudnnRNNMode_t` (cudnn_adv.h, 9.24)."""
CAUTION = (
    "Recurrent layers (nn.LSTM, nn.GRU, nn.RNN) run as one cuDNN kernel. Its time follows from products and kernel "
    "starts per time step, not from measurements, and the size of its reserve buffer is cuDNN 7's: both are uncertain."
)
"""Warning of every forecast with recurrent layers."""


@dataclass(frozen=True)
class RecurrentCall:
    """Sizes of one call."""

    gates: int
    inputs: int
    hidden: int
    state: int
    """Units that the next step sees; fewer than `hidden` where an LSTM projects."""
    layers: int
    directions: int
    steps: int
    tokens: int
    is_backward: bool

    @classmethod
    def read(cls, call: Call) -> "RecurrentCall":
        """The sizes that the arguments of a recorded call name."""
        is_backward = call.name.startswith(f"{OPERATOR}_backward")
        first = 10 if is_backward else 6
        mode, hidden, projected, layers, batch_first, _, _, bidirectional, lengths = call.arguments[first : first + 9]
        x: TensorSpec = call.arguments[0]
        steps = len(lengths) or (x.shape[1] if batch_first else x.shape[0])
        tokens = x.shape[0] if lengths else x.shape[0] * x.shape[1]
        return cls(
            GATES[mode], x.shape[-1], hidden, projected or hidden, layers, 2 if bidirectional else 1, steps, tokens,
            is_backward,
        )  # fmt: skip

    def inputs_of(self, layer: int) -> int:
        """Units that a layer sees at each step."""
        return self.inputs if layer == 0 else self.state * self.directions


def recurrent_seconds(call: Call, product: Callable[[int, int, int, int], float], bytes_per_second: float) -> float:
    """Seconds of a call; `product` gives those of a batch of m × k by k × n."""
    shape = RecurrentCall.read(call)
    width = call.arguments[0].bytes // max(1, shape.tokens * shape.inputs)
    rows = max(1, round(shape.tokens / shape.steps))
    columns = shape.gates * shape.hidden
    beside, waits = (2, shape.layers * shape.steps) if shape.directions == 2 else (
        shape.layers, shape.steps + shape.layers - 1
    )  # fmt: skip
    # each value of the gates is read, and the state and what the backward pass needs written, by one kernel
    moved_bytes = 2 * beside * rows * columns * width
    pointwise = KERNEL_SECONDS + moved_bytes / bytes_per_second
    step = product(beside, rows, columns, shape.state) if not shape.is_backward else product(
        beside, rows, shape.state, columns
    )  # fmt: skip
    projecting = product(beside, rows, shape.state, shape.hidden) if shape.state != shape.hidden else 0.0
    seconds = waits * (step + projecting + pointwise)
    for layer in range(shape.layers):
        inputs, both = shape.inputs_of(layer), columns * shape.directions
        if not shape.is_backward:
            seconds += product(1, shape.tokens, both, inputs)
        else:  # gradients of the input, of its weights, and of the state's weights
            seconds += product(1, shape.tokens, inputs, both) + product(1, both, inputs, shape.tokens)
            seconds += product(shape.directions, columns, shape.state, shape.tokens)
    return seconds


def has_recurrent(calls: Iterable[Call]) -> bool:
    """Whether cuDNN's recurrent kernels are among the operators."""
    return any(call.name.startswith(OPERATOR) for call in calls)
