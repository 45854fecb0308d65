"""What products in 16 bits take where a row of one of their matrices begins between two words of four bytes.

cuBLAS then takes kernels that load value by value (`…_align1`): copies of less than four bytes cannot go past the
registers (`cp.async` of PTX takes 4, 8 or 16), so loading decides, not the tensor cores. An odd vocabulary is the
common case: 50,257 of GPT-2, 50,265 of RoBERTa and BART, 51,865 of Whisper, 32,001 after LLaMA's was given a token.
Padding it to a multiple of 64 made GPT-2 in fp16 30 % faster on an A100 (intel/torch-xpu-ops issue 1129) and a small
model 4 % on an RTX 3090 (RobertRiachi/nanoPALM pull request 6), whose tensor cores are hardly faster than that.

Not covered: rows at multiples of 4 and 8 bytes (BERT's 30,522), which lose less; thin products, which such kernels take
up to a hundred times as long for (pytorch/pytorch issue 106469). Compiled code pads by itself
(`torch._inductor.config.shape_padding`).
"""

import math
from collections.abc import Iterable

from forerun.hardware.catalogue import Device
from forerun.trace import Call, Issuer, TensorSpec

WIDTH = 2
"""Bytes of a value that has such kernels; a value of four bytes is copied as it is."""
FLOPS_PER_CYCLE, FLOPS_PER_CYCLE_OF_TURING = 450.0, 260.0
"""Of one multiprocessor at the clock of the datasheet. The first, of Ampere and later: GPT-2 on an H100 (`benchmarks/
truth`) and Transformer-XL with 267,735 words on A100s lost so much; not fitted to, its steps are right within 6 % on an
H100 PCIe and an RTX A6000, and 6 and 15 % too fast on an RTX 6000 Ada. The second is from one card. A V100, whose
kernels load through registers anyway, lost nothing."""
TURING, COPIES_FROM = (7, 5), (8, 0)


def unaligned_seconds(call: Call, matrices: Iterable[TensorSpec], gpu: Device) -> float:
    """Least time of a product, seconds; 0 where every row of its matrices begins at a word, or its code is compiled."""
    if call.issuer in (Issuer.COMPILED, Issuer.GRAPH) or not any(is_unaligned(each) for each in matrices):
        return 0.0
    capability = gpu.compute_capability or (0, 0)
    if capability < TURING:
        return 0.0
    each = FLOPS_PER_CYCLE if capability >= COPIES_FROM else FLOPS_PER_CYCLE_OF_TURING
    return call.flops / (each * (gpu.sm_count or 1) * gpu.boost_clock_hertz)


def is_unaligned(matrix: TensorSpec) -> bool:
    """Whether rows (or columns, if those lie together) of a matrix in 16 bits are an odd number of values apart."""
    if len(matrix.shape) < 2 or min(matrix.shape[-2:]) < 2 or matrix.bytes != WIDTH * math.prod(matrix.shape):
        return False
    return max(matrix.stride[-2:]) % 2 == 1
