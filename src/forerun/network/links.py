"""What links do: rates and latencies of one kind of link, as NCCL's protocols use it. Seconds and bytes per second.

NCCL has three protocols. LL sends 4 bytes of data with every 4 bytes of flag, LL128 120 of 128, Simple whole chunks
behind a memory fence: each waits less and carries more than the one before (arXiv:2507.04786, section 4; read).
"""

from pydantic import Field

from forerun.records import Record


class ProtocolRates(Record):
    """One of NCCL's protocols over one kind of link."""

    start_seconds: float
    """Of a collective, beside its steps."""
    hop_seconds: float
    """Of one step from a rank to the next."""
    bytes_per_second: float
    """That a rank sends in a ring, whatever the protocol adds to it."""


class PeerRates(Record):
    """Send and receive between pairs (all-to-all is made of them)."""

    start_seconds: float
    peer_seconds: float
    """For each further peer."""
    bytes_per_second: float


class MulticastRates(Record):
    """NVLink SHARP: the switch adds up, so each rank sends and receives a message once."""

    start_seconds: float
    bytes_per_second: float
    """Message bytes, whatever the number of ranks."""
    least_ranks: int = 6
    """In one machine: with fewer a ring is as fast (B200: ring to 5 ranks, NVLS from 6; NCCL 2.27.7)."""


class LinkCoefficients(Record):
    """How fast NCCL is inside one machine over one kind of link."""

    protocols: dict[str, ProtocolRates]
    """By name: `ll`, `ll128`, `simple`; a missing one is not used on such links."""
    peers: dict[str, PeerRates]
    """`ll` for small messages and `simple`."""
    local_steps: float = 0.0
    """Steps that each message passes in a GPU's own memory, beside those over links."""
    crowding: float = Field(default=0.0, ge=0)
    """Power by which a shared bus slows with the ranks on it beyond two; 0 where each GPU has links of its own."""
    multicast: MulticastRates | None = None


class NetworkCoefficients(Record):
    """How fast NCCL is between machines over one kind of network."""

    ring_fraction: float
    """Of the wire rate of a machine's adapters, in a ring and in sends."""
    tree_fraction: float
    """The same in trees."""
    latency_fraction: float = 1.0
    """Of the latency that a row of the network states, for one hop, beyond what NCCL takes for any network."""
    chunk_bytes: float = 0.0
    """That each GPU of a machine hands on at once in a tree through NVLink switches; its pipeline fills with them."""
    start_seconds: float = 0.0
    """Of any collective between machines, beside that of its protocol."""


class FittedLinks(Record):
    """Coefficients, and how well they answer for measurements that they were not fitted to."""

    coefficients: LinkCoefficients
    rows: int
    """Measurements that they were fitted to, and as many about that they were judged on."""
    error_fraction: float | None
    """Median error on the measurements kept apart; null where none was."""
    spread_fraction: float
    """What nine of ten such measurements were within; for links that were not measured, those of links left out."""


class FittedNetwork(Record):
    """The same between machines."""

    coefficients: NetworkCoefficients
    spread_fraction: float
    measured: bool
    """Fitted to timings of all-reduce over such a network; else derived, as `source` says."""
    source: str
