"""What is asked of Forerun about a run: by a settings file, by torchtitan as it is, or by Megatron-Core's own layers.

A run gets a `Question`, or a `Refusal` with the reason, which is counted. Where the question differs from the run in
something that the source used, `differs` says in what; such runs are scored apart.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clusters.rows import ClusterRun

GPUS = {
    "A100-80GB": "a100-80gb", "A100-SXM (DGX A100)": "a100-80gb", "H100": "h100-80gb", "H100-SXM-80GB": "h100-80gb",
    "H100-SXM-80GB (DGX H100)": "h100-80gb", "NVIDIA H100-SXM5-80GB": "h100-80gb", "NVIDIA H100-SXM-80GB": "h100-80gb",
    "NVIDIA H100 80GB HBM3": "h100-80gb", "NVIDIA H100-PCIe-80GB": "h100-pcie",
    "H100 (partition hopper-prod)": "h100-80gb",
    "H100-SXM-96GB HBM2e (Grand Teton, 500 W, 2.4 TB/s)": "h100-96gb-hbm2e",
    "H100-SXM-95GB (lower TDP, HBM2e)": "h100-96gb-hbm2e",
    "NVIDIA H200-SXM5-141GB": "h200", "H200-SXM-141GB": "h200", "H200 (a3-ultragpu-8g)": "h200",
    "B200": "b200", "B200 (power limited)": "b200", "B200 (a4-highgpu-8g)": "b200",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200", "NVIDIA L40S": "l40s", "NVIDIA L4": "l4",
    "NVIDIA A100 - PCIe - 80 GB": "a100-80gb-pcie", "NVIDIA GeForce RTX 4090": "rtx-4090", "GB200": "gb200",
    "NVIDIA Blackwell GPU (GB200)": "gb200", "GB300": "gb300", "NVIDIA Blackwell Ultra GPU (GB300)": "gb300",
    "B300": "b300", "MI300X": "mi300x", "MI300X-192GB": "mi300x", "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI325X 256GB HBM3E": "mi325x", "AMD Instinct MI325X 256GB HBM3e": "mi325x",
    "AMD Instinct MI325X 256GB HBM3E DLC": "mi325x", "AMD Instinct MI350X": "mi350x",
    "AMD Instinct MI355X": "mi355x", "MI355X": "mi355x",
    "NVIDIA L40": "l40", "NVIDIA A30": "a30",
}  # fmt: skip
"""Names of the sources and of our catalogue. An L40 is no L40S, a GB200 no B200."""
NETWORKS = {"NVLink in node; backend RDMA 400 Gb/s per GPU": "roce-400g"}


@dataclass(frozen=True)
class Question:
    """One forecast to make."""

    adapter: str
    gpu: str
    content: dict[str, Any]
    """Settings, or what a program is started with."""
    differs: tuple[str, ...] = field(default=())
    asks_time: bool = True
    asks_memory: bool = True

    @property
    def key(self) -> str:
        """Name under which the answer is kept: it changes with what is asked, not with what was published."""
        text = json.dumps([self.adapter, self.gpu, self.content], sort_keys=True)
        return f"{self.adapter}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Refusal:
    """Why a run is not asked."""

    reason: str


def refusal_of(run: ClusterRun) -> Refusal | None:
    """What no adapter can ask."""
    if run["confidence"] == "low":
        return Refusal("low confidence: no goal")
    metrics = {value.metric for value in run.values}
    if metrics <= {"time_to_train_s"}:
        return Refusal("time to train: how many steps converge is not forecast")
    if all(value.number is None for value in run.values):
        return Refusal("did not fit: no value")
    if run["gpu"] not in GPUS:
        return Refusal(f"GPU not in the catalogue: {run['gpu']}")
    return None


def gpu_of(run: ClusterRun) -> str:
    """Catalogue name."""
    return GPUS[run["gpu"]]


def checkpointing_of(run: ClusterRun) -> str | None:
    """`none`, `full`, `op` (keeps products and attention), `layer` (every second one), or None for anything else."""
    text = run["activation_checkpointing"]
    if text in ("", "none") or text.startswith("none"):
        return "none"
    if text == "full":
        return "full"
    if text.startswith(("selective (op)", "selective op")):
        return "op"
    return "layer" if text == "selective layer" else None


def layout_text(run: ClusterRun) -> str:
    """Sizes of the layout, such as `dp8 tp8 pp8 cp1`."""
    return " ".join(f"{name}{run.whole(name)}" for name in ("dp", "tp", "pp", "cp", "ep"))
