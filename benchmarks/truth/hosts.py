"""What the host needs to issue a step: the clock's figure beside those of `measure_hosts.py`.

    python -m benchmarks.truth.hosts [--dump FILE]

Each step is traced on the virtual twin of the card, with the same libraries (timm and peft among them), and its calls
are priced one by one. Prints a table of errors, (forecast - measured) / measured in percent, and one JSON line;
`--dump` writes how often each phase calls what.
"""

import argparse
import csv
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from benchmarks.truth.measure_hosts import Step, bound, steps

from forerun.clock.priors import PriorCosts
from forerun.hardware.catalogue import device
from forerun.trace import Call, Phase
from forerun.virtual.session import VirtualSession

MEASURED = Path(__file__).parent / "hosts-h100-80gb.csv"
GPU = "h100-80gb"
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "update": Phase.OPTIMIZER}


def calls_of(step: Step) -> dict[str, list[Call]]:
    """Calls of each phase of a warm step."""
    with VirtualSession(device(GPU)) as session:
        place, cuda = session.torch_device, (torch.nn.Module.cuda, torch.Tensor.cuda)
        torch.nn.Module.cuda = lambda self, *_: self.to(place)  # type: ignore[method-assign]
        torch.Tensor.cuda = lambda self, *_: self.to(place)  # type: ignore[method-assign]
        try:
            _, forward, optimizer = bound(step, place.type)
            recorder = session.recorder
            for _ in range(2):
                done = len(recorder.trace.ops)
                with recorder.phase(Phase.FORWARD, 0):
                    loss = forward()
                with recorder.phase(Phase.BACKWARD, 0):
                    loss.backward()
                with recorder.phase(Phase.OPTIMIZER):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                del loss
        finally:
            torch.nn.Module.cuda, torch.Tensor.cuda = cuda  # type: ignore[method-assign]
        trace = recorder.trace
        return {
            name: [trace.calls[op.call] for op in trace.ops[done:] if op.phase is phase]
            for name, phase in PHASES.items()
        }


def measured() -> dict[str, dict[str, float]]:
    """Host seconds of each phase by the step's name."""
    with open(MEASURED, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["error"]]
    return {row["name"]: {phase: float(row[f"{phase}_seconds"]) for phase in PHASES} for row in rows}


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", type=Path)
    options = parser.parse_args()
    costs, truth, errors, dumped = PriorCosts(device(GPU)), measured(), [], {}
    print(f"{'':36}{'forward':>22}{'backward':>22}{'update':>22}{'all':>9}")
    for step in steps():
        if step.name not in truth:
            continue
        try:
            calls, rows = calls_of(step), truth[step.name]
        except Exception as error:
            print(f"{step.name:36}not traced: {error}")
            continue
        ours = {phase: sum(map(costs.host_seconds, calls[phase])) for phase in PHASES}
        error = sum(ours.values()) / sum(rows.values()) - 1
        errors.append(error)
        cells = "".join(f"{1e3 * ours[p]:10.2f}/{1e3 * rows[p]:5.2f} ms  " for p in PHASES)
        print(f"{step.name:36}{cells} {100 * error:+8.1f} %", flush=True)
        dumped[step.name] = {"measured": rows, "calls": {phase: Counter(map(_described, own)).most_common()
                                                        for phase, own in calls.items()}}  # fmt: skip
    sizes = sorted(map(abs, errors))
    result: dict[str, Any] = {
        "benchmark": "hosts", "gpu": GPU, "rows": len(sizes), "median": statistics.median(sizes),
        "bias": statistics.median(errors), "p90": sizes[round(0.9 * (len(sizes) - 1))],
    }  # fmt: skip
    print(json.dumps(result))
    if options.dump:
        options.dump.write_text(json.dumps(dumped), encoding="utf-8")


def _described(call: Call) -> str:
    return f"{call.issuer} {call.name}" + (" (view)" if call.is_view else "")


if __name__ == "__main__":
    main()
