"""States of every random generator that training draws from, of the devices and of the host, for checkpoints."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.train.ranks import rank


def device_generators() -> dict[str, Tensor]:
    """States of the CPU's generator and of that of this rank's GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def host_generators() -> dict[str, Any]:
    """States of NumPy's and Python's generators, as JSON."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def restore_generators(tensors: dict[str, Tensor], hosts: list[Any]) -> None:
    """Restore this rank's states; a rank that was not there before starts from rank 0's, advanced by its number."""
    has_own_state = rank() < len(hosts)
    mine = f"{rank() if has_own_state else 0}:"
    for name, state in ((n.removeprefix(mine), s) for n, s in tensors.items() if n.startswith(mine)):
        if name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)
    host = hosts[rank() if has_own_state else 0]
    name, keys, position, has_gauss, gauss = host["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = host["python"]
    random.setstate((version, tuple(internal), gauss_next))
    if not has_own_state:
        for _ in range(rank()):
            torch.manual_seed(int(torch.randint(2**62, ()).item()))
