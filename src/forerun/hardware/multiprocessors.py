"""What a multiprocessor of NVIDIA's has, by compute capability, as programs ask for it.

Source: CUDA C++ Programming Guide 13, table "Technical Specifications per Compute Capability".
"""

from forerun.units import KIB

WARP_THREADS, REGISTERS = 32, 65_536
THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Threads that run together, 32-bit registers, and most threads at once where they are not 2,048."""
OTHER_THREADS = 2048
_BLOCK_KIB = {(7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
_OTHER_KIB, _OLDER_KIB, _VOLTA = 99, 48, (7, 0)
RESERVED_BYTES = KIB
"""Of shared memory, for each block, from Ampere on: a multiprocessor has that much more than a block may."""


def threads(capability: tuple[int, int]) -> int:
    """Most threads at once."""
    return THREADS.get(capability, OTHER_THREADS)


def shared_bytes_of_block(capability: tuple[int, int]) -> int:
    """Shared memory that one block of threads may ask for, in bytes."""
    return _BLOCK_KIB.get(capability, _OTHER_KIB if capability >= _VOLTA else _OLDER_KIB) * KIB
