"""Scripts of this folder on a virtual GPU, for the tests of `forerun exec`."""

from pathlib import Path

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"


def run(script: str, *arguments: str, gpus=("t4",), **options):
    """Forecasts of a script of this folder, and its run."""
    command = ["python", str(SCRIPTS / script), *arguments]
    return forecast_program(parse_command(command), command, [device(name) for name in gpus], **options)
