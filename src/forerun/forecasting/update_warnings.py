"""What a forecast says of the optimizer's update: what `auto` took, and work that every rank repeats."""

from forerun.settings.schema import Settings
from forerun.units import format_percent, format_seconds

WORTH_SAYING_SHARE = 0.1
"""Share of the step below which it makes little difference how the update is issued."""


def update_warnings(settings: Settings, optimizer_seconds: float, step_seconds: float) -> list[str]:
    """Sentences for the reader of a forecast on one of CUDA's GPUs."""
    return [
        *_fused_update(settings, optimizer_seconds, step_seconds),
        *_repeated_update(settings, optimizer_seconds),
    ]


def _fused_update(settings: Settings, optimizer_seconds: float, step_seconds: float) -> list[str]:
    """That `auto` is the fused kernel, where a plain loop's own default would cost: full fine-tuning."""
    optimizer, share = settings.optimizer, optimizer_seconds / max(step_seconds, optimizer_seconds, 1e-12)
    is_taken = optimizer.name == "adamw" and optimizer.implementation == "auto"
    is_elsewhere = settings.parallel.deepspeed_stage or settings.parallel.offload != "none"
    if not is_taken or is_elsewhere or share < WORTH_SAYING_SHARE:
        return []
    return [
        f"The update is {format_seconds(optimizer_seconds)}, {format_percent(share)} of the step, by the fused kernel "
        f"that transformers' Trainer takes. torch.optim.AdamW without fused=True goes through lists of tensors, which "
        f"takes longer and more memory: set optimizer.implementation to foreach for such a loop."
    ]


def _repeated_update(settings: Settings, optimizer_seconds: float) -> list[str]:
    """That each rank updates every matrix by Muon, and what others do; none where ranks hold shards or there is one."""
    parallel = settings.parallel
    if settings.optimizer.name != "muon" or parallel.kind != "ddp" or parallel.data_ranks == 1:
        return []
    share = format_seconds(optimizer_seconds / parallel.data_ranks)
    return [
        f"optimizer.name: each of {parallel.data_ranks} ranks updates all matrices, as PyTorch's Muon does: "
        f"{format_seconds(optimizer_seconds)} of the step. An update that is dealt over the ranks (nanochat's and "
        f"modded-nanogpt's own Muon) takes about {share} and a gathering of the weights: run its script by `exec`."
    ]
