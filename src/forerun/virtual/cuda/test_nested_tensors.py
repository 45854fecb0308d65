"""A nested tensor of the device is refused in words; one of the host is made."""

import pytest
import torch

import forerun


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_device_are_refused():
    rows = [torch.randn(n, 8) for n in (2, 3)]
    with forerun.virtual_cuda("t4"):
        assert torch.nested.nested_tensor(rows, layout=torch.jagged).is_nested
        with pytest.raises(NotImplementedError, match=r"torch\.nested tensors are not known on the virtual GPU\. Pad"):
            torch.nested.nested_tensor([row.cuda() for row in rows], layout=torch.jagged)
    assert torch.nested.nested_tensor(rows, layout=torch.jagged).is_nested
