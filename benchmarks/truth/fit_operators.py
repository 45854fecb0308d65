"""Fit what single operators need beyond their products and bytes: `python -m benchmarks.truth.fit_operators [--write]`.

From `operators-h100-80gb.csv`: passes and elements per clock of kernels that move memory, from the larger of two sizes
(float32 gives the passes, bfloat16 the elements), and the coefficients of convolutions on that card, from those shapes
that `operators.half_of` deals to the fit. Prints both, and with --write puts them into `forerun/clock/priors.json`;
what was not fitted is judged by `python -m benchmarks.truth.operators --half test`.
"""

import argparse
import json
from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np
from benchmarks.priors.fit import TARGET
from benchmarks.truth.measure_operators import cases
from benchmarks.truth.operators import GPU, calls_of, half_of, measured
from scipy.optimize import minimize

from forerun.clock.costs import KERNEL_SECONDS
from forerun.clock.memory_kernels import WIDENED, kind_of
from forerun.clock.priors import PriorCosts, table
from forerun.hardware.catalogue import device

LARGE = "16384"
NEGLIGIBLE = 1.08
"""Passes, and as much more for bfloat16, below which a kernel counts as reading and writing once."""
OTHERS = ("batch_norm", "pool", "bmm", "foreach", "fused_adam", "nll_loss", "_to_copy.default",
          "embedding_dense")  # fmt: skip
"""Parts of the names of what is priced elsewhere, or is another cast in bfloat16."""
DENSE = (
    "dense_forward", "dense_image", "dense_weights", "conversion", "conversion_point", "conversion_backward",
    "conversion_backward_point",
)  # fmt: skip
PULL, SHARP = 0.02, 0.01


def memory_figures() -> dict[str, tuple[float, float]]:
    """Passes and elements per clock of a multiprocessor by kind."""
    costs, truth, gpu, found = PriorCosts(device(GPU)), measured(), device(GPU), defaultdict(lambda: defaultdict(list))
    clocks = (gpu.sm_count or 1) * gpu.boost_clock_hertz
    for case in cases():
        kind, name, dtype, rows, _ = case
        if kind != "operator" or rows != LARGE:
            continue
        calls = [call for call in calls_of(case) if not call.is_view]
        call = calls[0]
        if len(calls) != 1 or (kind_of(call) != WIDENED and any(part in call.name for part in OTHERS)):
            continue
        seconds = truth[kind, name, dtype, rows] - KERNEL_SECONDS
        one_pass = costs._from_memory(call) / (costs._bandwidth() * costs._share())
        elements = max(int(np.prod(spec.shape)) for spec in (*call.inputs, *call.outputs))
        found[kind_of(call)][dtype].append((seconds / one_pass, elements / seconds / clocks))
    figures = {}
    for kind, by_dtype in found.items():
        passes = median(each for each, _ in by_dtype["fp32"]) if by_dtype["fp32"] else 1.0
        of_halves = median(each for each, _ in by_dtype["bf16"]) if by_dtype["bf16"] else passes
        per_clock = median(each for _, each in by_dtype["bf16"]) if of_halves > NEGLIGIBLE * passes else 0.0
        if max(passes, of_halves) > NEGLIGIBLE:
            figures[kind] = (round(max(passes, 1.0), 3), round(per_clock, 4))
    return dict(sorted(figures.items()))


def convolution_coefficients() -> dict[str, float]:
    """Coefficients of dense convolutions on this card, pulled towards those of all GPUs."""
    costs, truth, rows = PriorCosts(device(GPU)), measured(), []
    for case in cases():
        kind, name, dtype, layout, _ = case
        if kind != "convolution" or half_of(name) != "fit":
            continue
        parts: dict[str, float] = defaultdict(float)
        for call in calls_of(case):
            if "convolution" in call.name:
                model = costs.convolutions(costs._convolution_dtype(call))
                for part, seconds in model.parts(call).items():
                    parts[part] += seconds
        if any(part.startswith("dense") for part in parts):
            rows.append((parts, truth[kind, name, dtype, layout]))
    usual: dict[str, Any] = table()["images"] | dict(
        zip(DENSE[:3], table()["dense_convolutions"]["unseen"], strict=True)
    )
    start = np.log([usual[name] for name in DENSE])

    def loss(logs: Any) -> float:
        now = usual | dict(zip(DENSE, np.exp(logs), strict=True))
        errors = np.array([np.log(sum(now[k] * v for k, v in parts.items()) / seconds) for parts, seconds in rows])
        return float(np.mean(np.sqrt(errors**2 + SHARP)) + PULL * np.mean((logs - start) ** 2))

    best = minimize(loss, start, method="Powell", options={"maxiter": 20_000, "maxfev": 20_000})
    return {name: round(float(value), 3) for name, value in zip(DENSE, np.exp(best.x), strict=True)}


def main() -> None:
    """Print the figures, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    fitted = {"memory_kernels": memory_figures(), "convolutions": {GPU: convolution_coefficients()}}
    print(json.dumps(fitted, indent=1))
    if options.write:
        document = json.loads(TARGET.read_text(encoding="utf-8"))
        document["memory_kernels"] = fitted["memory_kernels"]
        document["convolutions"] |= fitted["convolutions"]  # other cards have theirs
        TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
