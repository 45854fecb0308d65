"""The command of a program as people type it: `python train.py`, `-m module`, `torchrun`, `accelerate launch`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forerun.errors import InvalidSettings


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

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.ranks_per_node * self.nodes

    def variables(self, rank: int = 0) -> dict[str, str]:
        """Environment of one rank, as torchrun sets it (torch/distributed/run.py)."""
        if not self.is_distributed:
            return dict(self.environment)
        local = rank % self.ranks_per_node
        return self.environment | {
            "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node), "GROUP_RANK": str(rank // self.ranks_per_node),
            "GROUP_WORLD_SIZE": str(self.nodes), "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "forerun",
        }  # fmt: skip


def parse_command(words: Sequence[str], ranks_per_node: int | None = None, nodes: int | None = None) -> Program:
    """The program that a command starts; `ranks_per_node` and `nodes` go before what the command says.

    Raises:
        InvalidSettings: no Python program, or a script that is not there.
    """
    rest = list(words)
    if not rest:
        raise InvalidSettings("exec: a command is needed after --; found none. Example: -- python train.py --epochs 3")
    name = Path(rest[0]).name
    if name.startswith("python") and rest[1:4] == ["-m", "torch.distributed.run"][:3]:
        name, rest = "torchrun", rest[2:]
    if name == "torchrun":
        program = _torchrun(rest[1:])
    elif name == "accelerate" and rest[1:2] == ["launch"]:
        program = _accelerate(rest[2:])
    elif name.startswith("python"):
        program = _python(rest[1:])
    elif name == "-m" or name.endswith(".py"):
        program = _python(rest)
    else:
        raise InvalidSettings(
            f"exec: a Python program is needed: python, torchrun or accelerate launch, then a script or -m MODULE; "
            f"found {rest[0]!r}."
        )
    if ranks_per_node is not None or nodes is not None:
        program = Program(
            program.target, program.arguments, program.is_module, ranks_per_node or program.ranks_per_node,
            nodes or program.nodes, True, program.environment,
        )  # fmt: skip
    if not program.is_module and not os.path.isfile(program.target):
        raise InvalidSettings(f"exec: no script {program.target!r} in {Path.cwd()}. Check the path after --.")
    return program


def _python(words: list[str]) -> Program:
    while words and words[0] in ("-u", "-O", "-OO", "-B", "-I", "-E", "-s", "-S"):
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        return Program(words[1], tuple(words[2:]), is_module=True)
    if not words or words[0].startswith("-"):
        raise InvalidSettings(f"exec: a script or -m MODULE is needed after python; found {' '.join(words) or 'none'}.")
    return Program(words[0], tuple(words[1:]))


def _torchrun(words: list[str]) -> Program:
    from torch.distributed.run import get_args_parser

    options = _parsed(get_args_parser(), words, "torchrun")
    per_node = 1 if not str(options.nproc_per_node).isdigit() else int(options.nproc_per_node)
    nodes = int(str(options.nnodes).split(":")[-1])
    return Program(
        options.training_script, tuple(options.training_script_args), bool(options.module), per_node, nodes, True
    )  # fmt: skip


def _accelerate(words: list[str]) -> Program:
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError as error:
        raise InvalidSettings(
            "exec: accelerate launch needs the package accelerate, which is not installed."
        ) from error
    options = _parsed(launch_command_parser(), words, "accelerate launch")
    environment = {"ACCELERATE_MIXED_PRECISION": options.mixed_precision} if options.mixed_precision else {}
    if options.gradient_accumulation_steps not in (None, 1):
        environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = str(options.gradient_accumulation_steps)
    ranks, nodes = options.num_processes or 1, options.num_machines or 1
    return Program(
        options.training_script, tuple(options.training_script_args), bool(options.module), ranks // nodes, nodes,
        ranks > 1, environment,
    )  # fmt: skip


def _parsed(parser, words: list[str], launcher: str):  # noqa: ANN001, ANN202 (argparse)
    try:
        return parser.parse_args(words)
    except SystemExit as error:
        raise InvalidSettings(f"exec: {launcher} does not take {' '.join(words)!r}; see {launcher} --help.") from error
