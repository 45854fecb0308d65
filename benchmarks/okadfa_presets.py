"""Needs of the original's four A100 commands: memory, time, passes over the data, on both A100s.

    python -m benchmarks.okadfa_presets [favor|softmax]       prints a table and one JSON line

No GPU, weights or data are used. For each preset, as commanded and with the documented feed-forward: whether the
commanded micro-batch fits and, where it does not, the largest that does at the same global batch. `favor` and
`dfa-macro` unless said otherwise. Method version 1.
"""

import json
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from forerun.api import forecast_settings
from forerun.hardware.catalogue import Device, device
from forerun.recipes.okadfa.model.kernel_decoder import SHAPES
from forerun.recipes.okadfa.presets import PRESETS, over_training, passes, preset_settings
from forerun.units import GIB, MINUTE

GPUS = ("a100-40gb", "a100-80gb")
CORPUS = "wikitext-2-raw-v1"


def sizes(name: str) -> Iterator[int]:
    """The commanded micro-batch, then its divisors of the global batch, falling."""
    preset = PRESETS[name]
    whole = preset.micro_batch_size * preset.gradient_accumulation_steps
    yield from (size for size in range(preset.micro_batch_size, 0, -1) if whole % size == 0)


def row(name: str, gpu: Device, attention: str, *, documented: bool) -> dict[str, object]:
    """The first micro-batch that fits, and what the run needs with it."""
    commanded = PRESETS[name].micro_batch_size
    for size in sizes(name):
        settings = preset_settings(name, gpu, documented=documented, micro_batch_size=size)
        settings = settings.model_copy(update={"recipe": {**settings.recipe, "attention": attention}})
        forecast = forecast_settings(settings, gpu)
        if size == commanded:
            commanded_gib = forecast.memory.device_bytes.expected / GIB
        if forecast.fits:
            break
    shape = SHAPES[settings.model.name]
    return {
        "preset": name + (" documented" if documented else ""), "parameters_millions": shape.config.parameters / 10**6,
        "gpu": gpu.name, "commanded": commanded, "commanded_gib": commanded_gib,
        "fits_at": size if forecast.fits else None,
        "device_gib": forecast.memory.device_bytes.expected / GIB, "step_ms": forecast.step.seconds.expected * 1000,
        "mfu": forecast.step.mfu, "updates": PRESETS[name].updates,
        "run_minutes": forecast.run.seconds.expected / MINUTE, "promised_minutes": PRESETS[name].minutes,
        "passes": passes(name, CORPUS), "warning": over_training(name, CORPUS, documented),
    }  # fmt: skip


def main() -> None:
    """Print the table and the JSON line."""
    attention = sys.argv[1] if len(sys.argv) > 1 else "favor"
    table = Table(
        "preset", "M", "GPU", "commanded micro-batch", "fits at", "GiB", "step ms", "MFU", "run", "promised", "passes"
    )
    rows = []
    for name in PRESETS:
        for documented in (False, True) if name != "fast" else (False,):
            for gpu in GPUS:
                figures = row(name, device(gpu), attention, documented=documented)
                rows.append(figures)
                table.add_row(
                    str(figures["preset"]), f"{figures['parameters_millions']:.1f}", gpu,
                    f"{figures['commanded']}: {figures['commanded_gib']:.1f} GiB", str(figures["fits_at"]),
                    f"{figures['device_gib']:.1f}", f"{figures['step_ms']:.0f}", f"{figures['mfu']:.0%}",
                    f"{figures['run_minutes']:.0f} min", f"{figures['promised_minutes']:.0f} min",
                    f"{figures['passes']:.0f}",
                )  # fmt: skip
                print(json.dumps(figures), file=sys.stderr, flush=True)
    Console(width=140).print(table)
    print(json.dumps({"benchmark": "okadfa-presets", "version": 1, "attention": attention, "rows": rows}))


if __name__ == "__main__":
    main()
