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

from forerun.trace import Call, Issuer
from forerun.units import MICRO

OPERATOR_HOST_SECONDS = 20 * MICRO
"""Host time to issue one operator from eager Python, modules and autograd included. From launch-bound steps of
transformers' attention benchmarks (OPT-350M beside an L40S, BERT-base beside an A100, 2024): they took 2.4 to 2.6
times what 8 and 2 microseconds would have made of them."""
VIEW_HOST_SECONDS = 5 * MICRO
"""Host time of an operator that launches no kernel; same steps."""
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


def host_seconds(call: Call, measured: float | None = None) -> float:
    """Seconds of the assumed host, or of one for which `calibrate` has `measured` so many for an operator.

    A replayed CUDA graph issues nothing.
    """
    if call.issuer == Issuer.GRAPH:
        return 0.0
    if call.issuer == Issuer.COMPILED:
        return 0.0 if call.is_view else COMPILED_HOST_SECONDS
    return _eager_seconds(call) * (1.0 if measured is None else measured / NETWORK_SECONDS)


def _eager_seconds(call: Call) -> float:
    name = call.name.partition(".")[2]
    if call.is_view:
        return VIEW_HOST_SECONDS
    if name.startswith(("_foreach_", "_fused_")) and call.arguments:
        first = call.arguments[0]
        each = FUSED_SECONDS if name.startswith("_fused_") else LISTED_SECONDS
        return LIST_SECONDS + each * (len(first) if isinstance(first, tuple) else 1)
    return UPDATE_SECONDS if call.issuer == Issuer.UPDATE else OPERATOR_HOST_SECONDS
