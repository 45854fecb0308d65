"""Recurrent layers on the virtual device are one cuDNN operator, with cuDNN's buffers."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import forerun
from forerun.virtual.recurrent import RecurrentLayers

REPORT = {"lstm": (2, 736_000_000, 17_730_560), "gru": (3, 864_000_000, 13_169_920)}
"""Reserve and workspace bytes of cuDNN 7 for 4 layers of 320 units, 123 inputs, fp32, 25,000 tokens (issue 2895)."""
BATCH, STEPS = 32, 100


def calls(gpu, name):
    counts = [gpu.trace.calls[op.call] for op in gpu.trace.ops]
    return [call for call in counts if call.name == name]


@pytest.mark.parametrize("cell", REPORT)
def test_buffers_are_those_that_cudnn_reported(cell):
    mode, reserve, workspace = REPORT[cell]
    layers = RecurrentLayers(mode, 123, 320, 320, 4, 1, 250, 100, 25_000, 4)
    assert (layers.reserve_bytes, layers.workspace_bytes) == (reserve, workspace)


def test_a_text_classifier_is_one_kernel_and_its_memory_is_counted_by_hand():
    with forerun.virtual_cuda("t4") as gpu:
        embedding, lstm = nn.Embedding(5000, 128).cuda(), nn.LSTM(128, 256, 2, batch_first=True).cuda()
        head = nn.Linear(256, 4).cuda()
        tokens = torch.randint(0, 5000, (BATCH, STEPS), device="cuda")
        before = torch.cuda.memory_allocated()
        states, (last, cell) = lstm(embedding(tokens))
        after = torch.cuda.memory_allocated()
        nn.functional.cross_entropy(head(last[-1]), torch.zeros(BATCH, dtype=torch.long, device="cuda")).backward()
        weights = {p.untyped_storage()._cdata for p in lstm.parameters()}
        gradients = [tuple(p.grad.shape) for p in lstm.parameters()]
    assert len(calls(gpu, "aten._cudnn_rnn.default")) == len(calls(gpu, "aten._cudnn_rnn_backward.default")) == 1
    assert states.shape == (BATCH, STEPS, 256)
    assert last.shape == cell.shape == (2, BATCH, 256)
    assert len(weights) == 1
    assert gradients == [tuple(p.shape) for p in lstm.parameters()]
    # input 128, output 256, reserve (2 x 5 + 1) x 256 values of each token; hidden states before and after
    kept = BATCH * STEPS * (128 + 256 + 11 * 256) * 4 + 4 * 2 * BATCH * 256 * 4
    assert after - before == pytest.approx(kept, rel=1e-3)
    # each of eight matrices of four gates meets every token: 2 FLOP a value
    matrices = 4 * 256 * (128 + 256 + 256 + 256)
    assert calls(gpu, "aten._cudnn_rnn.default")[0].flops == 2 * BATCH * STEPS * matrices
    assert calls(gpu, "aten._cudnn_rnn_backward.default")[0].flops == 4 * BATCH * STEPS * matrices
    assert len(gpu.trace.ops) < 2 * STEPS  # and no loop over steps


def test_packed_sequences_have_only_their_tokens():
    lengths = torch.tensor([7, 3, 5, 5])
    with forerun.virtual_cuda("t4") as gpu:
        encoder = nn.GRU(16, 32, bidirectional=True, batch_first=True).cuda()
        decoder = nn.GRU(64, 64, batch_first=True).cuda()
        source = torch.randn(4, 7, 16, device="cuda", requires_grad=True)
        packed = pack_padded_sequence(source, lengths, batch_first=True, enforce_sorted=False)
        states, last = encoder(packed)
        padded, sizes = pad_packed_sequence(states, batch_first=True)
        decoder(padded, last.transpose(0, 1).reshape(1, 4, 64))[0].sum().backward()
    assert packed.batch_sizes.tolist() == [4, 4, 4, 3, 3, 1, 1]
    assert sizes.tolist() == lengths.tolist()
    assert padded.shape == (4, 7, 64)
    assert source.grad.shape == source.shape
    assert [call.inputs[0].shape for call in calls(gpu, "aten._cudnn_rnn.default")] == [(20, 16), (4, 7, 64)]


def test_without_cudnn_it_runs_operator_by_operator():
    with torch.backends.cudnn.flags(enabled=False), forerun.virtual_cuda("t4") as gpu:
        nn.LSTM(8, 8).cuda()(torch.randn(5, 2, 8, device="cuda"))[0].sum().backward()
    assert not calls(gpu, "aten._cudnn_rnn.default")
    assert len(calls(gpu, "aten.sigmoid.default")) + len(calls(gpu, "aten._thnn_fused_lstm_cell.default")) >= 5


def test_autocast_computes_in_half_from_one_buffer_of_copies():
    with forerun.virtual_cuda("t4") as gpu:
        lstm = nn.LSTM(16, 32).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):  # AutocastRNN.cpp: fp16 whatever the dtype
            states, _ = lstm(torch.randn(5, 2, 16, device="cuda"))
        states.float().sum().backward()
    call = calls(gpu, "aten._cudnn_rnn.default")[0]
    assert {spec.dtype for spec in call.inputs} == {"float16"}
    assert call.inputs[5].shape == (4 * 32 * (16 + 32 + 2),)
    assert {p.grad.dtype for p in lstm.parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projections_and_plain_cells_have_the_shapes_of_pytorch():
    for make in (lambda: nn.LSTM(16, 32, 2, proj_size=8, bidirectional=True), lambda: nn.RNN(16, 32, 2)):
        real = make()
        expected = [tuple(t.shape) for t in _flat(real(torch.randn(5, 3, 16)))]
        with forerun.virtual_cuda("a100-40gb") as gpu:
            outputs = make().cuda()(torch.randn(5, 3, 16, device="cuda"))
            outputs[0].sum().backward()
        assert [tuple(t.shape) for t in _flat(outputs)] == expected
        assert len(calls(gpu, "aten._cudnn_rnn_backward.default")) == 1


def _flat(outputs):
    return [t for each in outputs for t in ([each] if isinstance(each, torch.Tensor) else each)]


def test_virtual_gpu_takes_the_same_operator():
    with forerun.virtual_gpu("t4") as gpu:
        lstm = nn.LSTM(16, 32).to(gpu.device)
        lstm(torch.randn(5, 2, 16, device=gpu.device))[0].sum().backward()
    assert len(calls(gpu, "aten._cudnn_rnn_backward.default")) == 1
