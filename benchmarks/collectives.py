"""Time of collectives: fit the coefficients of `forerun.network` on half of the published timings, judge on the rest.

    python benchmarks/collectives.py DATA [--write]      prints a table and one JSON line

DATA holds `opbench/aiconfigurator/nccl.csv.gz` (inside a machine; NVIDIA, Apache-2.0) and `clusters/collectives.csv`
(mostly between machines; sources in its own column). A group (GPU, collective and ranks; or one published run) is
fitted where the SHA-256 of its name is even, and judged where it is odd. Timings of one group and size, by other
versions of NCCL or types, count once, as their median. Beside it on the same rows: start + bytes / bandwidth for each
GPU, collective and number of ranks, fitted to all rows, which is what forecasts used before; and the same with one
start and bandwidth a kind of links, fitted to the fitted half. `--write` replaces `coefficients.json` in the package.
Method version 1.

Left out: algorithms that somebody forced, rows without a number of GPUs, and what was printed so coarsely that
rounding alone is 2 %. Between machines the program that timed 32 B200 adds a time of its own that is alike over a
factor of 100 in bytes, so that its rows below 64 MiB are judged but not fitted.
"""

import argparse
import csv
import gzip
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from forerun.network.algorithms import Kind, Layout, candidates
from forerun.network.catalogue import Fabric, fabric, fabrics, network
from forerun.network.collective import crossing_of
from forerun.network.links import (
    FittedLinks,
    FittedNetwork,
    LinkCoefficients,
    MulticastRates,
    NetworkCoefficients,
    PeerRates,
    ProtocolRates,
)
from forerun.units import MIB, MICRO

TARGET = Path(__file__).parents[1] / "src" / "forerun" / "network" / "coefficients.json"
FABRICS = {
    "a100_sxm": "nvlink3", "h100_sxm": "nvlink4", "h200_sxm": "nvlink4", "b200_sxm": "nvlink5", "b300_sxm": "nvlink5",
    "gb200": "nvlink5-nvl72", "gb300": "nvlink5-nvl72", "l40s": "pcie4-l40s",
    "rtx_pro_6000_server": "pcie5-rtx-pro-6000",
}  # fmt: skip
RUNS = {
    "stas:H200:8": ("nvlink4", None), "stas:H200:8-coll": ("nvlink4", None), "stas:B200-nvls": ("nvlink5", None),
    "aws:H100:16": ("nvlink4", "efa-p5"), "aws:H100:16-eks": ("nvlink4", "efa-p5"),
    "aws:H200:128": ("nvlink4", "efa-p5en"), "stas:H200:32": ("nvlink4", "efa-p5en"),
    "stas:B200:32": ("nvlink5", "efa-p6-b200"),
    "cw:GB200:144": ("nvlink5-nvl72", "azure-nd-gb200-v6"), "cw:GB200:1440": ("nvlink5-nvl72", "azure-nd-gb200-v6"),
}  # fmt: skip
"""Links of each published run; both racks of GB200 have one 400 Gb/s adapter a GPU. MI300X has no links here."""
FORCED = ("forced", "NVLS_ENABLE=0")
COARSE, FLOOR_RUN, FLOOR_BYTES = 0.02, "stas:B200:32", 64 * MIB
RIDGE = 0.05
"""Pull of each logarithm of a coefficient towards that of its family, in units of a row's logarithmic error."""
Array = NDArray[np.float64]
PROTOCOLS = ("ll", "ll128", "simple")
START = [5, 0.6, 0.08, 7, 1.2, 0.4, 12, 3, 0.8, 7, 0.2, 0.02, 13, 0.3, 0.65, 0.5, 1.0, 30, 0.55]
"""Microseconds to start and of a hop, share of the link, for each protocol; the same of pairs; then local steps,
crowding, and start and share of NVLS."""


@dataclass(frozen=True)
class Timing:
    """One published timing."""

    group: str
    source: str
    fabric: str
    network: str | None
    kind: Kind
    layout: Layout
    gpus_per_machine: int
    message_bytes: int
    seconds: float

    @property
    def is_fitted(self) -> bool:
        """Whether its group is in the half that is fitted."""
        return int(hashlib.sha256(self.group.encode()).hexdigest(), 16) % 2 == 0


def inside_rows(folder: Path) -> list[Timing]:
    """Timings within a machine by aiconfigurator."""
    times: dict[tuple[str, str, int, int], list[float]] = {}
    with gzip.open(folder / "opbench" / "aiconfigurator" / "nccl.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            size = int(float(row["message_size"])) * {"half": 2, "int8": 1}[row["nccl_dtype"]]
            key = row["system"], row["op_name"], int(row["num_gpus"]), size
            times.setdefault(key, []).append(float(row["latency_ms"]) / 1e3)
    kinds: dict[str, Kind] = {"alltoall": "all_to_all"}
    return [
        Timing(
            f"{system}:{name}:{ranks}", f"aiconfigurator {system}", FABRICS[system], None, kinds.get(name, name),  # type: ignore[arg-type]
            Layout(ranks), 8, size, statistics.median(listed),
        )
        for (system, name, ranks, size), listed in times.items()
    ]  # fmt: skip


def cluster_rows(folder: Path) -> list[Timing]:
    """Timings of `collectives.csv` that say enough."""
    rows = []
    with open(folder / "clusters" / "collectives.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = row["group"] in RUNS and float(row["bytes"]) > 0 and row["time_us"]
            if not known or any(word in row["algorithm"] for word in FORCED):
                continue
            bandwidth = float(row["busbw_gbps"] or 0)
            derived = "derived" in row["notes"]
            if derived and 0.005 / max(bandwidth, 1e-9) > COARSE:
                continue
            links, net = RUNS[row["group"]]
            ranks, domain = int(float(row["n_gpus"])), fabric(links).domain or 8
            machine = domain if domain > 8 else 8
            rows.append(
                Timing(
                    row["group"], row["family"], links, net, row["collective"],  # type: ignore[arg-type]
                    Layout(ranks, 1 if net is None else -(-ranks // machine)), machine, int(float(row["bytes"])),
                    float(row["time_us"]) * MICRO,
                )
            )  # fmt: skip
    return rows


def links_of(x: Array, row: Fabric, bytes_per_second: float) -> LinkCoefficients:
    """Coefficients for a link of so many bytes per second, from logarithms in the order of `START`."""
    e = [float(value) for value in np.exp(x)]
    names = (*PROTOCOLS, "peers-ll", "peers-simple")
    triples = {name: e[3 * i : 3 * i + 3] for i, name in enumerate(names)}

    def protocol(name: str) -> ProtocolRates:
        start, hop, share = triples[name]
        return ProtocolRates(
            start_seconds=start * MICRO, hop_seconds=hop * MICRO, bytes_per_second=share * bytes_per_second
        )

    def pairs(name: str) -> PeerRates:
        start, peer, share = triples[f"peers-{name}"]
        return PeerRates(
            start_seconds=start * MICRO, peer_seconds=peer * MICRO, bytes_per_second=share * bytes_per_second
        )

    switch = MulticastRates(start_seconds=e[17] * MICRO, bytes_per_second=e[18] * bytes_per_second)
    return LinkCoefficients(
        protocols={name: protocol(name) for name in PROTOCOLS},
        peers={name: pairs(name) for name in ("ll", "simple")},
        local_steps=e[15],
        crowding=e[16] if row.shared_bus else 0.0,
        multicast=switch if row.multicast else None,
    )


def predict(links: LinkCoefficients, row: Timing, rates: NetworkCoefficients | None = None) -> float:
    """Seconds of a timing by coefficients under trial."""
    crossing = None
    if row.network is not None and rates is not None:
        crossing = crossing_of(network(row.network), row.gpus_per_machine, row.layout, rates)
    return min(way.seconds for way in candidates(row.kind, row.message_bytes, row.layout, links, crossing))


def trial(x: Array, name: str) -> LinkCoefficients:
    """Coefficients of links of that name."""
    return links_of(x, fabric(name), fabric(name).bytes_per_second)


def errors(rows: Iterable[Timing], seconds: Callable[[Timing], float]) -> list[float]:
    """Relative errors, without sign."""
    return [abs(seconds(row) / row.seconds - 1) for row in rows]


def fit_links(rows: list[Timing], near: Array | None = None) -> Array:
    """Logarithms of coefficients that are nearest to the timings; near those of a family where they are given."""
    start = np.log(np.array(START, float)) if near is None else near

    def residuals(x: Array) -> list[float]:
        made = {name: trial(x, name) for name in {row.fabric for row in rows}}
        pull = [] if near is None else list(RIDGE * (x - near))
        return [float(np.log(predict(made[row.fabric], row) / row.seconds)) for row in rows] + pull

    bounds = (start - 4, start + 4)
    return least_squares(residuals, start, bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=60).x


def fit_network(rows: list[Timing], links: dict[str, LinkCoefficients]) -> NetworkCoefficients:
    """Shares of the wire and latencies of one kind of network."""

    def rates(x: Array) -> NetworkCoefficients:
        ring, tree, latency, chunk, start = (float(value) for value in x)
        return NetworkCoefficients(
            ring_fraction=ring, tree_fraction=tree, latency_fraction=latency, chunk_bytes=chunk * MIB,
            start_seconds=start * MICRO,
        )  # fmt: skip

    def residuals(x: Array) -> list[float]:
        return [float(np.log(predict(links[row.fabric], row, rates(x)) / row.seconds)) for row in rows]

    start, least, most = [0.9, 0.8, 0.3, 1.0, 5], [0.3, 0.3, 0, 0, 0], [1, 1, 1, 8, 60]
    return rates(least_squares(residuals, start, bounds=(least, most), loss="soft_l1", f_scale=0.1).x)


def alpha_beta(rows: list[Timing], judged: list[Timing], key: Callable[[Timing], Any]) -> dict[int, float]:
    """Seconds of `judged` by a start and a bandwidth for each key, fitted to `rows`; by position of the timing."""
    seconds: dict[int, float] = {}
    for name in {key(row) for row in judged}:
        chosen = [row for row in rows if key(row) == name]
        if not chosen:
            continue
        times = np.array([row.seconds for row in chosen])
        wire = np.array([on_the_wire(row) for row in chosen])

        def residuals(x: Array, wire: Array = wire, times: Array = times) -> Array:
            return np.log((np.exp(x[0]) + wire / np.exp(x[1])) / times)

        x = least_squares(residuals, [np.log(1e-5), np.log(1e11)], loss="soft_l1", f_scale=0.1).x
        for i, row in enumerate(judged):
            if key(row) == name:
                seconds[i] = float(np.exp(x[0]) + on_the_wire(row) / np.exp(x[1]))
    return seconds


def on_the_wire(row: Timing) -> float:
    """Bytes that a ring passes through each link."""
    ranks = row.layout.ranks
    return (2 if row.kind == "all_reduce" else 1) * row.message_bytes * (ranks - 1) / ranks


def quantiles(values: list[float]) -> dict[str, float]:
    """Number, median and ninth decile."""
    middle, most = (round(float(np.quantile(values, share)), 4) for share in (0.5, 0.9))
    return {"rows": len(values), "median": middle, "p90": most}


def fit_inside(rows: list[Timing]) -> tuple[dict[str, Any], dict[str, Any], dict[str, LinkCoefficients]]:
    """Entries of links and of families for the file, and coefficients of each kind of links."""
    entries: dict[str, Any] = {}
    families: dict[str, Any] = {}
    made: dict[str, LinkCoefficients] = {}
    for family in ("nvlink", "pcie"):
        here = [row for row in rows if row.network is None and fabric(row.fabric).family == family]
        names = sorted({row.fabric for row in here})
        pooled = fit_links([row for row in here if row.is_fitted])
        left_out: list[float] = []
        for name in names:
            own, judged = fit_links([r for r in here if r.is_fitted and r.fabric == name], pooled), []
            made[name] = trial(own, name)
            judged = [row for row in here if row.fabric == name and not row.is_fitted]
            off = errors(judged, lambda row, name=name: predict(made[name], row))
            count = sum(row.is_fitted for row in here if row.fabric == name)
            entries[name] = FittedLinks(
                coefficients=made[name], rows=count, error_fraction=float(np.median(off)),
                spread_fraction=float(np.quantile(off, 0.9)),
            ).model_dump()  # fmt: skip
            others = trial(fit_links([r for r in here if r.is_fitted and r.fabric != name]), name)
            mine = errors(judged, lambda row, others=others: predict(others, row))
            print(f"  {name:20} own {np.median(off):6.1%}, left out {np.median(mine):6.1%}, of {len(judged)} rows")
            left_out += mine
        some = next(row for row in fabrics() if row.family == family and (row.multicast or family == "pcie"))
        families[family] = FittedLinks(
            coefficients=links_of(pooled, some, 1.0), rows=sum(r.is_fitted for r in here),
            error_fraction=float(np.median(left_out)), spread_fraction=float(np.quantile(left_out, 0.9)),
        ).model_dump()  # fmt: skip
    return entries, families, made


RDMA_SHARE = 0.93
"""Of the wire in a ring: 91 and 96 of 100 GB/s over four HDR adapters a machine of eight A100 (NVIDIA/nccl-tests
issues 100 and 119, read); the middle. 75 of 100 over eight RoCE adapters with NCCL 2.7 was called low (nccl 495)."""
TCP_SHARE = 0.5
"""60 % of 32 Gb/s and 4 to 6 GB/s of 100 Gb/s (NVIDIA/nccl issues 209 and 450, read): about half."""


def network_entries(efa: NetworkCoefficients, off: list[float]) -> dict[str, Any]:
    """Entries of the networks: one fitted, the others from what was published of them and NCCL's own constants."""
    tree = efa.tree_fraction / efa.ring_fraction
    rdma = NetworkCoefficients(ring_fraction=RDMA_SHARE, tree_fraction=RDMA_SHARE * tree, chunk_bytes=efa.chunk_bytes)
    tcp = NetworkCoefficients(ring_fraction=TCP_SHARE, tree_fraction=TCP_SHARE * tree, chunk_bytes=efa.chunk_bytes)
    spread = float(np.quantile(off, 0.9))
    texts = {
        "infiniband": (
            rdma,
            False,
            0.25,
            "91 to 96 % of the wire: NVIDIA/nccl-tests issues 100, 119",
        ),
        "roce": (rdma, False, 0.35, "taken as InfiniBand; NVIDIA/nccl issue 495 has 75 % with NCCL 2.7"),
        "efa": (efa, True, spread, "fitted to all-reduce on AWS p5 and p6-b200"),
        "tcpx": (efa, False, 0.5, "taken as EFA: offloaded sockets; no timings read"),
        "tcp": (tcp, False, 0.5, "about half of the wire: NVIDIA/nccl issues 209, 450; latency: nccl-tests issue 82"),
    }
    return {
        kind: FittedNetwork(coefficients=rates, measured=measured, spread_fraction=width, source=source).model_dump()
        for kind, (rates, measured, width, source) in texts.items()
    }


def table_of(judged: list[Timing], columns: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """Errors by source, kind and machines, for each way to forecast."""
    keys = sorted({(r.source, r.kind, "across" if r.network else "inside") for r in judged})
    lines = []
    for key in [*keys, ("all", "all", "inside"), ("all", "all", "across")]:
        rows = [
            i for i, r in enumerate(judged)
            if (r.source, r.kind, "across" if r.network else "inside") == key
            or (key[0] == "all" and (r.network is not None) == (key[2] == "across"))
        ]  # fmt: skip
        line: dict[str, Any] = {"source": key[0], "kind": key[1], "machines": key[2]}
        for name, seconds in columns.items():
            off = [abs(seconds[i] / judged[i].seconds - 1) for i in rows if i in seconds]
            line[name] = quantiles(off) if off else None
        lines.append(line)
    return lines


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows = inside_rows(asked.data) + cluster_rows(asked.data)
    judged = [row for row in rows if not row.is_fitted]
    entries, families, made = fit_inside(rows)
    between = [row for row in rows if row.network is not None]
    fitted = [r for r in between if r.is_fitted and (r.group != FLOOR_RUN or r.message_bytes >= FLOOR_BYTES)]
    efa = fit_network(fitted, made)
    over_efa = [row for row in between if not row.is_fitted and network(row.network or "").kind == "efa"]
    off = errors(over_efa, lambda row: predict(made[row.fabric], row, efa))
    networks = network_entries(efa, off)
    print(f"EFA, fitted to {len(fitted)} rows: {efa}")
    kinds = {name: NetworkCoefficients(**entry["coefficients"]) for name, entry in networks.items()}

    def ours(row: Timing) -> float:
        return predict(made[row.fabric], row, None if row.network is None else kinds[network(row.network).kind])

    columns = {
        "forerun": {i: ours(row) for i, row in enumerate(judged)},
        "before": alpha_beta(
            [r for r in rows if r.network is None], judged, lambda r: (r.source, r.kind, r.layout.ranks, r.network)
        ),
        "one line": alpha_beta([r for r in rows if r.is_fitted], judged, lambda r: (r.fabric, r.network is None)),
    }  # fmt: skip
    lines = table_of(judged, columns)
    for line in lines:
        cells = [
            f"{c['median']:7.1%} {c['p90']:8.1%} {c['rows']:5d}" if c else " " * 22 for c in (line[n] for n in columns)
        ]
        print(f"{line['source']:34} {line['kind']:15} {line['machines']:7} " + " | ".join(cells))
    if asked.write:
        document = {
            "source": "ai-dynamo/aiconfigurator 095f58a51 (2026-08-21, Apache-2.0, NVIDIA), NCCL timings; AWS's "
            "nccl-tests (aws-samples/awsome-distributed-training 7217859f); B200 by stas00/ml-engineering 744d01e",
            "made_by": "benchmarks/collectives.py, method version 1",
            "fabrics": entries, "families": families, "networks": networks,
        }  # fmt: skip
        TARGET.write_text(json.dumps(rounded(document), indent=1) + "\n", encoding="utf-8")
        print(TARGET, TARGET.stat().st_size, "bytes")
    print(json.dumps({"benchmark": "collectives", "version": 1, "rows": len(judged), "lines": lines}))


def rounded(value: Any) -> Any:
    """Four significant digits, which is more than the timings have."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
