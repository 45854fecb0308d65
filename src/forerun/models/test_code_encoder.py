import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from forerun.errors import InvalidSettings
from forerun.models.code_encoder import CodeEncoder, CodeEncoderConfig

SMALL = CodeEncoderConfig(vocabulary_size=50, buckets=64, ngram_width=4, width=8, heads=2, feed_forward=16)


def encoder(**changes) -> CodeEncoder:
    torch.manual_seed(0)
    return CodeEncoder(CodeEncoderConfig.from_overrides(vars(SMALL) | changes)).eval()


def batch(*rows: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return ids, (ids > 0).long()


def test_padding_changes_nothing():
    model = encoder(layers=2)
    alone = model(*batch([3, 9, 4, 7], length=4))
    padded = model(*batch([3, 9, 4, 7], [5, 6, 7, 8, 9, 10, 11, 12], length=16))[:1]
    torch.testing.assert_close(alone, padded, rtol=1e-5, atol=1e-5)
    assert alone.shape == (1, SMALL.output_width)


def test_every_order_of_ngram_sees_the_order_of_tokens_but_not_their_place():
    bag = encoder().ngrams
    ids, mask = batch([3, 9, 4], [4, 9, 3], length=3)
    forward, backward = bag(ids, mask.bool())
    torch.testing.assert_close(forward[:4], backward[:4])  # single tokens
    assert not torch.allclose(forward[4:8], backward[4:8])  # pairs


def test_a_file_shorter_than_an_ngram_is_finite():
    out = encoder()(*batch([3], length=8))
    assert torch.isfinite(out).all()


def test_gradients_reach_every_parameter():
    model = encoder()
    model(*batch([3, 9, 4, 7], [8, 2], length=6)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_traces_on_fake_tensors():
    with FakeTensorMode():
        model = CodeEncoder(SMALL)
        ids = torch.zeros(4, 32, dtype=torch.long)
        out = model(ids, torch.ones_like(ids))
        out.sum().backward()
    assert tuple(out.shape) == (4, SMALL.output_width)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"widht": 8}, "widht.*Nearest: width"), ({"width": 10, "heads": 4}, "divisible"), ({"kernel": 4}, "odd kernel")],
)
def test_wrong_sizes_are_refused(overrides, message):
    with pytest.raises(InvalidSettings, match=message):
        CodeEncoderConfig.from_overrides(overrides)
