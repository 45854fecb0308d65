"""Stages of a pipeline that hold what arrived until it was used, and give back what they sent, as Megatron-Core does.

PyTorch makes room for all that will arrive in a step before it begins (torch/distributed/pipelining/stage.py, 2.13),
and holds what was sent on until its backward pass, which needs the graph alone.
"""

import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Rooms:
    """To be put before `torch.distributed.pipelining.PipelineStage` among the bases of a class."""

    args_recv_info: dict[int, Any]
    grad_recv_info: dict[int, Any]
    device: torch.device
    is_last: bool
    last_sent: "weakref.ref[Tensor] | None" = None

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        base: Any = super()
        result = base._prepare_forward_infra(*args, **kwargs)
        _clear(self.args_recv_info)
        return result

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        base: Any = super()
        result = base._prepare_backward_infra(*args, **kwargs)
        _clear(self.grad_recv_info)
        return result

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """Receive what another stage made of a micro-batch."""
        _make(self.args_recv_info[fwd_chunk_id], self.device)
        base: Any = super()
        return base.get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """Receive the gradient of what was sent on."""
        _make(self.grad_recv_info[bwd_chunk_id], self.device)
        base: Any = super()
        return base.get_bwd_recv_ops(bwd_chunk_id)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """The next micro-batch; by now the one before was sent."""
        base: Any = super()
        output = base.forward_one_chunk(*args, **kwargs)
        if not self.is_last:
            before = self.last_sent() if self.last_sent is not None else None
            if before is not None:
                before.untyped_storage().resize_(0)
            self.last_sent = weakref.ref(output)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Gradients of a micro-batch, after which nothing of it is needed."""
        base: Any = super()
        result = base.backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        _clear({0: self.args_recv_info[bwd_chunk_id], 1: self.grad_recv_info[bwd_chunk_id]})
        return result


def _clear(infos: Mapping[int, Iterable[Any]]) -> None:
    """Drop what tensors of other stages arrive in."""
    for info in itertools.chain.from_iterable(infos.values()):
        info.buffer = None


def _make(infos: Iterable[Any], device: torch.device) -> None:
    """Make room for what arrives next; what the step itself is given has no source."""
    for info in infos:
        if info.source is not None and info.tensor_meta is not None:
            info.buffer = torch.empty(info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=device)
