"""Variables of a program's environment that nobody follows here."""

import pytest

from forerun.virtual.cuda.environment import not_followed


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ["CUDA_LAUNCH_BLOCKING"]),
        ({"CUDA_LAUNCH_BLOCKING": "0", "NCCL_P2P_DISABLE": "1"}, []),
        ({"WORLD_SIZE": "2", "NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "0"}, ["NCCL_P2P_DISABLE"]),
        ({"WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0"}, ["NCCL_NVLS_ENABLE"]),
        ({"WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "1"}, []),
    ],
)
def test_what_is_told(environment, names):
    assert [sentence.split("=")[0] for sentence in not_followed(environment)] == names
