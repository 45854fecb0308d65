"""Large tensors that are one number everywhere are known by that number."""

import pytest
import torch

import forerun

SIDE = 2048
"""4.2 million elements: four times as many as are followed one by one."""


@pytest.fixture
def gpu():
    with forerun.virtual_cuda("t4") as card:
        yield card


def pixel_mask() -> torch.Tensor:
    return torch.ones(SIDE, SIDE, dtype=torch.long, device="cuda")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (lambda: pixel_mask().bool().all(), True),
        (lambda: (1 - pixel_mask()[:64].float())[0, 0] * 7, 0.0),
        (lambda: pixel_mask().sum(), SIDE * SIDE),
        (lambda: torch.nn.functional.interpolate(pixel_mask()[None, None].float(), size=(7, 5)).long().sum(), 35),
        (lambda: torch.full((SIDE, SIDE), 2.5, device="cuda").view(-1)[3], 2.5),
        (lambda: torch.ones(SIDE, SIDE, dtype=torch.int16).cuda()[1, 1] + 1, 2),
        (
            lambda: (
                torch.zeros_like(torch.randn(SIDE, SIDE, device="cuda")).expand(2, -1, -1).permute(2, 0, 1)[0, 0, 0]
            ),
            0.0,
        ),
        (lambda: torch.where(pixel_mask() > 0, 0.0, -1e9)[5, 5], 0.0),
    ],
)
def test_one_number_is_known(gpu, value, number):
    assert value().item() == number
    assert not gpu.assumed


def test_what_the_device_changes_is_forgotten(gpu):
    """A part written in place, and values that nobody can know."""
    mask, noise = pixel_mask(), torch.randn(SIDE, SIDE, device="cuda")
    view = mask[:10]
    mask[3] = 0
    assert view.sum().item() == 0, "answered, not computed"
    total = torch.zeros_like(noise)
    total += noise
    assert total[0, 0].item() == 1.0
    assert [each.split()[-1] for each in gpu.assumed] == ["0", "1.0"]


def test_hosts_tensors_of_many_numbers_are_not_taken_for_one(gpu):
    many = torch.ones(SIDE, SIDE, dtype=torch.long)
    many[5, 6] = 0
    (many.cuda() == 1).all().item()
    assert len(gpu.assumed) == 1


def test_small_ones_are_followed_where_they_are_written(gpu):
    mask = torch.ones(4, 128, dtype=torch.long, device="cuda")
    mask[:, 100:] = 0
    assert mask.sum(1).tolist() == [100] * 4
    counts = torch.zeros_like(mask)
    counts.scatter_add_(1, torch.zeros_like(mask), mask)
    assert counts[:, 0].tolist() == [100] * 4
    assert not gpu.assumed


def test_a_view_of_many_floating_numbers_costs_nothing(gpu):
    """Padding masks of 512 × 512 floating numbers, of which one row is looked at."""
    mask = torch.arange(512, device="cuda") < 100
    square = torch.where(mask[None, :].expand(512, -1), 0.0, -1.0)
    assert square.sum().item() == 1.0, "too many to follow each"
    assert (square[0] < 0).sum().item() == 412
    assert [each.split()[-1] for each in gpu.assumed] == ["1.0"]
