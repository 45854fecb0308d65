"""Which ids of the index forecast: `python -m benchmarks.index_coverage [--whole]`, some 17 minutes on a core.

Each row is forecast for an H100 with two samples of 128 tokens (64 beside images), all weights trained. Rows are cut
to two layers, which is one of each kind but for hybrids, and taken whole where they cannot be cut; `--whole` takes the
smallest row of each type uncut besides.
Where a row states no size of images or length of sound, as its message asks, 224 pixels and 5 seconds are given.
"""

import sys
import time
import warnings
from collections import Counter
from typing import Any

from forerun.api import forecast
from forerun.errors import ForerunError
from forerun.models.build import workloads_of
from forerun.models.catalogue import transformers_config
from forerun.models.rows import Architecture, architectures
from forerun.records import Forecast
from forerun.settings.media import MEDIA

GPU = "h100-80gb"
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("sequence-classification", "image-classification", "audio-classification")
"""What a bare encoder is trained for, the first that it has; other rows name their workload."""
LAYERS = 2
ASKED_FOR = {"media.image_size": {"image_size": 224}, "media.audio_seconds": {"audio_seconds": 5.0}}
"""What a user who reads the message sets."""


def refusal(row: Architecture, *, is_whole: bool) -> str:
    """Why the row has no forecast; empty where it has one."""
    depth = next((field for field in DEPTHS if field in row.config), None)
    config = {depth: LAYERS} if depth and not is_whole and row.config[depth] > LAYERS else {}
    settings = {
        "name": "coverage", "workload": _workload(row), "precision": "bf16-mixed",
        "model": {"name": row.aliases[0] if row.aliases else row.name, "config": config}, "data": {"examples": 8},
        "batch": {"micro_batch_size": 2, "sequence_length": 64 if _workload(row) in MEDIA else 128},
    }  # fmt: skip
    try:
        result = _forecast(settings)
    except ForerunError as error:
        return refusal(row, is_whole=True) if config else str(error)
    except Exception as error:  # noqa: BLE001 (a fault of ours: it is to be listed, not to end the list)
        return f"FAULT {type(error).__name__}: {error}"
    return "" if result.step.seconds.expected > 0 else "no time"


def _workload(row: Architecture) -> str:
    """What the row is trained for."""
    if row.parameters_of != "encoder":
        return row.parameters_of
    offered = workloads_of(transformers_config(row))
    return next((head for head in HEADS if head in offered), HEADS[0])


def _forecast(settings: dict[str, Any]) -> Forecast:
    """The forecast, asked again with what a first message wants to know."""
    try:
        return forecast(settings, GPU)
    except ForerunError as error:
        media = ASKED_FOR.get(str(error).partition(":")[0])
        if media is None:
            raise
        return forecast({**settings, "media": media}, GPU)


def main() -> None:
    """One line for each refusal, then the shares."""
    warnings.simplefilter("ignore")
    rows = [row for row in architectures() if row.hub_ids]
    ids, whole, begin = Counter[bool](), {}, time.perf_counter()
    for row in rows:
        reason = refusal(row, is_whole=False)
        ids[not reason] += len(row.hub_ids)
        if reason:
            print(f"{row.name} ({row.model_type}): {reason[:240]}", flush=True)
        elif row.model_type not in whole or whole[row.model_type].parameters > row.parameters:
            whole[row.model_type] = row
    print(
        f"ids that forecast, with their time and memory: {ids[True]} of {ids.total()} ({ids[True] / ids.total():.1%})"
    )
    print(f"rows {len(rows)}, model types {len({row.model_type for row in rows})}, {time.perf_counter() - begin:.0f} s")
    if "--whole" in sys.argv:
        for kind, row in whole.items():
            begin, reason = time.perf_counter(), refusal(row, is_whole=True)
            print(
                f"whole {kind}: {row.name} {reason[:160] or 'forecast'}, {time.perf_counter() - begin:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
