"""How does a plan over several machines become a job? One `torchrun` on each machine, started by what runs there.

Slurm, SkyPilot, Kubernetes (an indexed Job, a JobSet, Kubeflow's PyTorchJob), or the bare line. Each job trains with
the written settings file; machines share a folder, in which the run's id is kept for processes that start again.
"""

import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from forerun.errors import InvalidSettings
from forerun.plan.launchers import NOTE, skypilot_name, slurm_restarts
from forerun.plan.other_tools import megatron_arguments, torchtitan_settings
from forerun.plan.outcome import RunPlan
from forerun.plan.settings_file import file_name
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_seconds

PORT = 29500
"""Of the rendezvous; torchrun's own default (docs.pytorch.org/docs/stable/elastic/run.html, read 2026-11-23)."""
RESTARTS = 3
IMAGE = "forerun"
"""What `docker build -t forerun .` of this repository makes; a cluster wants it with its registry."""
SHARED = "/shared"


def cluster_script(plan: RunPlan, kind: str, settings_file: Path) -> str:
    """The text of the job; `settings_file` is named in it as it is.

    Raises:
        InvalidSettings: no such kind, a GPU or model that has no name there.
    """
    require_kind(kind)
    assert plan.settings is not None, "only a plan that fits becomes a job"
    settings = settings_from(plan.settings)
    if kind == "torchtitan":
        return _commented(plan, settings) + torchtitan_settings(settings)
    if kind == "megatron":
        return _commented(plan, settings) + megatron_arguments(settings)
    return _commented(plan, settings, data=True, shebang=kind == "slurm") + LAUNCHERS[kind](
        plan, settings, settings_file
    )  # fmt: skip


def require_kind(kind: str) -> None:
    """Refuse an unknown kind of job before anything is planned.

    Raises:
        InvalidSettings: naming the known ones.
    """
    if kind not in CLUSTER_KINDS:
        raise InvalidSettings(f"--script with --gpus: one of {', '.join(CLUSTER_KINDS)}; found {kind!r}.")


def machines_of(settings: Settings) -> tuple[int, int]:
    """Machines, and GPUs of each."""
    world, near = settings.parallel.world_size, settings.cluster.gpus_per_node
    return math.ceil(world / near), min(world, near)


def _commented(plan: RunPlan, settings: Settings, *, data: bool = False, shebang: bool = False) -> str:
    assert plan.forecast is not None, "only a plan that fits becomes a job"
    run, memory = plan.forecast.run, plan.forecast.memory
    cost = "" if run.cost is None else f", ${run.cost:,.2f}"
    lines = ["#!/bin/bash"] if shebang else []
    lines += [
        f"# {plan.name} on {plan.forecast.world_size} x {plan.gpu}: {format_seconds(run.seconds.optimistic)} to "
        f"{format_seconds(run.seconds.conservative)}{cost},",
        f"# {format_bytes(memory.device_bytes.conservative)} of {format_bytes(memory.capacity_bytes)} at most "
        f"(forecast).",
    ]
    if data and settings.data.source is None and settings.workload in ("causal-lm", "masked-lm"):
        lines.append("# The settings name no data: set data.source in the file before this can train.")
    return "\n".join(lines) + "\n"


def _torchrun(settings: Settings, settings_file: Path | str, head: str, *more: str) -> str:
    """The command of one machine; `head` is where all of them meet, as the shell says it."""
    machines, near = machines_of(settings)
    words = [
        "torchrun", f"--nnodes={machines}", f"--nproc-per-node={near}", "--rdzv-backend=c10d",
        f"--rdzv-id={shlex.quote(file_name(settings.name))}", f'--rdzv-endpoint="{head}:{PORT}"',
        f"--max-restarts={RESTARTS}", *more, "-m forerun train", shlex.quote(str(settings_file)),
    ]  # fmt: skip
    return " ".join(words)


def _bare(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    return "\n".join([
        "# On each machine, with HEAD set to the name of the first and the same folder on all of them:",
        f'export {NOTE}="$PWD/{file_name(plan.name)}.run"',
        _torchrun(settings, settings_file, "$HEAD"),
        "",
    ])  # fmt: skip


def _slurm(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    assert plan.forecast is not None, "checked"
    machines, near = machines_of(settings)
    return "\n".join([
        f"#SBATCH --job-name={shlex.quote(file_name(plan.name))}",
        f"#SBATCH --nodes={machines}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={near}",
        "#SBATCH --exclusive",
        *slurm_restarts(plan),
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"srun {_torchrun(settings, settings_file, '$head')}",
        "",
    ])  # fmt: skip


def _skypilot(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    machines, near = machines_of(settings)
    accelerators = f"{skypilot_name(plan, settings_file)}:{near}"
    is_spot = settings.reliability.spot.interruptions_per_hour > 0
    task = {
        "name": _dns_name(plan.name),
        "num_nodes": machines,
        "workdir": ".",
        "resources": {"accelerators": accelerators, **({"use_spot": True} if is_spot else {})},
        "setup": "python3 -m venv .venv && .venv/bin/pip install .\n",
        "run": "\n".join([
            "source .venv/bin/activate",
            'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
            _torchrun(settings, settings_file, "$head"),
            "",
        ]),
    }  # fmt: skip
    note = "# Checkpoints go to runs/ on each machine: mount a bucket there (file_mounts) to keep them.\n"
    return note + yaml.safe_dump(task, sort_keys=False)


def _kubernetes(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    name, (machines, _) = _dns_name(plan.name), machines_of(settings)
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"job-name": name}},
    }  # fmt: skip
    pod = _pod(plan, settings, f"{name}-0.{name}")
    pod["spec"]["subdomain"] = name
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {**_indexed(machines), "backoffLimit": machines * RESTARTS, "template": pod},
    }  # fmt: skip
    return _documents(_config_map(plan, settings), service, job)


def _jobset(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    name, (machines, _) = _dns_name(plan.name), machines_of(settings)
    template = {
        "spec": {**_indexed(machines), "backoffLimit": 0, "template": _pod(plan, settings, f"{name}-w-0-0.{name}")}
    }
    job = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": RESTARTS},
            "replicatedJobs": [{"name": "w", "replicas": 1, "template": template}],
        },
    }  # fmt: skip
    return _documents(_config_map(plan, settings), job)


def _pytorchjob(plan: RunPlan, settings: Settings, settings_file: Path) -> str:
    machines, near = machines_of(settings)
    pod = _pod(plan, settings, "")
    # The operator sets PET_NNODES, PET_NODE_RANK and where to meet, which torchrun reads.
    pod["spec"]["containers"][0]["command"] = ["torchrun", "-m", "forerun", "train", "/plan/settings.yaml"]
    pod["spec"]["containers"][0]["name"] = "pytorch"
    del pod["spec"]["restartPolicy"]

    def replicas(number: int) -> dict[str, Any]:
        return {"replicas": number, "restartPolicy": "OnFailure", "template": pod}

    specs = {"Master": replicas(1), **({"Worker": replicas(machines - 1)} if machines > 1 else {})}
    job = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": _dns_name(plan.name)},
        "spec": {"nprocPerNode": str(near), "pytorchReplicaSpecs": specs},
    }  # fmt: skip
    return _documents(_config_map(plan, settings), job)


def _indexed(machines: int) -> dict[str, Any]:
    return {"completionMode": "Indexed", "completions": machines, "parallelism": machines}


def _config_map(plan: RunPlan, settings: Settings) -> dict[str, Any]:
    """The settings file, as it travels with a job."""
    text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{_dns_name(plan.name)}-settings"},
        "data": {"settings.yaml": text},
    }  # fmt: skip


def _pod(plan: RunPlan, settings: Settings, head: str) -> dict[str, Any]:
    """One machine's pod, which meets the others at `head`; its volume claim must be there and shared by all."""
    near, name = machines_of(settings)[1], _dns_name(plan.name)
    return {
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "train",
                "image": IMAGE,
                "workingDir": SHARED,
                "command": ["bash", "-c", _torchrun(settings, "/plan/settings.yaml", head)],
                "env": [{"name": NOTE, "value": f"{SHARED}/{name}.run"}],
                "resources": {"limits": {"nvidia.com/gpu": near}},
                "volumeMounts": [
                    {"name": "settings", "mountPath": "/plan"},
                    {"name": "shared", "mountPath": SHARED},
                    {"name": "memory", "mountPath": "/dev/shm"},
                ],
            }],
            "volumes": [
                {"name": "settings", "configMap": {"name": f"{name}-settings"}},
                {"name": "shared", "persistentVolumeClaim": {"claimName": name}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }  # fmt: skip


def _documents(*documents: dict[str, Any]) -> str:
    note = (
        f"# The image {IMAGE!r} is that of the repository's Dockerfile; the volume claim is shared by all machines "
        "and holds data and runs.\n"
    )
    return note + yaml.safe_dump_all(documents, sort_keys=False)


def _dns_name(name: str) -> str:
    """A run's name as Kubernetes takes it: lower case, digits and dashes, at most 40."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return letters.strip("-")[:40].strip("-") or "run"


LAUNCHERS: dict[str, Callable[[RunPlan, Settings, Path], str]] = {
    "torchrun": _bare, "slurm": _slurm, "skypilot": _skypilot, "kubernetes": _kubernetes, "jobset": _jobset,
    "pytorchjob": _pytorchjob,
}  # fmt: skip
CLUSTER_KINDS = (*LAUNCHERS, "torchtitan", "megatron")
