"""How one of several processes of a test ends: rank 0 prints what came out, and none tears gloo down."""

import json
import os
from typing import Any

import torch.distributed as dist

from forerun.train.ranks import rank


def print_and_end(results: dict[str, Any]) -> None:
    """Print JSON on rank 0 and end the process once all ranks are here."""
    if rank() == 0:
        print(json.dumps(results), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may end the process otherwise while it is torn down
