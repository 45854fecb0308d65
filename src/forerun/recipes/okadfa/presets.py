"""The four runs that the public original of okadfa prints commands for, as settings that mean what they say.

    python -m forerun.recipes.okadfa.presets mega a100-80gb > mega.yaml        then: forerun forecast mega.yaml --gpu …
    python -m benchmarks.okadfa_presets                                        all of them on both A100s

Its `--max_steps` counts micro-steps; here `max_steps` counts updates. Its feed-forward is 3,072 wide in every command;
`documented` takes the 4d of its documents. Precision follows the GPU: bf16 where the hardware has it, else fp16.
"""

import math
import sys
from dataclasses import dataclass

import yaml

from forerun.data.language_text import KNOWN_TOKENS
from forerun.data.language_windows import USEFUL_PASSES
from forerun.errors import InvalidSettings, nearest
from forerun.hardware.catalogue import Device, device
from forerun.recipes.okadfa.model.kernel_decoder import SHAPES
from forerun.recipes.okadfa.recipe import SETTINGS
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings

CONTEXT = 512
WARMUP_SHARE = 0.05
"""Warm-up as a share of the updates. The original warms up for 500 updates, 10 to 17 % of its runs."""
WIKITEXT = "Salesforce/wikitext"


@dataclass(frozen=True)
class Preset:
    """One run that the original prints a command for."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    micro_steps: int
    """The command's `--max_steps`."""
    minutes: float
    """Running time that the original promises, in minutes."""

    @property
    def updates(self) -> int:
        """Number of optimizer updates."""
        return self.micro_steps // self.gradient_accumulation_steps

    @property
    def tokens(self) -> int:
        """Tokens of training, repetitions counted."""
        return self.micro_steps * self.micro_batch_size * CONTEXT


PRESETS = {
    "fast": Preset(32, 1, 3_000, 45),
    "production": Preset(20, 2, 10_000, 180),
    "max": Preset(16, 4, 20_000, 480),
    "mega": Preset(8, 8, 30_000, 720),
}


def preset_settings(
    name: str, on: Device, *, documented: bool = False, corpus: str = "wikitext-2-raw-v1", micro_batch_size: int = 0
) -> Settings:
    """Settings of a preset for a GPU; another `micro_batch_size` keeps the global batch.

    Raises:
        InvalidSettings: no such preset or corpus, or the micro-batch does not divide the global batch.
    """
    if name not in PRESETS or corpus not in KNOWN_TOKENS:
        unknown, choices = (name, list(PRESETS)) if name not in PRESETS else (corpus, list(KNOWN_TOKENS))
        raise InvalidSettings(f"No preset or corpus {unknown!r}. Nearest: {nearest(unknown, choices)}.")
    preset = PRESETS[name]
    whole, size = preset.micro_batch_size * preset.gradient_accumulation_steps, micro_batch_size
    size = size or preset.micro_batch_size
    if whole % size:
        raise InvalidSettings(f"batch.micro_batch_size: divides the global batch of {name}, {whole}; found {size}.")
    shape = f"okadfa-{name}" + ("-4x" if documented and name != "fast" else "")
    content = SETTINGS.model_dump() | {
        "name": shape,
        "model": {"name": shape},
        "precision": "bf16-mixed" if on.has_bf16 else "fp16-mixed",
        "optimizer": SETTINGS.optimizer.model_dump() | {"learning_rate": 3e-4},
        "batch": {
            "micro_batch_size": size, "gradient_accumulation_steps": whole // size, "sequence_length": CONTEXT,
        },
        "data": {"source": f"{WIKITEXT}:{corpus}"},
        "schedule": {
            "epochs": math.ceil(passes(name, corpus)) + 1, "max_steps": preset.updates, "decay": "cosine",
            "warmup_steps": round(WARMUP_SHARE * preset.updates),
        },
        "evaluation": {"every_epochs": 1, "examples": 256},
        "checkpoints": {"every_steps": 1000, "keep_last": 2},
    }  # fmt: skip
    return settings_from(content)


def passes(name: str, corpus: str) -> float:
    """How often a preset sees each token of a corpus."""
    return PRESETS[name].tokens / KNOWN_TOKENS[corpus]


def over_training(name: str, corpus: str, documented: bool = False) -> str:
    """Faults of the amount of data, in words; empty where there are none."""
    shape = SHAPES[f"okadfa-{name}" + ("-4x" if documented and name != "fast" else "")].config
    unique, problems = KNOWN_TOKENS[corpus], []
    if passes(name, corpus) > USEFUL_PASSES:
        problems.append(f"{passes(name, corpus):.0f} passes over {unique / 10**6:.1f}M tokens")
    if unique < shape.parameters:
        problems.append(f"{unique / shape.parameters:.3f} tokens a parameter: it will learn them by heart")
    return ", ".join(problems)


def main() -> None:
    """Print a preset's settings as YAML: PRESET GPU [documented]."""
    name, gpu, *rest = sys.argv[1:]
    settings = preset_settings(name, device(gpu), documented="documented" in rest)
    print(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True), sort_keys=False), end="")


if __name__ == "__main__":
    main()
