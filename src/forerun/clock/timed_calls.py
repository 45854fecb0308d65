"""What the clock needs to know of each distinct call of a trace, as plain data: a rank hands it to others."""

from collections.abc import Sequence
from enum import StrEnum

from forerun.clock.costs import Costs
from forerun.records import Record
from forerun.trace import (
    AWAITED,
    BESIDE_HOST,
    BETWEEN_RANKS,
    CARD,
    CARD_BYTES,
    HOST_BYTES,
    MESSAGES,
    PEER,
    RANKS,
    STREAM,
    Call,
)


class Role(StrEnum):
    """What a call does to the clocks."""

    KERNEL = "kernel"
    """Runs on the device's own stream; one that launches nothing takes no time there."""
    COPY_OUT = "copy-out"
    """A kernel that needs the weights that were gathered last: FSDP2 copies them out of their buffer before a block
    runs (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:280-298, 2.13)."""
    GATHER = "gather"
    """Brings together what is there already, so that it begins as soon as it is issued."""
    COLLECTIVE = "collective"
    """Begins when the device has made what is exchanged."""
    AWAITED = "awaited"
    """A collective whose result is read by what follows."""
    SEND = "send"
    RECEIVE = "receive"
    BESIDE_HOST = "beside-host"
    """Moves or updates what lives on the host."""
    FROM_HOST = "from-host"
    """Brings a part of what is gathered next, on a stream of its own."""
    TO_HOST = "to-host"
    """Takes away what an exchange brought, on that exchange's stream."""


EXCHANGES = frozenset({Role.GATHER, Role.COLLECTIVE, Role.AWAITED, Role.SEND, Role.RECEIVE})
"""What other ranks take part in."""
MESSAGE_ROLES = frozenset({Role.SEND, Role.RECEIVE})
WITH_HOST = frozenset({Role.BESIDE_HOST, Role.FROM_HOST, Role.TO_HOST})
"""What goes over the link to the host beside the device's work."""


PRODUCTS = ("aten.mm.", "aten.addmm.", "aten._scaled_mm.")
"""Parts of names: products of a layer, beside which what split layers exchange can go in parts."""
TO_EXPERTS = "_c10d_functional.all_to_all_single"
"""Beginning of the name of what sends rows to experts and back."""
IN_PARTS = {"_c10d_functional.all_gather_into_tensor.": True, "_c10d_functional.reduce_scatter_tensor.": False}
"""Exchanges of split layers that can → whether the product comes after."""


class TimedCall(Record):
    """One distinct call with its times at the costs of a device."""

    name: str
    role: Role
    device_seconds: float
    host_seconds: float
    syncs: bool = False
    """The host waits for the device."""
    has_flops: bool = False
    is_product: bool = False
    """A product of a layer."""
    before_product: bool | None = None
    """Of an exchange that goes in parts beside products whether they come after it; None of others."""
    ranks: tuple[int, ...] = ()
    """Those that take part in an exchange, by their numbers in the job; empty where nobody noted them."""
    peer: int | None = None
    """The other rank of a message."""
    card: int = 0
    """Number of the card that it runs on, where one process drives several."""
    other_card: int | None = None
    """The card that it copies from."""
    times: int = 1
    """How many run in its place; the seconds are of all."""


def timed_calls(
    calls: Sequence[Call], costs: Costs, *, in_parts: bool = False, experts_beside: bool = False,
    blocks_launches: bool = False,
) -> list[TimedCall]:  # fmt: skip
    """Every call with its times, in order.

    `in_parts`: what split layers exchange goes in parts beside products. `experts_beside`: nothing of the same pass
    waits for what goes to experts and back, as it goes beside that of another micro-batch. `blocks_launches`: the host
    waits for every kernel.
    """
    timed = []
    roles = [role_of(call) for call in calls]
    gathers = Role.GATHER in roles
    for call, role in zip(calls, roles, strict=True):
        keywords = dict(call.keywords)
        comes_before = next((before for part, before in IN_PARTS.items() if in_parts and part in call.name), None)
        role = _role_beside_host(call) if gathers and role is Role.KERNEL else role
        is_beside = experts_beside and call.name.startswith(TO_EXPERTS)
        timed.append(
            TimedCall(
                name=call.name, role=Role.COLLECTIVE if is_beside else role,
                device_seconds=costs.device_seconds(call) * call.times,
                host_seconds=costs.host_seconds(call) * call.times,
                times=call.times, syncs=call.syncs or (blocks_launches and not call.is_view),
                has_flops=bool(call.flops),
                is_product=any(part in call.name for part in PRODUCTS), before_product=comes_before,
                ranks=tuple(keywords.get(RANKS, ())), peer=keywords.get(PEER), card=keywords.get(CARD, 0),
                other_card=keywords[CARD_BYTES][0] if CARD_BYTES in keywords else None,
            )
        )  # fmt: skip
    return timed


def _role_beside_host(call: Call) -> Role:
    """Of a copy between host and device on another stream, as FSDP's offloading issues it beside its exchanges.

    Elsewhere nobody notes who waits for it.
    """
    keywords = dict(call.keywords)
    if HOST_BYTES not in keywords or STREAM not in keywords:
        return Role.KERNEL
    return Role.FROM_HOST if call.outputs else Role.TO_HOST


def role_of(call: Call) -> Role:
    """What a call does to the clocks, by its name."""
    if call.name.startswith(MESSAGES):
        return Role.SEND if call.name.startswith(MESSAGES[0]) else Role.RECEIVE
    if call.name.startswith(AWAITED):
        return Role.AWAITED
    if call.name.startswith(BETWEEN_RANKS):
        return Role.GATHER if "allgather" in call.name else Role.COLLECTIVE
    if call.name.startswith(BESIDE_HOST):
        return Role.BESIDE_HOST
    return Role.COPY_OUT if "split_with_sizes_copy" in call.name else Role.KERNEL
