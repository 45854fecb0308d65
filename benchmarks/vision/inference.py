"""Forward passes of image models against timm's published ones, on cards that no image model was fitted to.

    python -m benchmarks.vision.inference --data FOLDER [--test] [--most N] [--rows FILE]

Rows are timm's tables of inference (fp16 autocast, PyTorch 2.4 and 2.9, `FILES`), of models that stand in all of them.
Families are halved as those of training steps are (`split.py`); the default is the half that may be looked at, and of
the other one sums alone are printed. The tables stay outside the repository. One trace serves all cards with the same
batch; 4 s each. The last line is one JSON object.
"""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.split import in_test_half
from benchmarks.vision.tracing import kept_trace, kind_of
from torch import nn

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.errors import ForerunError
from forerun.forecasting.any_step import trace_program
from forerun.hardware.catalogue import device
from forerun.models.library_import import import_library
from forerun.trace import Trace

FILES = {
    ("rtx-3090", "nhwc"): "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv",
    ("rtx-3090", "nchw"): "benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv",
    ("rtx-4090", "nhwc"): "benchmark-infer-amp-nhwc-pt240-cu124-rtx4090.csv",
    ("rtx-4090", "nchw"): "benchmark-infer-amp-nchw-pt291-cu128-4090.csv",
    ("rtx-5090", "nchw"): "benchmark-infer-amp-nchw-pt291-cu130-5090.csv",
    ("rtx-pro-6000-max-q", "nchw"): "benchmark-infer-amp-nchw-pt291-cu130-pro6000maxq.csv",
}

LARGEST = 288
"""Pixels; larger images only take longer to trace."""


@dataclass(frozen=True)
class InferenceRow:
    """One measured forward pass."""

    gpu: str
    layout: str
    model: str
    micro_batch_size: int
    image_size: int
    seconds: float


@dataclass(frozen=True)
class Compared:
    """A row and its forecast."""

    row: InferenceRow
    kind: str
    seconds: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.seconds / self.row.seconds - 1


def load(folder: Path) -> dict[str, list[InferenceRow]]:
    """Rows by model, of models that stand in all tables with images up to `LARGEST`."""
    rows: dict[str, list[InferenceRow]] = {}
    for (gpu, layout), name in FILES.items():
        with (folder / name).open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                row = InferenceRow(gpu, layout, line["model"], int(line["infer_batch_size"]),
                                   int(line["infer_img_size"]), float(line["infer_step_time"]) / 1e3)  # fmt: skip
                rows.setdefault(row.model, []).append(row)
    return {
        model: some
        for model, some in rows.items()
        if len(some) == len(FILES) and max(row.image_size for row in some) <= LARGEST
    }


def chosen(folder: Path, most: int, *, is_test: bool) -> dict[str, list[InferenceRow]]:
    """Rows of so many models of one half at most, by an order that a hash fixes."""
    models = {model: some for model, some in load(folder).items() if family(model)}
    models = {model: some for model, some in models.items() if in_test_half(family(model)) == is_test}
    names = sorted(models, key=lambda model: hashlib.sha256(model.encode()).hexdigest())[:most]
    return {name: models[name] for name in names}


def family(model: str) -> str:
    """Module of timm that defines it; empty where this timm has none of that name."""
    timm = import_library("timm")
    return timm.models.model_entrypoint(model).__module__.rpartition(".")[2] if timm.is_model(model) else ""


def trace_of_forward(row: InferenceRow) -> Trace:
    """The forward pass of a row."""
    timm = import_library("timm")

    def build() -> tuple[nn.Module, Callable[[], object]]:
        timm.layers.set_fused_attn(True)  # a process that traced steps as of PyTorch 1.12 has turned it off
        layout = torch.channels_last if row.layout == "nhwc" else torch.contiguous_format
        config = timm.get_pretrained_cfg(row.model)
        is_other = bool(config and config.fixed_input_size and config.input_size[-1] != row.image_size)
        model = timm.create_model(row.model, **({"img_size": row.image_size} if is_other else {}))
        model = model.eval().to(memory_format=layout)
        images = torch.randn(row.micro_batch_size, 3, row.image_size, row.image_size).contiguous(memory_format=layout)
        kind = images.device.type

        def step() -> None:
            with torch.no_grad(), torch.autocast(kind, dtype=torch.float16):
                model(images)

        return model, step

    name = f"forward-{row.model}-{row.layout}-{row.micro_batch_size}-{row.image_size}"
    return kept_trace(name, lambda: trace_program(build, device(row.gpu)))


def compare(rows: Iterable[InferenceRow]) -> list[Compared]:
    """Forecasts of one model's rows."""
    traces: dict[tuple[str, int, int], Trace] = {}
    compared = []
    for row in rows:
        key = row.layout, row.micro_batch_size, row.image_size
        if key not in traces:
            traces[key] = trace_of_forward(row)
        seconds = replay_clock(traces[key], PriorCosts(device(row.gpu))).seconds
        compared.append(Compared(row, kind_of(traces[key]), seconds))
    return compared


def summary(some: list[Compared]) -> dict[str, float]:
    """Errors in aggregate."""
    errors = np.array([each.error for each in some])
    return {
        "rows": len(some),
        "median": round(float(np.median(np.abs(errors))), 3),
        "p90": round(float(np.quantile(np.abs(errors), 0.9)), 3),
        "bias": round(float(np.median(errors)), 3),
    }


def main() -> None:
    """Forecast one half and print errors by card, layout and kind of network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision.inference")
    parser.add_argument("--data", type=Path, required=True, help="folder with timm's tables")
    parser.add_argument("--test", action="store_true", help="the half that is never looked at, in sums")
    parser.add_argument("--most", type=int, default=40, help="models at most, by a fixed order")
    parser.add_argument("--rows", type=Path, help="write the rows of the fitted half here")
    options = parser.parse_args()
    compared: list[Compared] = []
    for model, rows in chosen(options.data, options.most, is_test=options.test).items():
        try:
            compared += compare(rows)
        except (ForerunError, ZeroDivisionError, RuntimeError, TypeError) as error:
            print(f"not forecast: {model}: {str(error)[:200]}", file=sys.stderr)
    result = {}
    for gpu, layout in FILES:
        of_card = [each for each in compared if (each.row.gpu, each.row.layout) == (gpu, layout)]
        for kind in ("convolutions", "depthwise", "transformer", "mixed", "all"):
            some = [each for each in of_card if kind in (each.kind, "all")]
            if some:
                n = result[f"{gpu} {layout} {kind}"] = summary(some)
                print(f"{gpu:20} {layout} {kind:13} {n['rows']:4} {n['median']:8.1%} {n['p90']:8.1%} {n['bias']:8.1%}")
    if options.rows and not options.test:
        lines = [f"{c.row.gpu},{c.row.layout},{c.row.model},{c.kind},{c.row.micro_batch_size},{c.row.image_size},"
                 f"{c.row.seconds:.5f},{c.seconds:.5f},{c.error:.3f}" for c in compared]  # fmt: skip
        options.rows.write_text("\n".join(lines) + "\n")
    print(json.dumps({"benchmark": "vision_inference", "half": "test" if options.test else "fit", **result}))


if __name__ == "__main__":
    main()
