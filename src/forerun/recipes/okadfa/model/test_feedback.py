import torch

from forerun.recipes.okadfa.model.feedback import DirectFeedback, feedback_matrix


def test_the_error_reaches_every_output_projected_by_one_matrix():
    torch.manual_seed(0)
    matrix = feedback_matrix(6, "random")
    top, *outputs = (torch.randn(2, 3, 6, requires_grad=True) for _ in range(4))
    tied = DirectFeedback.apply(top, matrix, *outputs)
    assert torch.equal(tied, top)
    error = torch.randn(2, 3, 6)
    tied.backward(error)
    assert torch.equal(top.grad, error)
    for output in outputs:
        assert torch.equal(output.grad, error @ matrix)


def test_matrices():
    torch.manual_seed(0)
    matrix = feedback_matrix(64, "random")
    assert matrix.abs().max() <= 1 / 8
    assert abs(float(matrix.var()) * 64 - 1 / 3) < 0.03  # uniform on [-1, 1] has variance 1/3
    assert torch.equal(feedback_matrix(5, "identity"), torch.eye(5))
    positive = feedback_matrix(16, "positive")
    assert torch.linalg.eigvalsh(positive).min() > 0
    errors = torch.randn(100, 16)
    assert ((errors @ positive) * errors).sum(1).min() > 0  # never against the error, as random signs are half the time


def test_under_autocast_the_projection_is_in_its_dtype():
    top, output = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    matrix = feedback_matrix(8, "random")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tied = DirectFeedback.apply(top, matrix, output)
    error = torch.randn(4, 8)
    tied.backward(error)
    assert output.grad.dtype == torch.float32
    assert torch.equal(output.grad, (error.bfloat16() @ matrix.bfloat16()).float())
