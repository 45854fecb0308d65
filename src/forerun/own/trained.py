"""The model of a finished run, or of its export, ready to use without its training data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from forerun.errors import BadData
from forerun.infer.export import DESCRIPTION, load_exported
from forerun.own.facts import ASSETS, FACTS, TaskFacts, read_assets
from forerun.own.workloads import workload_of_facts
from forerun.settings.schema import ParallelSettings, Settings
from forerun.step.build import build_step
from forerun.train.best import load_judged_weights
from forerun.train.loop import seed_everything


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with what is needed to ask it."""

    settings: Settings
    facts: TaskFacts
    tokenizer: Any
    model: nn.Module
    """In evaluation mode, on the CPU."""


def open_trained(folder: Path) -> TrainedModel:
    """The best model of the run in `folder`, or the exported model there.

    Raises:
        BadData: it is neither, or a file is damaged.
        InvalidSettings: the run has no checkpoint.
    """
    from transformers import AutoTokenizer

    is_export = (folder / DESCRIPTION).exists() and (folder / FACTS).exists()
    assets = folder if is_export else folder / ASSETS
    facts, settings = read_assets(assets)
    tokenizer = AutoTokenizer.from_pretrained(assets, local_files_only=True, trust_remote_code=False)
    workload = workload_of_facts(facts, tokenizer)
    if is_export:
        settings, model = load_exported(folder, workload)
        return TrainedModel(settings, facts, tokenizer, model.eval())
    alone = _on_one_device(settings)
    seed_everything(settings.seed)  # a base without pretrained weights is that of its seed
    has_base = settings.adapter.kind != "none" or bool(settings.model.freeze)
    step = build_step(alone, workload, "cpu", pretrained=has_base)
    if not load_judged_weights(folder / "checkpoints", step):
        raise BadData(f"{folder}: a finished run has a checkpoint; found none in {folder / 'checkpoints'}. Resume it.")
    return TrainedModel(settings, facts, tokenizer, step.model.eval())


def _on_one_device(settings: Settings) -> Settings:
    """The same training for one process: micro-batches of all ranks come one after the other."""
    batch = settings.batch.model_copy(update={"gradient_accumulation_steps": settings.micro_batches_per_step})
    return settings.model_copy(update={"parallel": ParallelSettings(), "batch": batch})
