"""Jobs over several machines parse as what they are, and start what the plan named."""

import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from forerun.errors import InvalidSettings
from forerun.plan.cluster_launchers import CLUSTER_KINDS, cluster_script, machines_of, require_kind
from forerun.plan.launchers import slurm_time
from forerun.plan.layouts import ClusterLayout, with_layout
from forerun.plan.outcome import RunPlan
from forerun.records import Forecast
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.train import launch as train_launch

HERE = Path("my run.plan.yaml")
LLAMA = {
    "name": "my run", "workload": "causal-lm", "model": {"name": "llama-3-8b"}, "precision": "bf16-mixed",
    "optimizer": {"learning_rate": 3e-4, "max_gradient_norm": 1.0}, "data": {"examples": 99_999, "source": "rows.jsonl"},
    "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 8192},
    "schedule": {"max_steps": 1000, "warmup_steps": 100}, "activation_checkpointing": "selective",
}  # fmt: skip
LAYOUT = ClusterLayout("fsdp", 32, 4, 4, True)


@pytest.fixture(scope="module")
def forecast() -> Forecast:
    import forerun

    small = LLAMA | {
        "model": {"name": "tiny-llama"}, "activation_checkpointing": "none", "data": {"examples": 999},
        "batch": {"sequence_length": 64}, "schedule": {},
    }  # fmt: skip
    return forerun.forecast(small, gpu="h100-80gb")


def plan_of(forecast: Forecast, layout: ClusterLayout = LAYOUT, **changes) -> RunPlan:
    settings = with_layout(settings_from(LLAMA | changes), layout)
    return RunPlan(
        name=settings.name, gpu="h100-80gb", fits=True, meets_limits=True, settings=settings.model_dump(mode="json"),
        forecast=forecast.model_copy(update={"world_size": layout.gpus}), given=None, search_seconds=0.0, traces=0,
    )  # fmt: skip


def settings_of(plan: RunPlan) -> Settings:
    assert plan.settings is not None
    return settings_from(plan.settings)


def words_of(line: str) -> list[str]:
    return shlex.split(line)


def check_torchrun(words: list[str], machines: int, near: int, file: str) -> None:
    assert words[0] == "torchrun"
    assert f"--nnodes={machines}" in words
    assert f"--nproc-per-node={near}" in words
    assert words[-4:] == ["-m", "forerun", "train", file]


def test_a_slurm_job_starts_one_torchrun_on_each_machine(forecast):
    text = cluster_script(plan_of(forecast), "slurm", HERE)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.startswith("#!/bin/bash\n")
    lines = text.splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert {"--nodes=16", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue"} <= set(options)
    assert f"--time={slurm_time(forecast.run.seconds.conservative * 1.1)}" in options
    last = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[:last])  # Slurm stops to read options at the first command
    check_torchrun(words_of(lines[-1])[1:], 16, 8, str(HERE))
    assert f"export {train_launch.NOTE}=" in text


def test_the_bare_line(forecast):
    text = cluster_script(plan_of(forecast), "torchrun", HERE)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    check_torchrun(words_of(text.splitlines()[-1]), 16, 8, str(HERE))


def test_one_machine_has_as_many_processes_as_gpus(forecast):
    plan = plan_of(forecast, ClusterLayout("fsdp", 4))
    assert machines_of(settings_of(plan)) == (1, 4)
    check_torchrun(words_of(cluster_script(plan, "torchrun", HERE).splitlines()[-1]), 1, 4, str(HERE))


def test_a_skypilot_task(forecast):
    task = yaml.safe_load(cluster_script(plan_of(forecast), "skypilot", HERE))
    assert task["num_nodes"] == 16
    assert task["resources"] == {"accelerators": "H100:8"}
    check_torchrun(words_of(task["run"].splitlines()[-1]), 16, 8, str(HERE))
    assert "$SKYPILOT_NODE_IPS" in task["run"]
    spot = plan_of(forecast, reliability={"spot": {"interruptions_per_hour": 0.1, "discount": 0.5}})
    assert yaml.safe_load(cluster_script(spot, "skypilot", HERE))["resources"]["use_spot"] is True
    with pytest.raises(InvalidSettings, match="travels with the current folder"):
        cluster_script(plan_of(forecast), "skypilot", Path("/x.yaml"))


def test_an_indexed_job_with_its_settings_and_a_name_for_each_machine(forecast):
    plan = plan_of(forecast)
    settings, service, job = yaml.safe_load_all(cluster_script(plan, "kubernetes", HERE))
    assert settings_from(yaml.safe_load(settings["data"]["settings.yaml"])).hash == settings_of(plan).hash
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 16, 16)
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    words = words_of(container["command"][-1])
    check_torchrun(words, 16, 8, "/plan/settings.yaml")
    assert "--rdzv-endpoint=my-run-0.my-run:29500" in words
    check_volumes(pod, settings)


def check_volumes(pod: dict, settings: dict) -> None:
    """Every volume that is mounted is there, and the settings are those of the job."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(volumes)
    assert volumes["settings"]["configMap"]["name"] == settings["metadata"]["name"]


def test_a_job_set(forecast):
    settings, job = yaml.safe_load_all(cluster_script(plan_of(forecast), "jobset", HERE))
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    template = job["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert template["completions"] == template["parallelism"] == 16
    pod = template["template"]["spec"]
    words = words_of(pod["containers"][0]["command"][-1])
    check_torchrun(words, 16, 8, "/plan/settings.yaml")
    assert "--rdzv-endpoint=my-run-w-0-0.my-run:29500" in words
    check_volumes(pod, settings)


def test_a_pytorch_job(forecast):
    settings, job = yaml.safe_load_all(cluster_script(plan_of(forecast), "pytorchjob", HERE))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert job["spec"]["nprocPerNode"] == "8"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 15)
    for part in replicas.values():
        container = part["template"]["spec"]["containers"][0]
        assert container["name"] == "pytorch"
        assert container["command"] == ["torchrun", "-m", "forerun", "train", "/plan/settings.yaml"]
        check_volumes(part["template"]["spec"], settings)


def test_torchtitan_has_the_layout_and_the_batch(forecast):
    plan = plan_of(forecast)
    toml = tomllib.loads(cluster_script(plan, "torchtitan", HERE))
    parallel, training = toml["parallelism"], toml["training"]
    assert (parallel["data_parallel_shard_degree"], parallel["data_parallel_replicate_degree"]) == (8, 4)
    assert parallel["tensor_parallel_degree"] == 4
    assert toml["model"]["name"] == "llama3"
    assert toml["model"]["flavor"] == "8B"
    assert training["local_batch_size"] == 2
    assert training["global_batch_size"] == settings_of(plan).global_batch_size == 2 * 4 * 32
    assert toml["activation_checkpoint"]["mode"] == "selective"
    assert toml["optimizer"]["lr"] == 3e-4
    copies = tomllib.loads(cluster_script(plan_of(forecast, ClusterLayout("ddp", 16)), "torchtitan", HERE))
    assert copies["parallelism"]["data_parallel_replicate_degree"] == 16
    assert copies["parallelism"]["data_parallel_shard_degree"] == 1


def test_megatron_has_the_layout_the_model_and_the_batch(forecast):
    text = cluster_script(plan_of(forecast), "megatron", HERE)
    words = [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]
    values = {word: words[n + 1] for n, word in enumerate(words[:-1]) if word.startswith("--")}
    expected = {
        "--tensor-model-parallel-size": "4", "--num-layers": "32", "--hidden-size": "4096", "--num-query-groups": "8",
        "--ffn-hidden-size": "14336", "--micro-batch-size": "2", "--global-batch-size": "256", "--seq-length": "8192",
        "--num-distributed-optimizer-instances": "4", "--recompute-granularity": "selective", "--rotary-base": "500000",
        "--data-parallel-sharding-strategy": "optim_grads_params", "--train-iters": "1000", "--clip-grad": "1",
    }  # fmt: skip
    assert {name: values.get(name) for name in expected} == expected
    assert {"--sequence-parallel", "--bf16", "--use-megatron-fsdp", "--untie-embeddings-and-output-weights"} <= set(
        words
    )


@pytest.mark.parametrize("kind", ["torchtitan", "megatron"])
def test_what_other_tools_have_no_words_for_is_refused(forecast, kind):
    with pytest.raises(InvalidSettings, match=f"--script {kind}: written for bf16"):
        cluster_script(plan_of(forecast, precision="fp32"), kind, HERE)
    with pytest.raises(InvalidSettings, match=f"--script {kind}"):
        cluster_script(plan_of(forecast, model={"name": "gpt2"}, batch={"sequence_length": 512}), kind, HERE)


def test_kinds_are_checked_before_anything_is_planned():
    for kind in CLUSTER_KINDS:
        require_kind(kind)
    with pytest.raises(InvalidSettings, match="one of torchrun, slurm, skypilot.*found 'pbs'"):
        require_kind("pbs")


def test_a_job_without_data_says_what_is_missing(forecast):
    text = cluster_script(plan_of(forecast, data={"examples": 99_999}), "slurm", HERE)
    assert "set data.source in the file" in text
    assert "data.source" not in cluster_script(plan_of(forecast), "slurm", HERE)
