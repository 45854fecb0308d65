"""Samples of a call."""

import pytest
import torch

from forerun.virtual.cuda.records import counted, samples_given

PICTURES = [torch.zeros(3, 40, 60), torch.zeros(3, 50, 50)]


@pytest.mark.parametrize(
    ("values", "samples"),
    [
        ([torch.zeros(8, 4), torch.zeros(2)], 8), ([{"input_ids": torch.zeros(6, 4)}], 6),
        ([PICTURES, [{"boxes": torch.zeros(1, 4)}] * 2], 2), ([[{"image": PICTURES[0]}] * 3], 3),
        ([[torch.zeros(16, 3, 8, 8)] * 10], 0), ([torch.zeros(()), PICTURES], 2), ([[]], 0), ([], 0),
    ],
)  # fmt: skip
def test_samples_are_rows_or_what_a_list_holds(values, samples):
    """Ten crops of a batch each, as DINO has them, are no ten samples."""
    assert samples_given(values) == samples


def test_tokens_are_ids_of_the_samples_and_no_edges_of_a_graph():
    ids, nodes = torch.zeros(8, 16, dtype=torch.int64), torch.zeros(100, 4)
    assert counted(None, [ids]) == (1, 8, 128)
    assert counted((1, 8, 128), [ids, torch.ones(8, 16)]) == (2, 16, 256)
    assert counted(None, [nodes, torch.zeros(2, 500, dtype=torch.int64)]) == (1, 100, 0)
