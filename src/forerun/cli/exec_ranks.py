"""Several ranks of a program: each is run by itself, and the one that needs most memory decides."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.forecasting.program import ProgramForecast


def ranks_of(text: str, world_size: int) -> list[int]:
    """The ranks that `--rank` names, in order; of a pipeline over all ranks `middle` is one of the middle stage.

    Raises:
        InvalidSettings: no such rank.
    """
    names = {"first": 0, "middle": world_size // 2, "last": world_size - 1}
    ranks = []
    for word in text.split(","):
        rank = names.get(word.strip(), int(word) if word.strip().isdigit() else -1)
        if not 0 <= rank < world_size:
            raise InvalidSettings(
                f"--rank: a number from 0 to {world_size - 1}, first, middle or last is needed; found {word!r}. The "
                "number of ranks is that of torchrun, accelerate launch or --nproc-per-node."
            )
        ranks.append(rank)
    return list(dict.fromkeys(ranks))


def forecast_ranks(
    command: Sequence[str], ranks: Sequence[int], options: Mapping[str, str | float | None]
) -> "ProgramForecast":
    """Forecast each rank in a process of its own, since a program leaves modules and settings behind.

    Raises:
        InvalidSettings: a rank could not be run.
    """
    from forerun.forecasting.program import ProgramForecast, deciding

    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    forecasts = []
    for rank in ranks:
        call = [sys.executable, "-m", "forerun", "exec", "--rank", str(rank), "--json", *words, "--", *command]
        process = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
        if not process.stdout.strip():
            raise InvalidSettings(f"exec: rank {rank} could not be run (exit code {process.returncode}); see above.")
        forecasts.append(ProgramForecast.model_validate_json(process.stdout))
    return deciding(forecasts)
