"""What does an exported adapter lie on? The name in `adapter_config.json` by which peft loads its base.

A folder is named by its whole path, a model of the hub by its id and revision, weights of a package by the folder that
they are in. A base that no name leads to (random weights of a seed, weights inside a GGUF file) is written beside the
adapter, into `base/`. A head for other labels than the base's is in the adapter; whoever loads it says how many there
are, as always with peft (`report/model_card.py` writes the lines).
"""

import json
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from forerun.models.first_weights import first_weights
from forerun.models.hub_refusals import pinned
from forerun.models.smollm2 import is_smollm2
from forerun.settings.schema import Settings
from forerun.step.precision import policy_of
from forerun.step.workload import Workload
from forerun.train.loop import seed_everything

BASE, ADAPTER_CONFIG = "base", "adapter_config.json"


def name_base(folder: Path, settings: Settings, workload: Workload, to: Path) -> None:
    """Write into the adapter's `folder`, which will be at `to`, what its base is, and a base that nothing else has."""
    name, revision = named_base(settings)
    if name is None:
        base = _first_model(settings, workload)
        if not isinstance(base, PreTrainedModel):
            return  # no library but this one builds it
        base.config.use_cache = True  # off while training
        base.save_pretrained(folder / BASE)
        name = str(to.resolve() / BASE)
    path = folder / ADAPTER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": name, "revision": revision}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def named_base(settings: Settings) -> tuple[str | None, str | None]:
    """Path or hub id of the weights that training began with, and the revision; no name where transformers has none."""
    source = None if is_smollm2(settings.model.name) else first_weights(settings)
    if source is None:
        return None, None
    return (str(Path(source).resolve()), None) if Path(source).is_dir() else pinned(source)


def _first_model(settings: Settings, workload: Workload) -> nn.Module:
    """The model before its adapter and its training; random weights are those of the run's seed."""
    seed_everything(settings.seed)
    return workload.build_model(settings, pretrained=True).to(policy_of(settings).parameter_dtype)
