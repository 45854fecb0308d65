import math

import pytest
import torch
import torch.nn.functional as F

from forerun.recipes.okadfa.model.kernel_attention import (
    SPAN,
    _through_features,
    causal_kernel_attention,
    features,
    largest_exponent,
    orthogonal_projection,
)

KERNELS = ["elu", "favor", "unscaled"]


def dense(query, key, value, kernel, projection):
    largest = largest_exponent(key.detach(), kernel, projection)
    weights = (features(query, kernel, projection) @ features(key, kernel, projection, largest).mT).tril()
    return weights @ value / (weights.sum(-1, keepdim=True) + (1e-6 if kernel == "unscaled" else 0))


@pytest.fixture
def parts():
    torch.manual_seed(0)
    return [torch.randn(2, 3, 37, 8, requires_grad=True) for _ in range(3)], orthogonal_projection(24, 8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("chunk", [1, 8, 37, 128])
def test_chunks_are_the_dense_sum_forward_and_backward(parts, kernel, chunk):
    tensors, projection = parts
    ours, dense_one = causal_kernel_attention(*tensors, kernel, projection, chunk), dense(*tensors, kernel, projection)
    assert torch.allclose(ours, dense_one, atol=1e-5)
    slope = torch.randn_like(ours)
    for got, expected in zip(
        torch.autograd.grad(ours, tensors, slope), torch.autograd.grad(dense_one, tensors, slope), strict=True
    ):
        assert torch.allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("kernel", KERNELS)
def test_slopes_through_features_are_autograds(kernel):
    torch.manual_seed(1)
    vectors = torch.randn(2, 3, 11, 8, requires_grad=True)
    projection = orthogonal_projection(24, 8)
    of_vectors = features(vectors, kernel, projection)
    slopes = torch.randn_like(of_vectors)
    expected = torch.autograd.grad(of_vectors, vectors, slopes)[0]
    ours = _through_features(vectors.detach(), of_vectors.detach(), slopes, kernel, projection)
    assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_no_token_sees_what_comes_after_it(parts, kernel):
    (query, key, value), projection = parts
    before = causal_kernel_attention(query, key, value, kernel, projection, 8)
    later_key, later_value = key.detach().clone(), value.detach().clone()
    later_key[:, :, 20:] *= 0.5
    later_value[:, :, 20:] = 100
    after = causal_kernel_attention(query, later_key, later_value, kernel, projection, 8)
    assert torch.allclose(before[:, :, :20], after[:, :, :20], atol=1e-5)
    assert not torch.allclose(before[:, :, 20:], after[:, :, 20:], atol=1e-1)


def test_favor_comes_near_softmax_and_nearer_with_more_features():
    torch.manual_seed(2)
    query, key, value = (torch.randn(2, 2, 64, 16) * 0.5 for _ in range(3))
    exact = F.scaled_dot_product_attention(query, key, value, is_causal=True)

    def error(count):
        tries = [
            causal_kernel_attention(query, key, value, "favor", orthogonal_projection(count, 16)) for _ in range(4)
        ]
        return sum(float((t - exact).norm() / exact.norm()) for t in tries) / 4

    few, many = error(16), error(1024)
    assert many < 0.1
    assert many < few / 3  # the error of an average falls with the root of its terms: 8 times here, less by chance


def test_features_estimate_the_softmax_kernel():
    """Mean of φ(q)·φ(k) over draws is exp(q·k/√d), up to the stabilisers, which cancel in a quotient."""
    torch.manual_seed(3)
    query, key = torch.randn(1, 1, 1, 8) * 0.5, torch.randn(1, 1, 2, 8) * 0.5
    expected = torch.exp((query @ key.mT / math.sqrt(8)).flatten())
    sums = torch.zeros(2)
    for _ in range(50):
        projection = orthogonal_projection(64, 8)
        q = features(query, "favor", projection)
        k = features(key, "favor", projection, largest_exponent(key, "favor", projection))
        pair = (q @ k.mT).flatten()
        sums += pair / pair.sum()
    assert torch.allclose(sums / 50, expected / expected.sum(), atol=0.01)


def test_orthogonal_rows_with_gaussian_lengths():
    torch.manual_seed(4)
    rows = orthogonal_projection(4096, 16)
    first = F.normalize(rows[:16], dim=1)
    assert torch.allclose(first @ first.T, torch.eye(16), atol=1e-5)
    assert rows.square().sum(1).mean().item() == pytest.approx(16, rel=0.05)  # E|g|² = d
    assert torch.equal(
        orthogonal_projection(8, 4, torch.Generator().manual_seed(7)),
        orthogonal_projection(8, 4, torch.Generator().manual_seed(7)),
    )


def test_the_originals_features_are_dead_where_the_right_ones_live():
    """Queries and keys of length √64, as orthogonal projections of normalised states have."""
    torch.manual_seed(5)
    query, key, value = (F.normalize(torch.randn(1, 2, 50, 64), dim=-1) * 8 for _ in range(3))
    projection = orthogonal_projection(128, 64)

    def ratio(kernel):
        return float(causal_kernel_attention(query, key, value, kernel, projection).norm() / value.norm())

    assert ratio("unscaled") < 1e-9
    assert ratio("favor") > 0.1
    assert ratio("elu") > 0.1


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_bf16_autocast_is_near_fp32(parts, kernel):
    tensors, projection = parts
    exact = causal_kernel_attention(*tensors, kernel, projection, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = causal_kernel_attention(*(t.bfloat16() for t in tensors), kernel, projection, 8)
    assert near.dtype == torch.bfloat16
    assert (
        float((near.float() - exact).detach().norm() / exact.detach().norm()) < 0.03
    )  # bf16 has 8 bits: 0.4 % a number


@pytest.mark.parametrize("kernel", ["elu", "favor"])
def test_what_is_kept_grows_with_neither_features_nor_states(kernel):
    """Numbers saved for the backward pass, per token: queries, keys, values, sums and a little of the states."""

    def saved_numbers(length, count):
        query, key, value = (torch.randn(1, 1, length, 32, requires_grad=True) for _ in range(3))
        saved: dict[int, int] = {}

        def note(tensor):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            causal_kernel_attention(query, key, value, kernel, orthogonal_projection(count, 32), 64)
        return sum(saved.values()) / 4

    per_token = (saved_numbers(2048, 512) - saved_numbers(1024, 512)) / 1024
    state = 512 * 40 / (64 * SPAN)  # one for every span
    assert per_token < 6 * 40 + state
    few = (saved_numbers(2048, 64) - saved_numbers(1024, 64)) / 1024
    assert per_token - few <= state
