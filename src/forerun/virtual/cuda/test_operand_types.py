"""Faults of programs that CUDA answers and fake tensors do not: factors of two types, arrays of a card's tensors."""

import numpy
import pytest
import torch
from torch import nn

import forerun


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (lambda: nn.Linear(8, 8), (4, 8), "mat1 and mat2 must have the same dtype, but got Float and Half"),
        (lambda: nn.Linear(8, 8, bias=False), (2, 4, 8), "must have the same dtype, but got Float and Half"),
        (lambda: nn.Conv2d(3, 4, 3, bias=False), (1, 3, 8, 8), "should be the same"),
    ],
)
def test_inputs_in_fp32_of_a_layer_in_fp16_are_refused(layer, shape, message):
    with forerun.virtual_cuda("t4"):
        model, inputs = layer().cuda().half(), torch.randn(*shape, device="cuda")
        with pytest.raises(RuntimeError, match=message):
            model(inputs)
        assert model(inputs.half()).dtype == torch.float16
        with torch.autocast("cuda", torch.float16):
            assert model(inputs).dtype == torch.float16


def test_products_of_half_precision_states_are_refused():
    with forerun.virtual_cuda("t4"):
        left, right = torch.zeros(2, 3, 4, device="cuda"), torch.zeros(2, 4, 5, device="cuda", dtype=torch.bfloat16)
        with pytest.raises(RuntimeError, match="Float and BFloat16"):
            torch.bmm(left, right)
        assert (left @ right.float()).shape == (2, 3, 5)


@pytest.mark.parametrize("convert", [torch.Tensor.numpy, numpy.asarray])
def test_a_tensor_of_the_card_is_no_array(convert):
    with forerun.virtual_cuda("t4"):
        tensor = torch.zeros(4, device="cuda")
        with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy\. Use Tensor\.cpu"):
            convert(tensor)
        assert tensor.cpu().numpy().shape == tensor.numpy(force=True).shape == (4,)
        assert tensor.tolist() == [0.0] * 4


def test_a_loss_of_probabilities_is_refused_under_autocast():
    with forerun.virtual_cuda("t4"):
        probability, target = torch.rand(8, device="cuda"), torch.zeros(8, device="cuda")
        with torch.autocast("cuda", torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.BCELoss()(probability, target)
        with torch.autocast("cuda", torch.float16, enabled=False):
            assert nn.BCELoss()(probability, target).shape == ()
        with torch.autocast("cuda", torch.float16):
            assert nn.BCEWithLogitsLoss()(probability, target).shape == ()
            assert nn.BCELoss()(probability.cpu(), target.cpu()).shape == ()


def test_types_of_norms_classes_and_attention_are_those_that_kernels_take():
    with forerun.virtual_cuda("a100-40gb"):
        inputs = torch.randn(4, 8, device="cuda")
        with pytest.raises(RuntimeError, match="expected scalar type Half but found Float"):
            nn.LayerNorm(8).cuda()(inputs.half())
        with torch.autocast("cuda", torch.float16):
            assert nn.LayerNorm(8).cuda()(inputs.half()).dtype == torch.float32
        classes = torch.zeros(4, dtype=torch.int32, device="cuda")
        with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
            nn.functional.cross_entropy(inputs, classes)
        assert nn.functional.cross_entropy(inputs, classes.long()).shape == ()
        states = torch.randn(1, 2, 4, 8, device="cuda")
        with pytest.raises(RuntimeError, match="query, key, and value to have the same dtype"):
            nn.functional.scaled_dot_product_attention(states.half(), states, states)
