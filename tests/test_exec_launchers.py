"""Commands that start a program: python, torchrun, accelerate launch, deepspeed."""

import json

import pytest

from forerun.errors import InvalidSettings
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "a command is needed"), (["bash", "x.sh"], "Python program"), (["python", "nowhere.py"], "no script"),
        (["python"], "script or -m"), (["torchrun", "--nproc_per_node"], "torchrun does not take"),
        (["accelerate", "launch", "--use_deepspeed", "--num_processes", "2", "x.py"], "deepspeed is not installed"),
        (["accelerate", "launch", "--multi_gpu", "--use_fsdp", "x.py"], "only use one of"), (["A=1"], "is needed"),
        (["accelerate", "launch", "--config_file", "nowhere.yaml", "x.py"], "nowhere.yaml. does not exist"),
        (["mpirun", "-np", "4", "python", "x.py"], "mpirun starts processes that are not seen.*--nproc-per-node"),
        (["nohup"], "is needed"), (["uv", "run"], "is needed"), (["python", "-W", "ignore"], "script or -m"),
    ],
)  # fmt: skip
def test_commands_that_cannot_run_say_why(command, message):
    with pytest.raises(InvalidSettings, match=message):
        parse_command(command)


@pytest.mark.parametrize(
    "words",
    ["", "nohup", "env A=1", "A=1 time", "uv run", "poetry run python -W ignore -Xdev -OO", "python -u -W error"],
)
def test_words_before_a_script_change_nothing(tmp_path, words):
    script = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("")
    program = parse_command([*words.split(), script, "--epochs", "3"])
    assert (program.target, program.arguments) == (script, ("--epochs", "3"))
    assert program.environment == ({"A": "1"} if "A=1" in words else {})


@pytest.mark.parametrize(
    ("options", "ranks", "nodes"),
    [
        ("--hostfile HOSTS", 4, 2), ("-H HOSTS --num_nodes 1 --num_gpus 2", 2, 1), ("--hostfile nowhere --num_gpus 8", 8, 1),
        ("--include localhost:0,1,2", 3, 1), ("-i localhost:4", 1, 1), ("--exclude localhost:3 -q --log_level debug", 1, 1),
    ],
)  # fmt: skip
def test_deepspeed_has_its_hosts_from_a_file(tmp_path, options, ranks, nodes):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "hosts").write_text("# two\nworker-1 slots=8\nworker-2 slots=4  # the old one\n")
    words = options.replace("HOSTS", str(tmp_path / "hosts")).split()
    program = parse_command(["deepspeed", *words, str(tmp_path / "train.py"), "--a"])
    assert (program.ranks_per_node, program.nodes, program.arguments) == (ranks, nodes, ("--a",))
    assert bool(program.unknown_ranks) == ("--exclude" in options)


def test_accelerate_starts_what_its_own_launcher_would(tmp_path):
    (tmp_path / "train.py").write_text("")
    settings = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "FSDP", "mixed_precision": "bf16",
        "num_machines": 1, "num_processes": 8, "machine_rank": 0, "main_training_function": "main",
        "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True, "fsdp_reshard_after_forward": True},
        "parallelism_config": {"parallelism_config_tp_size": 2, "parallelism_config_dp_shard_size": 4},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    launch = ["accelerate", "launch", "--config-file", str(tmp_path / "config.json"), str(tmp_path / "train.py"), "--a"]
    program = parse_command(launch)
    assert (program.ranks_per_node, program.nodes, program.arguments) == (8, 1, ("--a",))
    expected = {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16", "PARALLELISM_CONFIG_TP_SIZE": "2", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4",
    }  # fmt: skip
    assert expected.items() <= program.variables().items()
    assert parse_command(launch, 4, 2).world_size == 8


@pytest.mark.parametrize("is_by_file", [True, False])
def test_accelerate_starts_deepspeed(tmp_path, monkeypatch, is_by_file):
    """With its options alone, and with a file; the package itself is looked for, and not needed to start it."""
    monkeypatch.setattr("forerun.virtual.cuda.launchers.find_spec", lambda name: name)
    (tmp_path / "train.py").write_text("")
    settings = {
        "compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED", "mixed_precision": "bf16",
        "num_machines": 1, "num_processes": 4, "machine_rank": 0, "main_training_function": "main",
        "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 2},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    by_options = ["--use_deepspeed", "--num_processes", "4", "--zero_stage", "3", "--mixed_precision", "bf16"]
    options = ["--config-file", str(tmp_path / "config.json")] if is_by_file else by_options
    program = parse_command(["accelerate", "launch", *options, str(tmp_path / "train.py")])
    variables = program.variables()
    assert (program.ranks_per_node, program.is_distributed) == (4, True)
    assert variables["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert (variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"], variables["ACCELERATE_MIXED_PRECISION"]) == ("3", "bf16")
    fields = variables.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",")
    assert ("zero_stage" in fields, "mixed_precision" in fields) == (is_by_file, is_by_file)
    assert parse_command(["accelerate", "launch", *options, str(tmp_path / "train.py")], 4, 2).world_size == 8


def test_the_number_of_ranks_that_a_machine_decides_is_told(tmp_path):
    (tmp_path / "train.py").write_text("")
    launch = ["torchrun", "--standalone", "--nproc_per_node=gpu", str(tmp_path / "train.py")]
    assert parse_command(launch).unknown_ranks
    assert parse_command(launch, 4).ranks_per_node == 4
    assert not parse_command(launch, 4).unknown_ranks
    forecasts, _ = forecast_program(parse_command(launch), launch, [device("t4")])
    assert any("taken as 1" in warning for warning in forecasts[0].warnings)
