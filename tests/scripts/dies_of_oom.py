"""A loop that runs out of memory and does not expect it."""

import torch

kept = [torch.zeros(2**30, device="cuda") for _ in range(2)]
kept += [torch.zeros(2**30, device="cuda") for _ in range(100)]
