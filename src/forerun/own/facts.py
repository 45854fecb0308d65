"""What must be known of a trained model to use it, beside its weights? Its task, written with the tokenizer.

`assets/` in a run's folder, and an exported model's folder, hold `task.json` (`TaskFacts`), `settings.json`, the
tokenizer's files, and of rows with several labels `thresholds.json`. Nothing in them needs the training data.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from forerun.errors import BadData
from forerun.own.whole_files import write_whole
from forerun.records import Record
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings

ASSETS, FACTS, SETTINGS_FILE = "assets", "task.json", "settings.json"
THRESHOLDS, GENERATION = "thresholds.json", "generation_config.json"
FACTS_SCHEMA = "forerun.task/1"


class TaskFacts(Record):
    """What a model of a generic workload answers, and in which form it wants to be asked."""

    schema_name: Literal["forerun.task/1"] = FACTS_SCHEMA
    workload: str
    format: str
    """What a row of the training data was (`data.format`, recognised)."""
    fields: dict[str, str] = {}
    """Column of each part of a row."""
    label_names: tuple[str, ...] = ()
    """Names of the labels, or tags, in the order of the model's outputs."""
    label_kind: Literal["none", "one", "several", "number"] = "none"
    """Whether a row has one label, any number of them, or a number."""
    label_levels: tuple[float, ...] = ()
    """`several`: the probability above which a row has each label, chosen on validation rows; none: one half."""
    label_mean: float = 0.0
    """`number`: an answer is this plus `label_scale` times the model's output."""
    label_scale: float = 1.0
    is_paired: bool = False
    """Whether a row has two texts."""
    sequence_length: int
    """Tokens to which inputs are cut."""
    pad_id: int
    end_ids: tuple[int, ...] = ()
    """Generation stops after one of these."""
    start_id: int | None = None
    """Id that a text begins with; of `seq2seq-lm` the one that the decoder begins with."""
    is_chat: bool = False
    """Whether rows went through the tokenizer's chat template; else they were texts."""
    asks: Literal["own", "quiet", "bare"] = "own"
    """What stands before an answer: the template's generation prompt, that with reasoning off, or that without what the
    template does not write before an answer."""


def write_assets(folder: Path, facts: TaskFacts, tokenizer: Any, settings: Settings) -> None:
    """Write facts, settings and tokenizer into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    write_whole(folder / FACTS, facts.model_dump_json(indent=2))
    write_whole(folder / SETTINGS_FILE, json.dumps(settings.model_dump(mode="json"), indent=2))


def write_generation(folder: Path, facts: TaskFacts) -> None:
    """Tell transformers' `generate` in the exported `folder` what texts begin with, end in, and are padded with."""
    path = folder / GENERATION
    if not path.exists() or not facts.end_ids:
        return
    own = json.loads(path.read_text(encoding="utf-8"))
    own |= {"eos_token_id": list(facts.end_ids), "pad_token_id": facts.pad_id}
    if facts.workload != "seq2seq-lm" and facts.start_id is not None:
        own["bos_token_id"] = facts.start_id
    path.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")


def how_to_read(facts: TaskFacts) -> str:
    """What somebody must know who reads the outputs of the exported files without Forerun; empty where nothing."""
    if facts.label_kind == "number":
        return (
            f"The model's output counts standard deviations from the mean: the number is {facts.label_mean:.6g} + "
            f"{facts.label_scale:.6g} × output. `forerun predict` and `forerun serve` say the number itself."
        )
    if facts.label_kind == "several" and facts.label_levels:
        return f"A label applies above its own probability, which is in {THRESHOLDS}, not above one half."
    return ""


def read_assets(folder: Path) -> tuple[TaskFacts, Settings]:
    """Facts and settings out of `folder`.

    Raises:
        BadData: they are not there, or of another version.
    """
    try:
        facts = TaskFacts.model_validate_json((folder / FACTS).read_text(encoding="utf-8"))
        if (folder / THRESHOLDS).exists():
            levels = json.loads((folder / THRESHOLDS).read_text(encoding="utf-8"))
            facts = facts.model_copy(update={"label_levels": tuple(float(levels[name]) for name in facts.label_names)})
        return facts, settings_from(json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValidationError, ValueError, LookupError, TypeError) as error:
        raise BadData(
            f"{folder}: the task of a model trained on own data is in {FACTS} and {SETTINGS_FILE}; "
            f"{str(error).splitlines()[0]}. Name a run that forerun run made of data.source, or its export."
        ) from error
