"""Which other circumstances might a user's step have run under? Each is one change of settings, GPU or library.

What was set on purpose is as open as what was not: a kernel falls back, a flag does not reach its library, an older
version has another default.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import nn

from forerun.data.token_data import IGNORED
from forerun.hardware.catalogue import Device, devices
from forerun.settings.schema import Settings
from forerun.spelling import SIZE
from forerun.step.head_workload import IN_CHUNKS
from forerun.step.heads import CausalLM
from forerun.step.parallel import unwrapped
from forerun.step.workload import Batch, LossSum

ATTENTION = {
    "sdpa:math": "attention fell back to plain arithmetic (PyTorch's math kernel)",
    "eager": "attention is written out (attn_implementation='eager', the default of transformers before 4.36)",
    "sdpa:efficient": "attention took PyTorch's memory-efficient kernel",
    "sdpa:flash": "attention took PyTorch's FlashAttention",
    "flash_attention_2": "attention took the package flash_attn",
}
ISSUED = {
    "for-loop": "the optimizer updates parameter by parameter",
    "foreach": "the optimizer is issued by foreach (PyTorch's default), which holds temporaries of all parameters",
    "fused": "the optimizer is fused",
}
PRECISIONS = {
    "fp32": ("bf16-mixed", "fp16-mixed", "tf32"), "tf32": ("fp32",), "bf16-true": ("bf16-mixed",),
    "bf16-mixed": ("bf16-true",), "fp16-mixed": ("fp16-true",),
}  # fmt: skip
"""What a step may have run in, for each precision that the settings may say."""

PRODUCT_LINES = ("rtx", "gtx", "rx", "quadro", "titan")
"""First words of names that say a line of products, not a chip."""


@dataclass(frozen=True)
class Alternative:
    """One change: `overrides` as `--set` takes them, another card, or the loss of an older transformers."""

    text: str
    overrides: tuple[str, ...] = ()
    device: Device | None = None
    has_older_loss: bool = False


def alternatives(settings: Settings, device: Device) -> Iterator[Alternative]:
    """Changes that might explain a miss; some do not apply to the model or the device, which their forecast tells."""
    for kernel, text in ATTENTION.items():
        if kernel != settings.model.attention:
            yield Alternative(text, (f"model.attention={kernel}",))
    if settings.optimizer.name in ("adamw", "sgd"):
        now = "fused" if settings.optimizer.implementation == "auto" else settings.optimizer.implementation
        for issue, text in ISSUED.items():
            if issue != now:
                yield Alternative(text, (f"optimizer.implementation={issue}",))
    for precision, sources in PRECISIONS.items():
        if settings.precision in sources:
            yield Alternative(f"the step computes in {precision}", (f"precision={precision}",))
    if settings.activation_checkpointing == "none":
        yield Alternative("blocks are recomputed in the backward pass", ("activation_checkpointing=blocks",))
    else:
        yield Alternative("nothing is recomputed: checkpointing is not in force", ("activation_checkpointing=none",))
    if settings.compile != "none":
        yield Alternative("the step runs eagerly: torch.compile fell back", ("compile=none",))
    if settings.workload in ("causal-lm", "masked-lm", "seq2seq-lm"):
        other = "full" if settings.cross_entropy == "chunked" else "chunked"
        meaning = "whole" if other == "full" else "a chunk at a time"
        yield Alternative(f"logits are computed {meaning}", (f"cross_entropy={other}",))
    if settings.workload == "causal-lm" and settings.cross_entropy == "full":
        yield Alternative(
            "transformers before 4.45: logits in fp32, copied once more for the loss", has_older_loss=True
        )
    yield from _paddings(settings)
    yield from _cards(device)


def _paddings(settings: Settings) -> Iterator[Alternative]:
    padding = settings.batch.padding
    if padding in ("longest", "bucketed"):
        yield Alternative("batches are padded to sequence_length", ("batch.padding=fixed",))
    if padding == "fixed" and settings.data.mean_tokens is not None:
        yield Alternative("batches are padded to their longest sample only", ("batch.padding=longest",))


def _cards(device: Device) -> Iterator[Alternative]:
    """Cards that go by the same name: other boards of the same chip."""
    for row in devices():
        if row.name != device.name and row.segment != "slice" and _chip(row.name) == _chip(device.name):
            yield Alternative(f"the card is another one: {row.name}", device=row)


def _chip(name: str) -> str:
    """What boards of one chip share of their names: a100-40gb and a100-80gb-pcie, rtx-3080-10gb and rtx-3080-12gb."""
    first = name.split("-")[0]
    return SIZE.sub("", name).rstrip("-") if first in PRODUCT_LINES else first


class OlderCausalLoss(CausalLM):
    """The loss of causal models in transformers before 4.45: fp32 logits, and a contiguous copy of all but the last.

    Source: `modeling_llama.py`, `LlamaForCausalLM.forward`, 4.28 to 4.44; the sum in place of the mean is ours.
    """

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Cross-entropy summed over valid labels."""
        inputs: dict[str, Any] = {key: value for key, value in batch.items() if key not in ("labels", "count")}
        assert not getattr(unwrapped(model), IN_CHUNKS, False)
        logits = model(**inputs).logits.float()
        shifted = logits[..., :-1, :].contiguous()
        labels = batch["labels"][..., 1:].contiguous().view(-1)
        flat = shifted.view(-1, shifted.shape[-1])
        return LossSum(F.cross_entropy(flat, labels, ignore_index=IGNORED, reduction="sum"))
