"""The command line: each command parses, calls one stage and prints; an error becomes one paragraph and an exit code.

Modules of commands import what they need inside their functions, because `forerun --help` pays for every module loaded;
a command line that names its command first loads that command's module alone.

Exit codes: 0 done; 1 our bug (traceback); 2 bad input or settings; 3 the forecast says it does not fit; 4 a success
criterion failed; 130 interrupted.
"""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from forerun.cli.options import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, say_note
from forerun.cli.waiting import shown_waiting
from forerun.errors import ForerunError, NothingFits, UserNote
from forerun.extensions import COMMANDS, extensions
from forerun.noise import quieten_libraries

MODULES = {
    "init_command": ("init",), "forecast_command": ("forecast",), "exec_command": ("exec",), "plan_command": ("plan",),
    "compare_command": ("compare",), "audit_command": ("audit",),
    "run_commands": ("train", "run", "evaluate", "report", "export", "runs"), "watch_command": ("watch",),
    "look_command": ("look",), "use_commands": ("predict", "generate", "chat"), "ui_command": ("ui",),
    "verify_command": ("verify",), "sweep_command": ("sweep",), "tune_command": ("tune",),
    "device_commands": ("gpus", "networks", "doctor", "calibrate"), "model_commands": ("models",),
    "price_commands": ("prices",), "recipe_commands": ("recipes", "copy"),
}  # fmt: skip
"""Commands by module, in the order of `--help`."""
MODULE_OF = {command: module for module, commands in MODULES.items() for command in commands}


def _say_version(flag: bool) -> None:
    if flag:
        from importlib.metadata import version

        typer.echo(f"forerun {version('forerun')}")
        raise typer.Exit


def command_line(word: str = "") -> typer.Typer:
    """All commands, of other packages too; of a word that is a command's name, those of its module alone."""
    app = typer.Typer(
        name="forerun",
        help="Know what a PyTorch training run will cost before you start it, then get exactly that.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_whole_line)  # else one command would stand for all of them, without its name
    for module in [MODULE_OF[word]] if word in MODULE_OF else MODULES:
        import_module(f"forerun.cli.{module}").add_to(app)
    if word not in MODULE_OF:
        for extension in extensions(COMMANDS).values():
            extension.load()(app)
    return app


def main() -> None:
    """Run the command line; render expected errors, and say once each how a name was read."""
    with warnings.catch_warnings():  # else each call in one process would wrap what the one before had put there
        warnings.showwarning = _say_notes(warnings.showwarning)
        warnings.simplefilter("once", UserNote)
        quieten_libraries()
        if throws_files_away(sys.argv[1:]):
            from forerun.cli.file_wall import run_inside

            run_inside(_run)
        else:
            _run()


def _whole_line(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def throws_files_away(words: list[str]) -> bool:
    """Whether a command line is one of `exec` that keeps no files."""
    ours = words[: words.index("--")] if "--" in words else words
    return ours[:1] == ["exec"] and "--keep-files" not in ours


def _run() -> None:
    try:
        with shown_waiting():
            command_line("".join(sys.argv[1:2]))()
    except NothingFits as error:
        _say(error)
        sys.exit(EXIT_DOES_NOT_FIT)
    except ForerunError as error:
        _say(error)
        sys.exit(EXIT_BAD_INPUT)
    except OSError as error:  # a name too long for a file, no permission, a full disk: of this machine, no bug of ours
        if error.filename is None:
            raise
        from forerun.settings.plain import in_short

        _say(f"{in_short(str(error.filename))}: {error.strerror}. Check the path, its permissions and the disk.")
        sys.exit(EXIT_BAD_INPUT)


def _say_notes(others: Callable[..., None]) -> Callable[..., None]:
    """What shows a warning: what was decided for the user as a note, once, and `others` for the rest."""
    notes: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserNote):
            if str(message) not in notes:  # libraries set filters of their own, after which "once" begins again
                notes.add(str(message))
                say_note(str(message))
        else:
            others(message, category, *place, **more)

    return show


def _say(message: object) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(str(message), style="red"), soft_wrap=True)
