"""Write rows of families that no package describes whole: `python -m benchmarks.family_index LLMFIT_PROGRAM KERAS_HUB`.

Input: `families.toml` beside this file, the program in the wheel of llmfit 1.1.17 (`hub_facts.py`) and the folder
`models` of keras-hub 0.32.0 (`media_index.py`). Output: `architectures/families.toml`. A row is written only where the
model that its fields build has the count that is stated for it; ids of one count and type become ids of a row.
"""

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks import hub_facts
from benchmarks.hub_index import row_text
from benchmarks.media_index import keras_counts
from benchmarks.other_rows import other_rows
from torch import nn

import forerun.models
from forerun.models.build import build_model
from forerun.models.catalogue import text_part
from forerun.models.rows import Architecture

CANDIDATES = Path(__file__).with_name("families.toml")
TARGET = Path(forerun.models.__file__ or "").parent / "architectures" / "families.toml"
HEADER = """\
# Families that other sources leave out, by `python -m benchmarks.family_index`; as hub.toml. Facts only; counts
# by building each, equal to those of the files, of keras-hub 0.32.0 (Apache-2.0) or within 2 % of a paper's.
# `parameters` are of what a workload builds: of a causal language model that sees the text alone, where transformers
# has a class for it.
"""
SLACK = 0.02
"""By which a count may miss what a paper or card prints."""
READ = "2026-11-28"
FACTS = f"llmfit 1.1.17 (MIT; facts of the hub's API, read {READ})"
CONFIRMED = "sizes as published, confirmed by their count alone: by building"
KERAS = f"keras-hub 0.32.0 (Apache-2.0; read {READ})"


class Stated:
    """Counts that others state, by id and by preset."""

    def __init__(self, program: Path, keras: Path) -> None:
        hub_facts.NOT_THE_WEIGHTS = ("gguf", "awq", "gptq")  # type: ignore[misc]  # packed copies of other names stay
        rows = hub_facts.read_facts(program)
        self.facts = {row["name"].lower(): row for row in rows}
        self.presets = keras_counts(keras)

    def of(self, model: Mapping[str, Any]) -> tuple[float, str]:
        """Count and source of a candidate."""
        beside = f", {model['why']}" if "why" in model else ""
        if "facts" in model:
            is_rough = model.get("within", 0) >= 1e-3
            met = f"near the rounded one in {FACTS}" if is_rough else f"equal to the files' in {FACTS}{beside}"
            return self.facts[model["facts"].lower()]["parameters_raw"], f"{CONFIRMED}, {met}"
        if "keras" in model:
            (count,) = self.presets[model["keras"]]
            return count, f"{CONFIRMED}, equal to {KERAS}{beside}"
        return model["stated"], f"{model['source']}; count by building; read {model.get('read', READ)}"


def fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration fields of a candidate, with its list of kinds of layers."""
    fields = dict(model["config"])
    if "layers" in model:
        first, second = model["layers"]["kinds"]
        places = model["layers"]["places"]
        kinds = [second if index in places else first for index in range(model["layers"]["depth"])]
        if "text_config" in fields:
            fields["text_config"] = {**fields["text_config"], "layer_types": kinds}
        else:
            fields[model["layers"].get("field", "layer_types")] = kinds
    return fields


def counts(model: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters of what a workload builds, and of the whole, with what sees."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING as WHOLE

    config: Any = AutoConfig.for_model(model["kind"], **fields, **dict.fromkeys(model.get("nulls", ())))
    with torch.device("meta"):
        factory: Any = WHOLE.get(type(config), None)
        whole = None if factory is None else factory._from_config(config)
        built = build_model(text_part(config), model["workload"])
    return _count(built), _count(built if whole is None else whole)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def row_of(model: Mapping[str, Any], stated: Stated) -> Architecture | None:
    """The row of a candidate; None, and said, where it misses the count."""
    fields = fields_of(model)
    built, whole = counts(model, fields)
    wanted, source = stated.of(model)
    miss = whole + model.get("beside", 0) - wanted
    if abs(miss) > model.get("within", SLACK if "stated" in model else 0) * wanted:
        print(f"{model['ids'][0]}: {whole:,} built, {wanted:,.0f} stated, {miss:,.0f} too many")
        return None
    return Architecture(
        name=model.get("name", model["ids"][0].partition("/")[2]), aliases=tuple(model["ids"]),
        family=model.get("family", model["kind"].replace("_", "-")), model_type=model["kind"], config=fields,
        nulls=tuple(model.get("nulls", ())), parameters=built, parameters_of=model["workload"], source=source,
        licence="see its page",
    )  # fmt: skip


def ids_text(entry: Mapping[str, Any], stated: Stated) -> str:
    """Further ids of a row of another file; refused where the files of one have not the count of those of `of`."""
    wanted = stated.facts[entry["of"].lower()]["parameters_raw"] if entry["of"] else 0
    for identity in entry["ids"]:
        if wanted and stated.facts.get(identity, {"parameters_raw": wanted})["parameters_raw"] != wanted:
            sys.exit(f"{identity}: its files have not the {wanted:,} elements of {entry['of']}")
    return f'\n[[more_ids]]\nname = "{entry["name"]}"\naliases = {json.dumps(entry["ids"])}\n'


def main() -> None:
    """Write the file anew; what was left out is printed."""
    stated = Stated(*(Path(path) for path in sys.argv[1:3]))
    content = tomllib.loads(CANDIDATES.read_text(encoding="utf-8"))
    _, taken = other_rows(TARGET)
    rows = [row for model in content["model"] if (row := row_of(model, stated)) is not None]
    own = Counter(name for row in rows for name in {row.name, *row.aliases})
    twice = [name for name, times in own.items() if name in taken or times > 1]
    if twice:
        sys.exit(f"Names that other rows have: {', '.join(twice)}")
    text = "".join(row_text(row) for row in rows) + "".join(ids_text(entry, stated) for entry in content["ids"])
    TARGET.write_text(HEADER + text, encoding="utf-8")
    print(f"{len(rows)} rows, {sum(len(row.hub_ids) for row in rows)} ids")


if __name__ == "__main__":
    main()
