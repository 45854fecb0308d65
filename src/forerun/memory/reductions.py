"""Partial results of reductions that a GPU splits over its thread blocks: memory that no tensor of the program holds.

PyTorch's reductions over leading dimensions (the gradient of every bias is one) give each thread a few outputs and a
part of the inputs. Where few outputs leave multiprocessors idle and each thread has 256 inputs or more, the inputs are
split over further blocks, and what each thread of them has summed is written to a buffer first.
Source: `setReduceConfig` and `ReduceConfig::global_memory_size`, `aten/src/ATen/native/cuda/Reduce.cuh` (2.11).
The size follows from the card's multiprocessors, so a trace states outputs and inputs and the replay the bytes.

Checked against an H100's allocator history (`tests/golden/allocator-h100`): to the byte at widths of 1,600, 4,800,
6,400 and 33,278. Not covered: AMD, the counters beside the buffer (4 bytes for each block), reductions over the
innermost dimension, whose partial results are one number for each block.
"""

from dataclasses import replace

from forerun.hardware.catalogue import Device
from forerun.trace import PARTIAL_BYTES, Trace

MOST_THREADS, WARP_THREADS, MOST_OUTPUTS_EACH = 512, 32, 4
"""Threads of a block that reduces (`mnt_wrapper`), lanes of a warp, outputs of a thread (`get_output_vec_size`)."""
FEWEST_VALUES, MOST_VALUES = 16, 256
"""Inputs that a thread reduces for each output (`min_values_per_thread`, `max_values_per_thread`)."""
RESIDENT_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
"""Threads that a multiprocessor holds at once, by compute capability; 2,048 elsewhere. Source: CUDA C++ Programming
Guide, table of technical specifications per compute capability; not re-read."""
USUAL_RESIDENT_THREADS = 2048


def resident_threads(device: Device) -> int:
    """Threads that all multiprocessors hold at once; 0 where that is unknown, and for AMD."""
    if device.compute_capability is None:
        return 0
    return (device.sm_count or 0) * RESIDENT_THREADS.get(device.compute_capability, USUAL_RESIDENT_THREADS)


def staging_bytes(outputs: int, inputs: int, threads: int) -> int:
    """Bytes of the buffer of a reduction of `inputs` numbers to each of `outputs`; 0 where the inputs are not split.

    `threads` is what the card holds at once.
    """
    each = next(count for count in (MOST_OUTPUTS_EACH, 2, 1) if outputs % count == 0)
    most, lanes = MOST_THREADS // each, max(1, outputs // each)
    wide, high = min(most, _last_power(lanes)), min(most, _last_power(inputs))
    width = min(wide, WARP_THREADS)
    height = min(high, most // width)
    width = min(wide, most // height)
    values = inputs
    if values < min(height * FEWEST_VALUES, MOST_VALUES):
        return 0
    values, grid = -(-inputs // height), -(-lanes // width)
    target = threads // (width * height)
    if values < MOST_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // FEWEST_VALUES)), -(-values // MOST_VALUES))
    return PARTIAL_BYTES * outputs * blocks * width * each if blocks > 1 else 0


def sized_for(trace: Trace, device: Device) -> Trace:
    """The trace with the bytes that reductions take on `device`."""
    if not any(storage.reduces for storage in trace.storages):
        return trace
    threads = resident_threads(device)
    storages = [
        replace(each, bytes=staging_bytes(each.bytes // PARTIAL_BYTES, each.reduces, threads), reduces=0)
        if each.reduces
        else each
        for each in trace.storages
    ]
    return replace(trace, storages=storages)


def _last_power(number: int) -> int:
    """The largest power of two that is not above `number` (1 or more)."""
    return 1 << (max(1, number).bit_length() - 1)
