"""What an operator costs the host that issues it, from Python to the launch, modules and autograd included.

Eager operators cost about the same, whatever they compute, but for three kinds. The loops over parameters that
`foreach` and `fused` optimizers are cost the host for every tensor of their lists, not for every kernel. Updates that
are written by hand have no modules around them and leave no graph. And what activation checkpointing runs again it has
also followed tensor by tensor in the forward pass. (Convolutions, which seemed to cost five times as much in small
networks after a wait for the GPU, do not in whole programs: docs/log.md, 26 November.)

Sources: launch-bound steps of transformers' attention benchmarks (2024) for operators and views; for the rest 33 steps
of small models on the host of an H100 (benchmarks/truth/hosts-h100-80gb.csv, 2026), of which the median error was 27 %
with operators and views alone (all but six too short) and is printed by `python -m benchmarks.truth.hosts`.
"""

from forerun.trace import RANDOM_ELEMENTS, Call, Issuer
from forerun.units import GIGA, MICRO, NANO

OPERATOR_HOST_SECONDS = 20 * MICRO
"""Host time to issue one operator from eager Python, modules and autograd included. From launch-bound steps of
transformers' attention benchmarks (OPT-350M beside an L40S, BERT-base beside an A100, 2024): they took 2.4 to 2.6
times what 8 and 2 microseconds would have made of them."""
VIEW_HOST_SECONDS = 5 * MICRO
"""Host time of an operator that launches no kernel; same steps."""
MODULES_SHARE = 1.8
"""Host time behind a kernel of compiled blocks that stand for Megatron-Core's own, to one of eager PyTorch: a layer of
a mixture of Megatron-Core 0.16.1, its own modules, is 131 kernels and 150 views there and back, which `forerun exec`
counts, where compiled ones are 78 and 66."""
DISPATCHER_SECONDS, EXPERT_SECONDS = 170 * MICRO, 46 * MICRO
"""Host time of a call of Megatron-Core's dispatcher or of Transformer Engine's grouped layers, and more for each expert
of a grouped product, for which tensors are made and kernels launched. Fitted to two published runs that wait for their
host: Qwen3-235B on B200 in MXFP8, and Qwen3-30B on H100 whose exchanges are hidden (docs/log.md, 29 November)."""
BY_EXPERT = 3
"""Dimensions of the weights of all experts."""
COMPILED_HOST_SECONDS = 8 * MICRO
"""Host time to issue one kernel from compiled code; stated, not fitted."""
LIST_SECONDS = 80 * MICRO
"""Of an operator on lists of tensors, before its tensors are counted."""
LISTED_SECONDS, FUSED_SECONDS = 2.1 * MICRO, 10 * MICRO
"""For each tensor of its first list: of AdamW's eight operators, and of the one of a fused optimizer, whose loop over
parameters costs as much. An update of 4 to 244 tensors took 1.0 to 5.8 ms."""
UPDATE_SECONDS = 13 * MICRO
"""Of an operator of an update without lists: 840 of Adam's took 11.2 ms."""
RECOMPUTED_SHARE = 2.0
"""Of what checkpointing runs again, for `RankClock.play`: the passes of one network took 20 ms more than their
operators, as much again as the forward pass."""
NETWORK_SECONDS = 22 * MICRO
"""What `calibrate` measures on the host that is assumed here (`step_overhead_seconds`). It said 23 and 24.5 beside the
H100, whose 33 steps want 1.1 times the assumed host's."""
RANDOM_SECONDS = {
    "randn": 4.4 * NANO, "normal": 4.4 * NANO, "rand": 2.6 * NANO, "uniform": 2.6 * NANO, "randint": 3.1 * NANO,
    "random": 3.1 * NANO, "bernoulli": 10 * NANO, "randperm": 13 * NANO,
}  # fmt: skip
"""Of one random number that the host makes, on one core, for its generator is one for all threads; four million at
once with PyTorch 2.13 on a Xeon of 2021 (docs/log.md, 26 November)."""
OTHER_RANDOM_SECONDS = 10 * NANO
"""Of one of another distribution; stated."""
PASS_BYTES_PER_SECOND = 20 * GIGA
"""Read and written by one core that adds or copies tensors of 16 MB, on the same Xeon."""
STAGING_BYTES_PER_SECOND = 40 * GIGA
"""Bytes of pageable memory that come to where the card reads them, beside the card's own copy: 14 to 18 GB/s in all,
where pinned memory had 22 to 24 (RTX 4090, PCIe 4.0, 1 to 16 MiB: github.com/NVlabs/cuda-oxide, pull request 976)."""


def host_seconds(call: Call, measured: float | None = None) -> float:
    """Seconds of the assumed host, or of one for which `calibrate` has `measured` so many for an operator.

    A replayed CUDA graph issues nothing.
    """
    if call.issuer == Issuer.GRAPH:
        return 0.0
    if call.issuer == Issuer.HOST:
        return _own_seconds(call)
    if call.issuer == Issuer.COMPILED:
        return 0.0 if call.is_view else COMPILED_HOST_SECONDS
    seconds = _eager_seconds(call) * (1.0 if measured is None else measured / NETWORK_SECONDS)
    return seconds * MODULES_SHARE if call.issuer == Issuer.MODULES else seconds


def _eager_seconds(call: Call) -> float:
    name = call.name.partition(".")[2]
    if call.is_view:
        return VIEW_HOST_SECONDS
    if call.issuer == Issuer.EXPERTS:
        weights = [spec.shape[0] for spec in (*call.inputs, *call.outputs) if len(spec.shape) == BY_EXPERT]
        return DISPATCHER_SECONDS + EXPERT_SECONDS * max(weights, default=0)
    if name.startswith(("_foreach_", "_fused_")) and call.arguments:
        first = call.arguments[0]
        each = FUSED_SECONDS if name.startswith("_fused_") else LISTED_SECONDS
        return LIST_SECONDS + each * (len(first) if isinstance(first, tuple) else 1)
    return UPDATE_SECONDS if call.issuer == Issuer.UPDATE else OPERATOR_HOST_SECONDS


def _own_seconds(call: Call) -> float:
    """Of what the host computes itself."""
    name = call.name.removeprefix("host.").removeprefix("aten.").partition(".")[0]
    if name == "staged_copy":
        return call.bytes_read / STAGING_BYTES_PER_SECOND
    passing = (call.bytes_read + call.bytes_written) / PASS_BYTES_PER_SECOND
    numbers = dict(call.keywords).get(RANDOM_ELEMENTS, 0)
    each = RANDOM_SECONDS.get(name.removesuffix("_").removesuffix("_like"), OTHER_RANDOM_SECONDS)
    return max(passing, numbers * each)
