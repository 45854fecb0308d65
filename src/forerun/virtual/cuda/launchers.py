"""The command of a program as people type it: `python train.py`, `-m module`, or with a launcher before it."""

import argparse
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from forerun.errors import InvalidSettings

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate-launch", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
BEFORE = (
    ("nohup",),
    ("time",),
    ("env",),
    *((name, "run") for name in ("uv", "poetry", "pipenv", "pdm", "rye", "hatch")),
)
"""Words before a command that change nothing about what it does."""
STARTS_ELSEWHERE = ("srun", "mpirun", "mpiexec", "horovodrun")
PYTHON_FLAGS, PYTHON_OPTIONS = re.compile(r"-[uOBIEsSPqvdbi]+$|-[WX].+"), ("-W", "-X")
"""Python's own options before the script: without a value, and with one."""
MAIN_PORT = 29500
"""Where the first rank listens, in torchrun and accelerate alike."""
SLOTS = re.compile(r"\s*(?!#)\S+\s+slots=(\d+)")
"""A line of DeepSpeed's file of hosts."""
DEEPSPEED_OPTIONS = (
    "--hostfile -H", "--include -i", "--exclude -e", "--master_port", "--master_addr", "--launcher", "--launcher_args",
    "--node_rank", "--enable_each_rank_log", "--autotuning", "--bind_core_list", "--ssh_port", "--venv_script",
    "--log_level",
)  # fmt: skip
DEEPSPEED_FLAGS = (
    "--module", "--no_local_rank", "--no_python", "--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid",
    "--bind_cores_to_rank", "--quiet -q",
)  # fmt: skip
READ_BYTES = 256
"""Of the line that names the interpreter: the most that Linux reads (execve(2), interpreter scripts)."""


@dataclass(frozen=True)
class Program:
    """A Python program and how it is started."""

    target: str
    """Path of a script, or name of a module."""
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    ranks_per_node: int = 1
    nodes: int = 1
    is_distributed: bool = False
    """Started by a launcher that sets ranks in the environment."""
    environment: dict[str, str] = field(default_factory=dict)
    unknown_ranks: str = ""
    """What leaves the number of ranks to the machine, where it was taken as one."""
    cards: int = 1
    """Cards that its one process drives by itself, where it is no rank of several."""
    takes_local_rank: bool = False
    """Whether its launcher adds `--local_rank=N` before the program's own arguments."""
    network: str | None = None
    """What joins machines, by name or by a file of nccl-tests output; None where nobody said."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.ranks_per_node * self.nodes

    def words(self, rank: int = 0) -> list[str]:
        """`sys.argv` of one rank."""
        own = [f"--local_rank={rank % self.ranks_per_node}"] if self.takes_local_rank else []
        return [self.target, *own, *self.arguments]

    def variables(self, rank: int = 0) -> dict[str, str]:
        """Environment of one rank, as torchrun sets it (torch/distributed/run.py)."""
        if not self.is_distributed:
            return dict(self.environment)
        local = rank % self.ranks_per_node
        return self.environment | {
            "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node), "GROUP_RANK": str(rank // self.ranks_per_node),
            "GROUP_WORLD_SIZE": str(self.nodes), "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(MAIN_PORT), "TORCHELASTIC_RUN_ID": "forerun",
        }  # fmt: skip


def parse_command(
    words: Sequence[str], ranks_per_node: int | None = None, nodes: int | None = None, cards: int | None = None
) -> Program:
    """The program that a command starts; `ranks_per_node` and `nodes` go before what the command says.

    One process drives `cards`; where nobody says, those of CUDA_VISIBLE_DEVICES before the command.

    Raises:
        InvalidSettings: no Python program, a script that is not there, or ranks that are to drive several cards each.
    """
    rest, environment = list(words), {}
    while rest and (count := _words_before(rest)):
        name, is_variable, value = rest[0].partition("=")
        environment |= {name: value} if is_variable else {}  # NAME=value python train.py, as a shell takes it
        rest = rest[count:]
    if not rest:
        raise InvalidSettings("exec: a command is needed after --; found none. Example: -- python train.py --epochs 3")
    name = Path(rest[0]).name
    if name.startswith("python") and rest[1:2] == ["-m"] and rest[2:3] and rest[2] in LAUNCHER_MODULES:
        name, rest = LAUNCHER_MODULES[rest[2]], rest[2:]
    if name == "torchrun":
        program = _torchrun(rest[1:])
    elif name == "deepspeed":
        program = _deepspeed(rest[1:])
    elif name == "accelerate" and rest[1:2] == ["launch"]:
        program = _accelerate(rest[2:], ranks_per_node, nodes)
    elif name == "accelerate-launch":
        program = _accelerate(rest[1:], ranks_per_node, nodes)
    elif name.startswith("python"):
        program = _python(rest[1:])
    elif name == "-m" or name.endswith(".py"):
        program = _python(rest)
    else:
        program = Program(_python_command(rest[0]), tuple(rest[1:]))
    program = replace(program, environment=environment | program.environment)
    if ranks_per_node is not None or nodes is not None:
        program = replace(
            program, ranks_per_node=ranks_per_node or program.ranks_per_node, nodes=nodes or program.nodes,
            is_distributed=True, unknown_ranks="",
        )  # fmt: skip
    if cards is not None and cards > 1 and program.is_distributed:
        raise InvalidSettings(
            f"exec: --gpus {cards} is of one process that drives them all by itself, and this command starts ranks "
            "with one GPU each. Give --nproc-per-node for those, or leave out the launcher."
        )
    program = replace(program, cards=cards or (1 if program.is_distributed else _visible_cards(environment)))
    if not program.is_module and not os.path.isfile(program.target):
        raise InvalidSettings(f"exec: no script {program.target!r} in {Path.cwd()}. Check the path after --.")
    return program


def _words_before(words: Sequence[str]) -> int:
    """How many words before a command say nothing about which one it is."""
    if VARIABLE.match(words[0]):
        return 1
    return next((len(each) for each in BEFORE if tuple(words[: len(each)]) == each), 0)


def _visible_cards(environment: Mapping[str, str]) -> int:
    """Cards that CUDA_VISIBLE_DEVICES names before the command; one where it is not there."""
    return max(1, len([each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]))


def _python_command(word: str) -> str:
    """The file of a command that a package installed, such as `litgpt` or `tune`, if it is written in Python."""
    if Path(word).name in STARTS_ELSEWHERE:
        raise InvalidSettings(
            f"exec: {word} starts processes that are not seen here. Give what it starts, and say how many there are: "
            "forerun exec --nproc-per-node 8 --nnodes 2 -- python train.py."
        )
    path = shutil.which(word)
    if path is not None:
        with open(path, "rb") as file:
            first = file.readline(READ_BYTES)
        if first.startswith(b"#!") and b"python" in first:
            return path
    problem = "there is no such command" if path is None else f"{path} is not one"
    raise InvalidSettings(
        "exec: a Python program is needed: python, torchrun, accelerate launch or deepspeed, then a script or -m "
        f"MODULE; or a command that is written in Python. Found {word!r}: {problem}."
    )


def _python(words: list[str]) -> Program:
    while words and (words[0] in PYTHON_OPTIONS or PYTHON_FLAGS.match(words[0])):
        words = words[1 + (words[0] in PYTHON_OPTIONS) :]
    if words[:1] == ["-m"] and len(words) > 1:
        return Program(words[1], tuple(words[2:]), is_module=True)
    if not words or words[0].startswith("-"):
        raise InvalidSettings(f"exec: a script or -m MODULE is needed after python; found {' '.join(words) or 'none'}.")
    return Program(words[0], tuple(words[1:]))


def _torchrun(words: list[str]) -> Program:
    from torch.distributed.run import get_args_parser

    options = _parsed(get_args_parser(), words, "torchrun")
    is_number = str(options.nproc_per_node).isdigit()
    unknown = "" if is_number else f"torchrun --nproc-per-node {options.nproc_per_node}"
    nodes = int(str(options.nnodes).split(":")[-1])
    return Program(
        options.training_script, tuple(options.training_script_args), bool(options.module),
        int(options.nproc_per_node) if is_number else 1, nodes, True, unknown_ranks=unknown,
    )  # fmt: skip


def _deepspeed(words: list[str]) -> Program:
    """What DeepSpeed's launcher starts (deepspeed/launcher/runner.py, launch.py, 0.19)."""
    parser = argparse.ArgumentParser(prog="deepspeed")
    for name in ("--num_nodes", "--num_gpus"):
        parser.add_argument(name, type=int)
    for name in DEEPSPEED_OPTIONS:
        parser.add_argument(*name.split())
    for name in DEEPSPEED_FLAGS:
        parser.add_argument(*name.split(), action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = _parsed(parser, words, "deepspeed")
    named = (options.include or "").partition(":")[2]  # localhost:0,1
    hosts = _slots(options.hostfile)
    ranks = options.num_gpus or (len(named.split(",")) if named else min(hosts, default=0))
    unknown = "" if ranks else "deepspeed without --num_gpus"
    return Program(
        options.script, tuple(options.arguments), options.module, ranks or 1, options.num_nodes or len(hosts) or 1,
        True, unknown_ranks=unknown, takes_local_rank=not options.no_local_rank,
    )  # fmt: skip


def _slots(hostfile: str | None) -> list[int]:
    """GPUs of each host in a file of hosts; where it is not there DeepSpeed takes this machine."""
    if hostfile is None or not os.path.isfile(hostfile):
        return []
    lines = Path(hostfile).read_text(errors="replace").splitlines()
    return [int(line[1]) for line in map(SLOTS.match, lines) if line is not None]


def _accelerate(words: list[str], ranks_per_node: int | None, nodes: int | None) -> Program:
    """What accelerate's own launcher would start: its configuration file, its options, its environment."""
    try:
        from accelerate.commands import launch
        from accelerate.utils import launch as environments
    except ImportError as error:
        raise InvalidSettings(
            "exec: accelerate launch needs the package accelerate, which is not installed."
        ) from error
    options = _parsed(launch.launch_command_parser(), words, "accelerate launch")
    if ranks_per_node is not None or nodes is not None:
        options.num_machines = nodes or options.num_machines or 1
        options.num_processes = (ranks_per_node or 1) * options.num_machines
    try:
        options, defaults, mixes_by_file = launch._validate_launch_command(options)
        is_sharded = options.use_fsdp or options.use_megatron_lm or options.use_deepspeed
        ranks, nodes = options.num_processes or 1, options.num_machines or 1
        if options.use_deepspeed and find_spec("deepspeed") is None:
            raise InvalidSettings(
                "exec: this accelerate launch asks for DeepSpeed, and the package deepspeed is not installed. Install "
                "it where the command runs, or shard with PyTorch: --use_fsdp --fsdp_version 2 (as ZeRO stage 3)."
            )
        if options.use_deepspeed:
            # accelerate/commands/launch.py, launch_command (1.15): what a DeepSpeed file of its own must not say again
            fields = [*getattr(defaults, "deepspeed_config", ()), *(["mixed_precision"] if mixes_by_file else [])]
            options.deepspeed_fields_from_accelerate_config = ",".join(fields)
            options.main_process_port = options.main_process_port or MAIN_PORT
            options.machine_rank = 1 if nodes > 1 else 0  # the first one looks whether the port is free
            environment = environments.prepare_deepspeed_cmd_env(options)[1]
        elif is_sharded or options.multi_gpu or ranks > 1:
            environment = environments.prepare_multi_gpu_env(options)
        else:
            environment = environments.prepare_simple_launcher_cmd_env(options)[1]
    except (ValueError, RuntimeError, AssertionError, OSError) as error:
        raise InvalidSettings(f"exec: accelerate launch cannot start this: {error}") from error
    if options.gradient_accumulation_steps not in (None, 1):
        environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(options.gradient_accumulation_steps)
    return Program(
        options.training_script, tuple(options.training_script_args), bool(options.module), ranks // nodes, nodes,
        is_sharded or ranks > 1, {name: value for name, value in environment.items() if os.environ.get(name) != value},
        "" if options.num_processes else "accelerate launch without --num_processes",
    )  # fmt: skip


def _parsed(parser, words: list[str], launcher: str):  # noqa: ANN001, ANN202 (argparse)
    try:
        return parser.parse_args(words)
    except SystemExit as error:
        raise InvalidSettings(f"exec: {launcher} does not take {' '.join(words)!r}; see {launcher} --help.") from error
