"""Keep what a CPU step frees: glibc gives memory back that the next step asks for again, zeroed page by page.

A training step on a CPU frees its activations and gradients and allocates them anew. By default glibc maps large blocks
one by one and trims the heap, so that each step pays for fresh pages; eight steps on this project's CPU took 3 to 30 %
longer for it (docs/log.md, 2026-11-21). `freed_memory_held` turns that off for a while (mallopt(3)).

Without glibc, or where the user set MALLOC_… variables, nothing is changed.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

from forerun.units import MIB

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
NEVER = 2**31 - 1
DEFAULT_MAPPINGS = 65536  # malloc/malloc.c, DEFAULT_MMAP_MAX
GROWN_THRESHOLD = 32 * MIB  # malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
"""Where glibc's own adjustment ends after large blocks have been freed; it is off once an option was set."""
OPTIONS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


@contextlib.contextmanager
def freed_memory_held() -> Iterator[bool]:
    """Inside, the C library keeps freed memory for the next allocation; yields whether it does."""
    library = _glibc()
    if library is None:
        yield False
        return
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield True
    finally:
        library.mallopt(M_MMAP_MAX, DEFAULT_MAPPINGS)
        library.mallopt(M_MMAP_THRESHOLD, GROWN_THRESHOLD)
        # malloc/malloc.c, __libc_free: the trim threshold follows at twice the mmap threshold
        library.mallopt(M_TRIM_THRESHOLD, 2 * GROWN_THRESHOLD)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if any(name in os.environ for name in OPTIONS):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        library.gnu_get_libc_version  # noqa: B018 (musl and others have none)
    except (OSError, AttributeError):
        return None
    return library
