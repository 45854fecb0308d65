"""Fit the coefficients of image layers: `python -m benchmarks.vision.fit FOLDER_OF_OPERATOR_DATA FOLDER_OF_INFERENCE`.

Three fits. Whole training steps and forward passes on an RTX 3090 (fit half of the families, `split.py`): a step that
keeps the GPU busy is the sum of its operators, and each operator the sum of its parts times their coefficients, so all
coefficients follow from all steps at once, by least logarithmic error that far-off rows bend little. Each coefficient
starts at what its mechanism says and leaves it only as far as the rows demand (`STARTS`). Steps alone do not tell what
is forward and what is backward; forward passes do. Other cards have forward passes alone: theirs give what is forward,
and what is backward differs from the RTX 3090's as much as that does. Convolutions without tensor cores: timed ones of
NeuSight and DeepBench, the half of the shapes that is fitted. Writes the entries `images`, `convolutions` and
`elementwise` of `src/forerun/clock/priors.json`; figures are fitted, no row is copied. Takes 10 minutes once the traces
are there.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.vision.inference import FILES, chosen, trace_of_forward
from benchmarks.vision.operators import deepbench, neusight
from benchmarks.vision.split import VisionRow, load_rows, subset
from benchmarks.vision.tracing import CACHE, GPU, trace_of
from scipy.optimize import least_squares

import forerun.clock
from forerun.clock.convolutions import DENSE, Parts
from forerun.clock.image_layers import image_layer_parts
from forerun.clock.priors import PriorCosts
from forerun.errors import ForerunError
from forerun.hardware.catalogue import device
from forerun.trace import OP, Call, Phase, Trace

TARGET = Path(forerun.clock.__file__).with_name("priors.json")
SOURCE = (
    "huggingface/pytorch-image-models results/ aa4b5850 (Apache-2.0); NeuSight 6945927 (MIT); "
    "DeepBench da81ba7 (Apache-2.0); benchmarks/vision/fit.py"
)
NOISE = 0.1
"""Standard deviation of the logarithm of a step's time that the model leaves."""
STARTS = {
    "dense": (0.85, 0.2), "grouped_plain": (5.0, 1.0), "grouped": (1.3, 0.6), "depthwise": (2.0, 0.8),
    "conversion": (0.75, 0.4), "padding": (1.2, 0.4), "batch_norm": (1.7, 0.3), "pooling": (1.5, 0.2),
    "bias": (1.2, 0.4), "transposition": (3.0, 0.4), "concatenation": (3.0, 0.7), "products": (1.0, 0.05),
    "moving": (1.0, 0.2),
}  # fmt: skip
"""Beginning of a coefficient's name → where it starts, and the standard deviation of its logarithm. `products` has
coefficients already; its freedom only keeps their errors out of the others. `moving` is all that passes over memory
once: what it takes more than the bandwidth that this GPU was given is the GPU's own share of bandwidth."""
MOST_SHARE = 0.95
"""Of a card's bandwidth, that a pass over memory reaches: reading alone reaches 91 % on an RTX 2060 and 4090, 89 on a
2080, 90 on a V100, 94 on an A100 (krrishnarraj/clpeak 82de99a, results/NVIDIA_CUDA, and its issue 106)."""
HELD_BACK = ("rtx-pro-6000-max-q",)
"""Cards of half the power of their like: no example for those, so they get no coefficients."""
OWN_SPREAD = 0.5
"""Standard deviation of the logarithm of what another card's coefficients are of the RTX 3090's."""
MODELS = 60
"""Forward passes on each card and in each layout."""
BACKWARD = {"dense_image": "dense_forward", "dense_weights": "dense_forward",
            "conversion_backward": "conversion", "conversion_backward_point": "conversion_point"}  # fmt: skip
"""What is backward → what of the forward pass it is taken to differ with from card to card."""
HOST_SECONDS = 12e-6
"""Steps of less than this for each operator may wait for the host, and are left out."""
FORWARD_SECONDS = 6e-6
"""The same of forward passes, whose operators have no autograd."""
ROWS_PER_GPU = 60
"""Timed convolutions of a source and a GPU, so that no source outweighs the others."""


def parts_of(call: Call, costs: PriorCosts) -> Parts:
    """Seconds of a call by coefficient."""
    if call.is_view:
        return {}
    if "convolution" in call.name:
        return costs.convolutions(costs._convolution_dtype(call)).parts(call)
    parts = image_layer_parts(call, costs._bandwidth())
    return {"products" if call.flops else "moving": costs.device_seconds(call)} if parts is None else parts


def step_parts(trace: Trace, costs: PriorCosts) -> tuple[Parts, int]:
    """Seconds of the warm step by coefficient, and its operators."""
    runs: Counter[int] = Counter()
    for kind, index in trace.events[trace.warm_from :]:
        if kind == OP and trace.ops[index].phase is not Phase.PREPARE:
            runs[trace.ops[index].call] += 1
    totals: Parts = defaultdict(float)
    for call, count in runs.items():
        for name, seconds in parts_of(trace.calls[call], costs).items():
            totals[name] += count * seconds
    return dict(totals), sum(runs.values())


def traced_rows(is_test: bool) -> list[VisionRow]:
    """Rows of one half whose traces are in the cache."""
    rows = [row for row in subset(load_rows()) if row.is_test == is_test]
    return [row for row in rows if (CACHE / f"{row.id}-{row.micro_batch_size}.pickle.gz").exists()]


def fit_steps(
    steps: list[tuple[Parts, float]], starts: Mapping[str, tuple[float, float]] = STARTS, *, share: float = MOST_SHARE
) -> tuple[Parts, Any]:
    """Coefficients, and each step's forecast over measured; `share` of the bandwidth is what `moving` was given."""
    names = sorted({name for parts, _ in steps for name in parts})
    parts = np.array([[step.get(name, 0.0) for name in names] for step, _ in steps])
    measured = np.array([seconds for _, seconds in steps])
    begins = [next(value for key, value in starts.items() if name.startswith(key)) for name in names]
    middle, spread = np.log([s for s, _ in begins]), np.array([s for _, s in begins])
    least = np.array([np.log(share / MOST_SHARE) if name == "moving" else -np.inf for name in names])

    def misses(x: Any) -> Any:
        return np.concatenate([np.log(parts @ np.exp(x) / measured) / NOISE, (x - middle) / spread])

    x = least_squares(misses, np.maximum(middle, least + 1e-6), bounds=(least, np.inf), loss="cauchy").x
    return dict(zip(names, np.exp(x).tolist(), strict=True)), parts @ np.exp(x) / measured


def forward_steps(folder: Path, gpu: str) -> list[tuple[Parts, float]]:
    """Parts and seconds of forward passes on a card, of the half of the families that is fitted."""
    costs, steps = PriorCosts(device(gpu)), []
    for model, rows in chosen(folder, MODELS, is_test=False).items():
        for row in rows:
            if row.gpu != gpu:
                continue
            try:
                parts, operators = step_parts(trace_of_forward(row), costs)
            except (ForerunError, ZeroDivisionError, RuntimeError, TypeError) as error:
                print(f"not traced: {model}: {str(error)[:100]}", file=sys.stderr)
                continue
            if row.seconds > operators * FORWARD_SECONDS:
                steps.append((parts, row.seconds))
    return steps


def own_coefficients(folder: Path, gpu: str, usual: Parts) -> tuple[Parts, float]:
    """Coefficients of a card that only has forward passes, and its share of the bandwidth."""
    steps = forward_steps(folder, gpu)
    share = PriorCosts(device(gpu))._share()
    starts = {name: (value, OWN_SPREAD) for name, value in usual.items()} | {
        name: STARTS[name] for name in ("products", "moving")
    }  # names that begin alike are in the order of their length
    starts = dict(sorted(starts.items(), key=lambda item: -len(item[0])))
    own, ratios = fit_steps(steps, starts, share=share)
    before = np.array([sum(parts[name] * usual.get(name, 1.0) for name in parts) / seconds for parts, seconds in steps])
    print(f"{gpu}: {len(steps)} forward passes, off by {np.median(np.abs(before - 1)):.1%} with the RTX 3090's "
          f"coefficients, {np.median(np.abs(ratios - 1)):.1%} with its own")  # fmt: skip
    share /= own.pop("moving")
    own.pop("products")
    for name in usual:
        forward = BACKWARD.get(name, name.replace("_image", "_forward").replace("_weights", "_forward"))
        if name not in own and forward in own:
            own[name] = usual[name] * own[forward] / usual[forward]
    return {name: round(value, 3) for name, value in sorted(own.items())}, round(share, 4)


def left_out_ratios(rows: list[VisionRow]) -> list[float]:
    """Measured over forecast of each row with coefficients that its family took no part in, for the width of ranges.

    What coefficients were fitted to they miss by less than what comes next. Rows that may wait for the host are not in.
    """
    costs, timed = PriorCosts(device(GPU)), []
    for row in rows:
        parts, operators = step_parts(trace_of(row, row.micro_batch_size), costs)
        if row.step_seconds > operators * HOST_SECONDS:
            timed.append((row, parts))
    ratios = []
    for family in sorted({row.family for row, _ in timed}):
        others = [(parts, row.step_seconds) for row, parts in timed if row.family != family]
        coefficients, _ = fit_steps(others, share=costs._share())
        for row, parts in timed:
            if row.family == family:
                forecast = sum(seconds * coefficients.get(name, _start(name)) for name, seconds in parts.items())
                ratios.append(row.step_seconds / forecast)
    return ratios


def _start(name: str) -> float:
    return next(value for key, (value, _) in STARTS.items() if name.startswith(key))


def fit_operators(folder: Path) -> tuple[Parts, dict[str, list[float]]]:
    """Middle of measured over forecast of timed convolutions: without tensor cores of all GPUs, with them of each."""
    plain: dict[str, list[float]] = defaultdict(list)
    dense: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    counts: Counter[tuple[str, str]] = Counter()
    for row in [*neusight(folder), *deepbench(folder)]:
        counts[row.source, row.gpu] += not row.is_test
        if row.is_test or counts[row.source, row.gpu] > ROWS_PER_GPU:
            continue
        dtype = row.call.inputs[0].dtype
        parts = PriorCosts(device(row.gpu)).convolutions(dtype).parts(row.call)
        if len(parts) == 1:  # nothing is copied: channels are what the kernels take
            name = next(iter(parts))
            ratios = dense[row.gpu] if name in DENSE else plain
            ratios[name].append(row.seconds / parts[name])
    by_gpu = {gpu: [float(np.median(ratios[name])) for name in DENSE] for gpu, ratios in dense.items()}
    return {name: float(np.median(ratios)) for name, ratios in plain.items()}, by_gpu


def main() -> None:
    """Fit, print, write."""
    costs, table = PriorCosts(device(GPU)), json.loads(TARGET.read_text(encoding="utf-8"))
    operators_folder, inference_folder = map(Path, sys.argv[1:3])
    rows, steps = [], []
    for row in traced_rows(is_test=False):
        parts, operators = step_parts(trace_of(row, row.micro_batch_size), costs)
        if row.step_seconds > operators * HOST_SECONDS:
            rows.append(row)
            steps.append((parts, row.step_seconds))
    forward = forward_steps(inference_folder, GPU)
    share, start = costs._coefficients("elementwise")
    coefficients, ratios = fit_steps(steps + forward, share=share)
    shares = {n: np.mean([p.get(n, 0.0) * c / sum(p[m] * coefficients[m] for m in p) for p, _ in steps + forward])
              for n, c in coefficients.items()}  # fmt: skip
    for name, value in coefficients.items():
        print(f"{name:36} {value:6.2f}, {shares[name]:6.1%} of a step")
    for name, some in (("training steps", ratios[: len(steps)]), ("forward passes", ratios[len(steps) :])):
        errors = np.abs(some - 1)
        print(f"{len(some)} {name} fitted: median {np.median(errors):.1%}, P90 {np.quantile(errors, 0.9):.1%}, "
              f"bias {np.median(some - 1):+.1%}")  # fmt: skip
    print_families(rows, ratios[: len(steps)])
    plain, dense = fit_operators(operators_folder)
    coefficients.pop("products")
    table["elementwise"]["devices"][GPU] = [round(share / coefficients.pop("moving"), 4), start]
    for gpu in dict.fromkeys(gpu for gpu, _ in FILES if gpu not in (GPU, *HELD_BACK)):
        own, own_share = own_coefficients(inference_folder, gpu, coefficients)
        table["convolutions"][gpu] = own
        table["elementwise"]["devices"][gpu] = [own_share, start]
    dense[GPU] = [coefficients.pop(name) for name in DENSE]
    middle = np.exp(np.mean(np.log(list(dense.values())), axis=0))
    print(dense, "unseen", middle, plain)
    table["images"] = {name: round(value, 3) for name, value in sorted((coefficients | plain).items())}
    table["dense_convolutions"] = {
        "devices": {gpu: np.round(values, 3).tolist() for gpu, values in dense.items()},
        "unseen": np.round(middle, 3).tolist(),
    }
    table["errors"]["images"] = {"steps": len(rows), "fitted": round(float(np.median(np.abs(ratios - 1))), 3)}
    table["images_source"] = SOURCE
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def print_families(rows: list[VisionRow], ratios: Any) -> None:
    """Forecast over measured of the fitted families, with the two rows farthest off."""
    families: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for row, ratio in zip(rows, ratios, strict=True):
        families[row.family, row.layout].append((float(ratio), row.model))
    for (family, layout), listed in sorted(families.items()):
        far = sorted(listed, key=lambda pair: -abs(np.log(pair[0])))[:2]
        middle = np.median([ratio for ratio, _ in listed])
        farthest = ", ".join(f"{model} {ratio:.2f}" for ratio, model in far)
        print(f"{family:24} {layout} {len(listed):3} rows, middle {middle:.2f}; {farthest}")


if __name__ == "__main__":
    main()
