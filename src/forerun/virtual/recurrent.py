"""`nn.LSTM`, `nn.GRU` and `nn.RNN` as CUDA runs them: one cuDNN operator for all layers and time steps.

PyTorch sends them to `aten._cudnn_rnn` wherever cuDNN takes the input (`aten/src/ATen/native/RNN.cpp`, 2.13); on other
devices they fall apart into an operator for each time step. Here the virtual device takes cuDNN's branch: weights live
in one buffer (`_cudnn_rnn_flatten_weight`), the forward pass leaves a reserve buffer for the backward one, and autocast
computes in fp16 whatever its dtype (`aten/src/ATen/cudnn/AutocastRNN.cpp`). With `torch.backends.cudnn.enabled = False`
everything stays as it was.

cuDNN does not publish the size of the reserve buffer. `RESERVED_VALUES` gives both sizes that cuDNN 7 reported for four
layers of 320 units with 123 inputs in fp32, 25,000 tokens (github.com/pytorch/pytorch/issues/2895: LSTM 736,000,000
bytes, GRU 864,000,000); the workspace's size is fitted to the two of that report (17,730,560 and 13,169,920). cuDNN 8
and 9 may take more or less.

Not covered: the dropout masks inside the reserve buffer, the state of dropout's generator, sizes of cuDNN's persistent
algorithms.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from forerun.virtual.backend import DEVICE

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Numbers of `cudnnRNNMode_t` (cudnn_adv.h, 9.24)."""
GATES = (1, 1, 4, 3)
"""Products of each cell with its input, by mode."""
RESERVED_VALUES = (1, 1, 5, 6)
"""Values that each layer keeps of a token and unit, by mode; every layer but the last keeps its output too. LSTM and
GRU by the report above; a plain cell keeps its result (its gradient needs no more), which nobody has reported."""
_LIBRARIES: list[torch.library.Library] = []


@dataclass(frozen=True)
class RecurrentLayers:
    """Shape of the layers of one call."""

    mode: int
    input_size: int
    hidden_size: int
    output_size: int
    """Of one direction; less than `hidden_size` where an LSTM projects its state."""
    layers: int
    directions: int
    steps: int
    batch: int
    tokens: int
    """Over all steps; packed sequences have fewer than steps times batch."""
    width: int
    """Bytes of a value."""

    @property
    def matrix_elements(self) -> int:
        """Of all weights but the biases."""
        gates = GATES[self.mode]
        total = 0
        for layer in range(self.layers):
            inputs = self.input_size if layer == 0 else self.output_size * self.directions
            total += self.directions * gates * self.hidden_size * (inputs + self.output_size)
            total += self.directions * self.hidden_size * self.output_size * (self.output_size != self.hidden_size)
        return total

    @property
    def buffer_elements(self) -> int:
        """Of the buffer of all weights; it has room for both biases of every gate even where there are none."""
        # ATen/cudnn/Descriptors.h (2.13): cudnnSetRNNDescriptor_v8 with CUDNN_RNN_DOUBLE_BIAS
        biases = self.layers * self.directions * 2 * GATES[self.mode] * self.hidden_size
        return self.matrix_elements + biases

    @property
    def reserve_bytes(self) -> int:
        """What the forward pass leaves for the backward pass."""
        values = RESERVED_VALUES[self.mode] * self.layers + self.layers - 1
        return values * self.tokens * self.hidden_size * self.directions * self.width

    @property
    def workspace_bytes(self) -> int:
        """What the kernels take while they run: the transposed weights, and gates of one step of all layers."""
        step = self.layers * self.directions * self.batch * self.hidden_size * (3 * GATES[self.mode] - 1)
        return (self.matrix_elements + step) * self.width

    @property
    def flops(self) -> int:
        """Of the forward pass's matrix products."""
        return 2 * self.tokens * self.matrix_elements


def layers_of(
    shape: Any, hidden: Any, mode: int, sizes: tuple[int, int], layers: int, batch_first: bool, bidirectional: bool,
    lengths: Any, width: int,
) -> RecurrentLayers:  # fmt: skip
    """The layers of a call with an input of `shape`; `sizes` are hidden and projected, `lengths` those of a batch."""
    hidden_size, projected = sizes
    if len(lengths):
        steps, batch, tokens = len(lengths), int(lengths[0]), int(shape[0])
    else:
        steps, batch = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
        tokens = steps * batch
    return RecurrentLayers(
        mode, int(shape[-1]), hidden_size, projected or hidden_size, layers, 2 if bidirectional else 1, int(steps),
        int(batch), int(tokens), width,
    )  # fmt: skip


def register() -> None:
    """Route recurrent layers on the virtual device to cuDNN's operator."""
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)
    library.impl("lstm.input", _lstm, "AutogradPrivateUse1")
    library.impl("lstm.data", _lstm_packed, "AutogradPrivateUse1")
    for name in ("gru", "rnn_tanh", "rnn_relu"):
        library.impl(f"{name}.input", _cell(name), "AutogradPrivateUse1")
        library.impl(f"{name}.data", _packed_cell(name), "AutogradPrivateUse1")
    register_flop_formula(aten._cudnn_rnn, get_raw=True)(_forward_flops)
    register_flop_formula(aten._cudnn_rnn_backward, get_raw=True)(_backward_flops)
    nn.RNNBase.flatten_parameters = flatten_parameters  # type: ignore[method-assign]


def _lstm(
    x: Tensor, hx: list[Tensor], weights: list[Tensor], has_biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    if not torch.backends.cudnn.enabled:
        return _by_operators(
            "lstm.input", x, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first
        )
    return _cudnn("lstm", x, hx[0], hx[1], weights, has_biases, layers, dropout, train, bidirectional, batch_first, ())


def _lstm_packed(
    data: Tensor, sizes: Tensor, hx: list[Tensor], weights: list[Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool,
) -> Any:  # fmt: skip
    if not torch.backends.cudnn.enabled:
        return _by_operators("lstm.data", data, sizes, hx, weights, has_biases, layers, dropout, train, bidirectional)
    batches = sizes_of(sizes)
    return _cudnn(
        "lstm", data, hx[0], hx[1], weights, has_biases, layers, dropout, train, bidirectional, False, batches
    )


def _cell(name: str) -> Any:
    def call(
        x: Tensor, hx: Tensor, weights: list[Tensor], has_biases: bool, layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if not torch.backends.cudnn.enabled:
            rest = (weights, has_biases, layers, dropout, train, bidirectional, batch_first)
            return _by_operators(f"{name}.input", x, hx, *rest)
        flags = (dropout, train, bidirectional, batch_first)
        return _cudnn(name, x, hx, None, weights, has_biases, layers, *flags, ())[:2]

    return call


def _packed_cell(name: str) -> Any:
    def call(
        data: Tensor, sizes: Tensor, hx: Tensor, weights: list[Tensor], has_biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        if not torch.backends.cudnn.enabled:
            rest = (weights, has_biases, layers, dropout, train, bidirectional)
            return _by_operators(f"{name}.data", data, sizes, hx, *rest)
        flags = (dropout, train, bidirectional, False)
        return _cudnn(name, data, hx, None, weights, has_biases, layers, *flags, sizes_of(sizes))[:2]

    return call


def _by_operators(name: str, *args: Any) -> Any:
    """The composite kernel that every device has: an operator for each step."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(aten, packet), overload)
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _cudnn(
    name: str, x: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool, lengths: tuple[int, ...],
) -> Any:  # fmt: skip
    hidden = weights[0].shape[0] // GATES[MODES[name]]
    projected = hx.shape[2] if name == "lstm" and hx.shape[2] != hidden else 0
    sizes = (hidden, projected)
    buffer = _shared_buffer(weights)
    if torch.is_autocast_enabled(DEVICE):
        x, hx, cx = x.half(), hx.half(), None if cx is None else cx.half()
        if weights[0].dtype != torch.float16:
            shape = layers_of(x.shape, hx, MODES[name], sizes, layers, batch_first, bidirectional, lengths, 2)
            buffer, weights = _in_half(weights, shape.buffer_elements)
    out, hy, cy, _, _ = aten._cudnn_rnn(
        x, weights, (4 if has_biases else 2) + bool(projected), buffer, hx, cx, MODES[name], *sizes, layers,
        batch_first, dropout, train, bidirectional, lengths, None,
    )  # fmt: skip
    return out, hy, cy


def _shared_buffer(weights: list[Tensor]) -> Tensor | None:
    """The one buffer that all weights lie in (`try_get_weight_buf`); None where each has its own."""
    storages = {weight.untyped_storage()._cdata for weight in weights}
    if len(storages) > 1 or len(weights) == 1:
        return None
    first = weights[0].detach()
    return first.as_strided((first.untyped_storage().nbytes() // first.element_size(),), (1,), 0)


def _in_half(weights: list[Tensor], elements: int) -> tuple[Tensor, list[Tensor]]:
    """fp16 copies in one new buffer; gradients come back as each weight's own dtype."""
    with torch.no_grad():
        buffer = torch.empty(elements, dtype=torch.float16, device=weights[0].device)
    return buffer, list(_HalfCopies.apply(buffer, *weights))


class _HalfCopies(torch.autograd.Function):
    """Copies of weights inside a buffer."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = weights[0].dtype
        return tuple(view.copy_(weight) for view, weight in zip(_slices(buffer, weights), weights, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(gradient.to(ctx.dtype) for gradient in gradients)


def _slices(buffer: Tensor, weights: Any) -> list[Tensor]:
    """Views of a buffer with the shapes of `weights`, one after the other; each a tensor without base."""
    views, offset = [], 0
    for weight in weights:
        view = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        view.data = buffer.detach()[offset : offset + weight.numel()].view(weight.shape)
        views.append(view)
        offset += weight.numel()
    return views


def flatten_parameters(module: nn.RNNBase) -> None:
    """Put all weights of a recurrent module on the virtual device into one buffer, as cuDNN wants them."""
    weights: list[Any] = module._flat_weights
    if len(weights) != len(module._flat_weights_names) or not torch.backends.cudnn.enabled:
        return
    if not all(isinstance(weight, Tensor) and _is_virtual(weight) for weight in weights):
        _flatten_elsewhere(module)
        return
    is_flat = len({weight.untyped_storage()._cdata for weight in weights}) < len(weights)
    if is_flat or len({weight.dtype for weight in weights}) > 1:
        return
    with torch.no_grad():
        shape = RecurrentLayers(
            MODES[module.mode.lower()], module.input_size, module.hidden_size, module.proj_size or module.hidden_size,
            module.num_layers, 2 if module.bidirectional else 1, 1, 1, 1, weights[0].element_size(),
        )  # fmt: skip
        buffer = torch.zeros(shape.buffer_elements, dtype=weights[0].dtype, device=weights[0].device)
        for weight, view in zip(weights, _slices(buffer, weights), strict=True):
            view.copy_(weight)
            weight.data = view


_flatten_elsewhere = nn.RNNBase.flatten_parameters


def _is_virtual(tensor: Tensor) -> bool:
    return getattr(tensor, "fake_device", tensor.device).type == DEVICE


def sizes_of(batch_sizes: Tensor) -> tuple[int, ...]:
    """Rows of each time step of a packed batch; PyTorch keeps them on the host, so they are known."""
    values = _host_values(batch_sizes)
    return () if values is None else tuple(values)


def _host_values(tensor: Tensor) -> list[int] | None:
    """Values of a tensor of the host; None where nobody can know them."""
    real = tensor if type(tensor) is Tensor else getattr(tensor, "constant", None)
    if real is None:
        return None
    with torch._C._DisableTorchDispatch():
        return [int(value) for value in real.tolist()]


def _shape_of_call(args: tuple[Any, ...], *, backward: bool) -> RecurrentLayers:
    """The layers of a call of `_cudnn_rnn` or its backward operator, by its arguments."""
    x, first = args[0], 10 if backward else 6
    mode, hidden, projected, layers, batch_first, _, _, bidirectional, lengths = args[first : first + 9]
    width = x.element_size()
    return layers_of(x.shape, None, mode, (hidden, projected), layers, batch_first, bidirectional, lengths, width)


def _forward_flops(*args: Any, out_val: Any = None, **_: Any) -> int:
    return _shape_of_call(args, backward=False).flops


def _backward_flops(*args: Any, out_val: Any = None, **_: Any) -> int:
    """Each product of the forward pass has two in the backward pass: gradients of its input and of its weight."""
    return 2 * _shape_of_call(args, backward=True).flops


def forward(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, ...]:
    """Results of `_cudnn_rnn`: output, last hidden and cell states, reserve and weight buffers."""
    shape = _shape_of_call(args, backward=False)
    x, buffer, hx, cx, batch_first, train = args[0], args[3], args[4], args[5], args[10], args[12]
    lengths = args[14]
    width = shape.output_size * shape.directions
    if len(lengths):
        out = x.new_empty((shape.tokens, width))
    else:
        out = x.new_empty((shape.steps, shape.batch, width))
        out = out.transpose(0, 1) if batch_first else out
    states = shape.layers * shape.directions, shape.batch
    hy = hx.new_empty((*states, shape.output_size))
    cy = hx.new_empty(0) if cx is None else cx.new_empty((*states, shape.hidden_size))
    # the buffer is made in training mode, with gradients or without (ATen/native/cudnn/RNN.cpp, `_cudnn_rnn`)
    reserve = x.new_empty(shape.reserve_bytes if train else 0, dtype=torch.uint8)
    return out, hy, cy, reserve, x.new_empty(shape.buffer_elements) if buffer is None else buffer.detach()


def backward(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Results of `_cudnn_rnn_backward`: gradients of input and states, and of the weights, which share one buffer."""
    shape, mask = _shape_of_call(args, backward=True), args[21]
    x, weights, hx, cx = args[0], args[1], args[4], args[5]
    gradients = []
    if mask[3]:
        buffer, offset = x.new_empty(shape.buffer_elements), 0
        for weight in weights:
            gradients.append(buffer[offset : offset + weight.numel()].view(weight.shape))
            offset += weight.numel()
    inputs = zip((hx, cx), mask[1:3], strict=True)
    states = (torch.empty_like(each) if needs and each is not None else None for each, needs in inputs)
    return torch.empty_like(x), *states, gradients


def pack(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[Tensor, Tensor]:
    """Results of `_pack_padded_sequence`: the tokens of a padded batch, step by step, and the rows of each step."""
    padded, lengths, batch_first = args
    batch, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    # where nobody can know the lengths: as if no sequence were padded
    tokens = _host_values(lengths) or [int(steps)] * int(batch)
    rows = [sum(count > step for count in tokens) for step in range(max(tokens))]
    with torch._C._DisableTorchDispatch():
        sizes = torch.tensor(rows, dtype=torch.int64, device="cpu")
    return padded.new_empty((sum(rows), *padded.shape[2:])), sizes


KERNELS = {aten._cudnn_rnn: forward, aten._cudnn_rnn_backward: backward, aten._pack_padded_sequence: pack}
"""Fake kernels that PyTorch lacks, or whose buffers it leaves out (`torch/_meta_registrations.py`, 2.13)."""


def temporary_bytes(packet: Any, args: tuple[Any, ...]) -> list[int]:
    """Sizes of what cuDNN's operators allocate and free again, in bytes: contiguous copies, and the workspace."""
    if packet not in (aten._cudnn_rnn, aten._cudnn_rnn_backward):
        return []
    is_backward = packet is aten._cudnn_rnn_backward
    shape = _shape_of_call(args, backward=is_backward)
    turned = args[14 if is_backward else 10] and not len(args[18 if is_backward else 14])
    tensors = (args[0], args[6], args[7]) if is_backward else (args[0],)
    copies = [math.prod(each.shape) * each.element_size() for each in tensors if turned and each is not None]
    return [*copies, shape.workspace_bytes]
