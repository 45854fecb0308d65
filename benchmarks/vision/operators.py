"""Timed convolutions: `python -m benchmarks.vision.operators FOLDER_OF_OPERATOR_DATA` prints the errors of each source.

NeuSight (fp32, forward) and DeepBench (fp32 and fp16, all three kernels), each row as the call that the clock prices.

Rows are read from the folder of operator data that `benchmarks/priors/fit.py` takes; half of them, by a hash of the
shape, are fitted, the other half judged.
"""

import csv
import gzip
import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call, TensorSpec

NEUSIGHT_GPUS = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie", "Tesla V100-PCIE-32GB": "v100-32gb", "Tesla T4": "t4",
    "NVIDIA L4": "l4", "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA H100 80GB HBM3": "h100-80gb",
}  # fmt: skip
DEEPBENCH_GPUS = {"NV_T4": "t4", "NV_V100": "v100-32gb"}
FLAT_SHARES = {"float32": (0.56, 0.46), "float16": (0.29, 0.2)}
"""Share of peak, forward and backward, that convolutions took before they were timed as products."""
FORWARD, IMAGE, WEIGHTS = "forward", "image", "weights"


@dataclass(frozen=True)
class TimedConvolution:
    """One kernel of one convolution as measured."""

    source: str
    gpu: str
    kernel: str
    """forward, image or weights."""
    call: Call
    seconds: float

    @property
    def is_test(self) -> bool:
        """Whether the shape belongs to the half that is not fitted."""
        shapes = repr([spec.shape for spec in self.call.inputs])
        return int(hashlib.sha256(shapes.encode()).hexdigest(), 16) % 2 == 0


def neusight(folder: Path) -> Iterator[TimedConvolution]:
    """FP32 convolutions without tensor cores, forward."""
    with gzip.open(folder / "neusight" / "conv_fp32.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            gpu = NEUSIGHT_GPUS.get(row["device"])
            if gpu is None:
                continue
            batch, inputs, outputs, taps, size, stride, padding = (
                int(float(row[c]))
                for c in ("B", "Input_Channel", "Output_Channel", "Kernel_Size", "Input_Size", "Stride", "Padding")
            )
            call = convolution(
                (batch, inputs, size, size), outputs, (taps, taps), (stride, stride), (padding, padding), "float32"
            )
            yield TimedConvolution("neusight-fp32", gpu, FORWARD, call, float(row["latency_ms"]) / 1e3)


def deepbench(folder: Path) -> Iterator[TimedConvolution]:
    """Convolutions of training, the best of cuDNN 7.6's algorithms; in fp16 without a change of layout (its times of
    products of one tap are those of the product alone)."""
    with (folder / "deepbench" / "conv.csv").open() as file:
        for row in csv.DictReader(file):
            gpu = DEEPBENCH_GPUS.get(row["gpu"])
            dtype = "float16" if "FP16" in row["sheet"] else "float32"
            if gpu is None or "INT" in row["sheet"]:
                continue
            numbers = (int(float(row[c])) for c in ("W", "H", "C", "N", "K", "fw", "fh", "pad_w", "pad_h", "stride_w",
                                                    "stride_h"))  # fmt: skip
            width, height, inputs, batch, outputs, filter_width, filter_height, *rest = numbers
            for kernel, column in ((FORWARD, "fwd_ms"), (IMAGE, "dgrad_ms"), (WEIGHTS, "wgrad_ms")):
                if not row[column] or row[column].startswith("N/A"):
                    continue
                call = convolution(
                    (batch, inputs, height, width), outputs, (filter_height, filter_width), (rest[3], rest[2]),
                    (rest[1], rest[0]), dtype, kernel, channels_last=dtype == "float16",
                )  # fmt: skip
                source = f"deepbench-{'fp16' if dtype == 'float16' else 'fp32'}-{kernel}"
                yield TimedConvolution(source, gpu, kernel, call, float(row[column]) / 1e3)


def convolution(
    image: tuple[int, ...], outputs: int, taps: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dtype: str, kernel: str = FORWARD, groups: int = 1, channels_last: bool = False,
) -> Call:  # fmt: skip
    """The call of one kernel of a convolution."""
    sizes = zip(image[2:], taps, stride, padding, strict=True)
    positions = tuple((size + 2 * pad - tap) // step + 1 for size, tap, step, pad in sizes)
    result = (image[0], outputs, *positions)
    x, y = _spec(image, dtype, channels_last), _spec(result, dtype, channels_last)
    weight = _spec((outputs, image[1] // groups, *taps), dtype, channels_last)
    flops = 2 * image[0] * outputs * positions[0] * positions[1] * image[1] // groups * taps[0] * taps[1]
    rest = (stride, padding, (1, 1), False, (0, 0), groups)
    if kernel == FORWARD:
        return Call("aten.convolution.default", (x, weight, None, *rest), (), (x, weight), (y,), flops,
                    x.bytes + weight.bytes, y.bytes)  # fmt: skip
    out = x if kernel == IMAGE else weight
    mask = (kernel == IMAGE, kernel == WEIGHTS, False)
    arguments = (y, x, weight, None, *rest, mask)
    return Call("aten.convolution_backward.default", arguments, (), (y, x, weight), (out,), flops,
                x.bytes + y.bytes + weight.bytes, out.bytes)  # fmt: skip


def _spec(shape: tuple[int, ...], dtype: str, channels_last: bool) -> TensorSpec:
    batch, channels, height, width = shape
    strides = (channels * height * width, height * width, width, 1)
    if channels_last:
        strides = (channels * height * width, 1, channels * width, channels)
    return TensorSpec(shape, strides, dtype, batch * channels * height * width * (4 if dtype == "float32" else 2))


def main() -> None:
    """Print errors of the half that was not fitted, before and now, by source and GPU."""
    folder = Path(sys.argv[1])
    ratios: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in [*neusight(folder), *deepbench(folder)]:
        if row.is_test:
            costs, dtype = PriorCosts(device(row.gpu)), row.call.inputs[0].dtype
            flat = row.call.flops / (costs.device.peak(dtype) * FLAT_SHARES[dtype][row.kernel != FORWARD])
            # timed with TF32 off, so not by `device_seconds`
            now = costs._weighted(costs.convolutions(dtype).parts(row.call))
            ratios[row.source, row.gpu].append((flat / row.seconds, now / row.seconds))
    for (source, gpu), listed in sorted(ratios.items()):
        errors = np.abs(np.array(listed) - 1)
        before, now = np.median(errors, axis=0)
        print(f"{source:24} {gpu:16} {len(listed):6} rows, median error before {before:6.1%}, now {now:6.1%}, "
              f"P90 {np.quantile(errors[:, 0], 0.9):6.1%}, {np.quantile(errors[:, 1], 0.9):6.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
