"""The command line: each command parses, calls one stage and prints; an error becomes one paragraph and an exit code.

Modules of commands import what they need inside their functions, because `forerun --help` pays for every module loaded.

Exit codes: 0 done; 1 our bug (traceback); 2 bad input or settings; 3 the forecast says it does not fit; 4 a success
criterion failed; 130 interrupted.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from forerun.cli import (
    audit_command,
    compare_command,
    device_commands,
    exec_command,
    forecast_command,
    init_command,
    look_command,
    model_commands,
    plan_command,
    price_commands,
    recipe_commands,
    run_commands,
    sweep_command,
    tune_command,
    ui_command,
    use_commands,
    verify_command,
    watch_command,
)
from forerun.cli.file_wall import run_inside
from forerun.cli.options import EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, say_note
from forerun.cli.waiting import shown_waiting
from forerun.errors import ForerunError, NothingFits, UserNote
from forerun.extensions import COMMANDS, extensions
from forerun.noise import quieten_libraries

app = typer.Typer(
    name="forerun",
    help="Know what a PyTorch training run will cost before you start it, then get exactly that.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
init_command.add_to(app)
forecast_command.add_to(app)
exec_command.add_to(app)
plan_command.add_to(app)
compare_command.add_to(app)
audit_command.add_to(app)
run_commands.add_to(app)
watch_command.add_to(app)
look_command.add_to(app)
use_commands.add_to(app)
ui_command.add_to(app)
verify_command.add_to(app)
sweep_command.add_to(app)
tune_command.add_to(app)
device_commands.add_to(app)
model_commands.add_to(app)
price_commands.add_to(app)
recipe_commands.add_to(app)
for extension in extensions(COMMANDS).values():
    extension.load()(app)


def main() -> None:
    """Run the command line; render expected errors, and say once each how a name was read."""
    with warnings.catch_warnings():  # else each call in one process would wrap what the one before had put there
        warnings.showwarning = _say_notes(warnings.showwarning)
        warnings.simplefilter("once", UserNote)
        quieten_libraries()
        if exec_command.throws_files_away(sys.argv[1:]):
            run_inside(_run)
        else:
            _run()


def _run() -> None:
    try:
        with shown_waiting():
            app()
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
    """What shows a warning: what was decided for the user as a note, `others` for the rest."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserNote):
            say_note(str(message))
        else:
            others(message, category, *place, **more)

    return show


def _say(message: object) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(str(message), style="red"), soft_wrap=True)
