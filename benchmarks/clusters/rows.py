"""Published runs of several GPUs, one for each configuration, and the half that each belongs to.

`distributed.csv.gz` has a line for each published value (its SOURCE.md says what the columns mean). Lines that differ
in the value alone are one run here, so that it is forecast once. A run is *seen*, to develop on, where the SHA-256 of
`SEED:group` is even; the other half is looked at through the final table only.

Not covered: lines of low confidence, which no number here is made of.
"""

import csv
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.units import GIB, TERA

SEED = "clusters-1"
"""Chosen before anything was forecast, and never changed."""
VALUE_COLUMNS = ("id", "metric", "metric_kind", "value", "source", "already_visible")
SCALES = (1, 9, 65, 513)
"""Least GPUs of each class of size: one machine, a few, many, and more than the goals speak of."""
NANOTRON_PEAK = 989e12
"""Dense bfloat16 of an H100 SXM, which nanotron's printed utilisation refers to."""


@dataclass(frozen=True)
class Value:
    """One published value."""

    id: str
    metric: str
    kind: str
    """Which memory, or how a time was taken."""
    number: float | None
    """None where the run did not fit."""


@dataclass(frozen=True)
class ClusterRun:
    """One configuration and what was published of it."""

    columns: Mapping[str, str]
    values: tuple[Value, ...]

    def __getitem__(self, column: str) -> str:
        """A column as text; empty where the source does not say."""
        return self.columns[column]

    def whole(self, column: str, default: int = 1) -> int:
        """A column as a whole number."""
        return int(float(self.columns[column])) if self.columns[column] else default

    @property
    def arguments(self) -> dict[str, Any]:
        """Remaining settings of the source."""
        return json.loads(self.columns["config_json"] or "{}")

    @property
    def name(self) -> str:
        """Short name: the first id of its values, and the model."""
        return f"{self.values[0].id} {self['model']}"

    @property
    def is_seen(self) -> bool:
        """Whether the run belongs to the half to develop on."""
        return is_seen(self["group"])

    @property
    def parallelism(self) -> str:
        """The most involved kind that the run uses."""
        for column, name in (("ep", "expert"), ("cp", "context"), ("pp", "pipeline"), ("tp", "tensor")):
            if self.whole(column) > 1:
                return name
        return "fsdp" if "FSDP" in self["sharding"] else "data"

    @property
    def scale(self) -> int:
        """Least GPUs of its class of size."""
        return max(least for least in SCALES if least <= max(1, self.whole("n_gpus")))

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step of the whole job; 0 where the source does not say."""
        return self.whole("global_batch", 0) * self.whole("seq_len", 0)


def is_seen(group: str) -> bool:
    """Whether a group belongs to the half to develop on."""
    return int(hashlib.sha256(f"{SEED}:{group}".encode()).hexdigest(), 16) % 2 == 0


def load_runs(folder: Path) -> list[ClusterRun]:
    """All runs of `distributed.csv.gz` in `folder`, in the order of the file."""
    with gzip.open(folder / "distributed.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return runs_of(csv.DictReader(file))


def runs_of(lines: Iterable[Mapping[str, str]]) -> list[ClusterRun]:
    """Lines of one configuration together; repeated measurements of one configuration by other versions apart."""
    runs: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        columns = {name: text for name, text in line.items() if name not in VALUE_COLUMNS}
        columns["notes"] = re.sub(r"; bytes \d+", "", columns["notes"])
        version = line["source"] if "golden_values" in line["source"] else ""
        key = (*columns.values(), version)
        run = runs.setdefault(key, {"columns": {**columns, "source": line["source"]}, "values": []})
        number = float(line["value"]) if line["value"] else None
        run["values"].append(Value(line["id"], line["metric"], line["metric_kind"], number))
    return [ClusterRun(run["columns"], tuple(run["values"])) for run in runs.values()]


def memory_values(run: ClusterRun) -> dict[str, float]:
    """Published bytes of one GPU by kind of memory; kinds are never pooled."""
    kinds = {value.kind: value for value in run.values if value.metric == "memory_gib" and value.number is not None}
    return {kind: (value.number or 0.0) * GIB for kind, value in kinds.items()}


def throughput(run: ClusterRun) -> float | None:
    """Published tokens per second of one GPU, or None where neither they nor a step time is stated.

    nanotron prints a utilisation: its FLOP of a token are 6 x parameters + 12 x layers x width x length, which gives
    the TFLOP/s that it prints beside tokens per second to 0.1 %.
    """
    numbers = {value.metric: value.number for value in run.values if value.number}
    gpus, tokens = run.whole("n_gpus", 0), run.tokens_per_step
    if rate := numbers.get("tokens_per_s_per_gpu"):
        return rate
    if (seconds := numbers.get("step_s")) and gpus and tokens:
        return tokens / seconds / gpus
    is_nanotron = run["family"].startswith("nanotron")
    flops = numbers.get("tflops_per_gpu", 0.0) * TERA if is_nanotron else 0.0
    if is_nanotron and (percent := numbers.get("mfu")):
        flops = percent / 100 * NANOTRON_PEAK
    return flops / nanotron_flops_per_token(run) if flops else None


def nanotron_flops_per_token(run: ClusterRun) -> float:
    """FLOP that nanotron counts for a token, forward and backward."""
    attention = 12 * run.whole("layers") * run.whole("hidden") * run.whole("seq_len")
    return 6 * float(run["params"]) + attention


def scale_names() -> dict[int, str]:
    """Class of size → text."""
    ends = [*(f"{following - 1}" for following in SCALES[1:]), ""]
    return {least: f"{least} to {end}" if end else f"{least} and more" for least, end in zip(SCALES, ends, strict=True)}
