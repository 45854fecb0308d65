"""Forecast against measured warm steps on the CPU of this machine, over families, sizes, lengths and settings.

    python benchmarks/cpu_steps.py [--only TEXT] [--seconds 4]     prints a table and one JSON line

Each configuration runs twice, each time in a process of its own: forecast, then real steps on random tokens, three to
warm up, then at least ten and at least `--seconds` of them. Measured is their mean. Before the first the machine is
calibrated; the second forecast knows the first run from a ledger. Method version 1.
"""

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
LLAMA = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
         "intermediate_size": 1376, "vocab_size": 32000}  # fmt: skip
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 4}
LORA = {"kind": "lora", "rank": 8}
CLASSIFY, CAUSAL, SEQ2SEQ = "sequence-classification", "causal-lm", "seq2seq-lm"


def _case(workload: str, name: str, size: int, length: int, config: dict[str, Any] | None = None, **more: Any) -> dict:
    batch = {"micro_batch_size": size, "sequence_length": length, **more.pop("batch", {})}
    return {"workload": workload, "model": {"name": name, "config": config or {}, **more.pop("model", {})},
            "batch": batch, **more}  # fmt: skip


CASES: dict[str, dict[str, Any]] = {
    "bert-base 4 x 64": _case(CLASSIFY, "bert-base-uncased", 4, 64),
    "bert-base 2 x 128 bf16-mixed": _case(CLASSIFY, "bert-base-uncased", 2, 128, precision="bf16-mixed"),
    "bert-base 4 x 128 LoRA": _case(CLASSIFY, "bert-base-uncased", 4, 128, adapter=LORA),
    "bert-base 4 x 64 for-loop AdamW": _case(
        CLASSIFY, "bert-base-uncased", 4, 64, optimizer={"implementation": "for-loop"}
    ),
    "bert-small 8 x 32": _case(CLASSIFY, "bert-base-uncased", 8, 32, SMALL),
    "minilm 16 x 128": _case(CLASSIFY, "minilm-l6", 16, 128),
    "minilm 32 x 64 SGD": _case(CLASSIFY, "minilm-l6", 32, 64, optimizer={"name": "sgd"}),
    "minilm 16 x 128 checkpointing": _case(CLASSIFY, "minilm-l6", 16, 128, activation_checkpointing="blocks"),
    "minilm 16 x 128 compile": _case(CLASSIFY, "minilm-l6", 16, 128, compile="default"),
    "minilm 16 x 128 bf16-mixed": _case(CLASSIFY, "minilm-l6", 16, 128, precision="bf16-mixed"),
    "minilm 4 x 256 clipped": _case(CLASSIFY, "minilm-l6", 4, 256, optimizer={"max_gradient_norm": 1.0}),
    "distilbert 4 x 128": _case(CLASSIFY, "distilbert-base-uncased", 4, 128),
    "electra-small 8 x 128": _case(CLASSIFY, "electra-base-discriminator", 8, 128, SMALL),
    "roberta-small 8 x 128 eager": _case(CLASSIFY, "roberta-base", 8, 128, SMALL, model={"attention": "eager"}),
    "gpt2-small 4 x 128": _case(CAUSAL, "gpt2", 4, 128, GPT2),
    "gpt2-small 4 x 128 accumulation 4": _case(CAUSAL, "gpt2", 4, 128, GPT2, batch={"gradient_accumulation_steps": 4}),
    "gpt2-small 4 x 128 compile": _case(CAUSAL, "gpt2", 4, 128, GPT2, compile="default"),
    "gpt2 1 x 128": _case(CAUSAL, "gpt2", 1, 128),
    "llama-small 2 x 256": _case(CAUSAL, "llama-7b", 2, 256, LLAMA),
    "llama-small 2 x 256 LoRA": _case(CAUSAL, "llama-7b", 2, 256, LLAMA, adapter=LORA),
    "llama-small 2 x 256 LoRA nf4": _case(CAUSAL, "llama-7b", 2, 256, LLAMA, adapter=LORA, quantization="nf4"),
    "llama-small 2 x 256 LoRA int8": _case(
        CAUSAL, "llama-7b", 2, 256, LLAMA, adapter=LORA, quantization="int8", precision="bf16-mixed"
    ),
    "llama-small 2 x 256 checkpointing": _case(CAUSAL, "llama-7b", 2, 256, LLAMA, activation_checkpointing="blocks"),
    "llama-small 2 x 256 bf16-true": _case(CAUSAL, "llama-7b", 2, 256, LLAMA, precision="bf16-true"),
    "llama-small 1 x 1024": _case(CAUSAL, "llama-7b", 1, 1024, LLAMA),
    "llama-small 8 x 32 Lion": _case(CAUSAL, "llama-7b", 8, 32, LLAMA, optimizer={"name": "lion"}),
    "t5-small 4 x 64": _case(SEQ2SEQ, "t5-small", 4, 64),
    "t5-small 2 x 128 bf16-mixed": _case(SEQ2SEQ, "t5-small", 2, 128, precision="bf16-mixed"),
    "smollm2 1 x 64 LoRA": _case(CAUSAL, "smollm2-135m", 1, 64, adapter=LORA),
    "pythia-small 4 x 128": _case(CAUSAL, "pythia-160m", 4, 128, SMALL),
}


def measure_one(case: dict[str, Any], seconds: float, url: str) -> dict[str, Any]:
    """Forecast and measured step of one configuration, in this process; both are entered in the ledger at `url`."""
    import torch

    import forerun
    from forerun.hardware.host_memory import freed_memory_held
    from forerun.ledger.store import open_ledger
    from forerun.records import MeasuredMemory, MeasuredRun, MeasuredStep, Measurement, RunPhases, StepPhases
    from forerun.settings.load import settings_from
    from forerun.step.build import build_step
    from forerun.step.heads import generic_workload
    from forerun.step.training_step import StepObserver

    settings = settings_from({"name": "case", "data": {"examples": 10_000}, **case})
    start = time.perf_counter()
    forecast = forerun.forecast(settings, gpu="cpu", ledger=url)
    took = time.perf_counter() - start
    workload = generic_workload(settings.workload)
    torch.manual_seed(0)
    step = build_step(settings, workload, "cpu", pretrained=False)
    shape, batches = settings.batch, []
    for _ in range(shape.gradient_accumulation_steps):
        batch = workload.example_batch(settings, shape.micro_batch_size, shape.sequence_length)
        for key in {"input_ids", "decoder_input_ids"} & set(batch):
            batch[key] = torch.randint(3, 1000, batch[key].shape)
        batches.append(batch)
    step_times: list[float] = []
    with freed_memory_held():  # as training does
        while len(step_times) < 13 or sum(step_times[3:]) < seconds:
            start = time.perf_counter()
            float(step.run(batches, StepObserver()).loss)
            step_times.append(time.perf_counter() - start)
    measured = statistics.fmean(step_times[3:])
    with open_ledger(url) as ledger:
        run = ledger.start_run(name="case", workload=settings.workload, settings=settings.model_dump(mode="json"),
                               settings_hash=settings.hash, gpu="cpu", folder="", versions={})  # fmt: skip
        ledger.record_forecast(run, forecast)
        ledger.record_measurement(run, Measurement(
            settings_hash=settings.hash, gpu="cpu", parameters=forecast.parameters,
            memory=MeasuredMemory(
                peak_allocated_bytes=None, peak_reserved_bytes=None, device_bytes=None, method="not measured"
            ),
            step=MeasuredStep(
                seconds=measured, phases=StepPhases(host_seconds=measured), tokens_per_second=0.0,
                samples_per_second=0.0,
            ),
            run=MeasuredRun(
                steps_per_epoch=len(step_times), total_steps=len(step_times), checkpoints_written=0, checkpoint_bytes=0,
                seconds=sum(step_times), phases=RunPhases(training_seconds=sum(step_times)),
            ),
        ))  # fmt: skip
    expected = forecast.step.seconds
    return {
        "forecast": expected.expected, "measured": measured, "error": expected.expected / measured - 1,
        "inside": expected.optimistic <= measured <= expected.conservative, "steps": len(step_times) - 3, "took": took,
    }  # fmt: skip


def in_a_process(name: str, seconds: float, url: str) -> dict[str, Any]:
    """`measure_one` in a process of its own."""
    command = [sys.executable, __file__, "--case", name, "--seconds", str(seconds), "--ledger", url]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{name}: {result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def summary(rows: list[dict[str, Any]], which: str) -> dict[str, float]:
    """Median and P90 of the absolute error, bias, and the share inside the range."""
    errors = [row[which]["error"] for row in rows]
    absolute = sorted(map(abs, errors))
    return {
        "rows": len(rows), "median": statistics.median(absolute), "p90": absolute[round(0.9 * (len(rows) - 1))],
        "bias": statistics.median(errors), "inside": statistics.fmean(row[which]["inside"] for row in rows),
    }  # fmt: skip


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Configurations whose name contains this.")
    parser.add_argument("--seconds", type=float, default=4.0, help="Measure steps for at least this long.")
    parser.add_argument("--case", help="Measure this one in the process itself and print its JSON.")
    parser.add_argument("--ledger", help="Where --case finds its calibration and enters its run.")
    parser.add_argument("--to", type=Path, help="Write the JSON line to this file too.")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure_one(CASES[options.case], options.seconds, options.ledger)))
        return
    rows = []
    print(
        f"{'configuration':36} {'forecast ms':>11} {'measured ms':>11} {'error':>7}    {'after one run':>13}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        calibrated = Path(folder) / "calibrated.sqlite"
        environment = {**os.environ, "FORERUN_LEDGER": f"sqlite:///{calibrated}"}
        command = [str(Path(sys.executable).with_name("forerun")), "calibrate", "--json"]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        for number, name in enumerate(name for name in CASES if options.only in name):
            own = Path(folder) / f"{number}.sqlite"
            shutil.copy(calibrated, own)
            first = in_a_process(name, options.seconds, f"sqlite:///{own}")
            second = in_a_process(name, options.seconds, f"sqlite:///{own}")
            rows.append({"configuration": name, "first": first, "second": second})
            print(f"{name:36} {1e3 * first['forecast']:11.1f} {1e3 * first['measured']:11.1f} {first['error']:+7.1%} "
                  f"{' ' if first['inside'] else '!'} {second['error']:+13.1%} {' ' if second['inside'] else '!'}",
                  flush=True)  # fmt: skip
    errors = {"calibrated": summary(rows, "first"), "after_one_run": summary(rows, "second")}
    for which, figures in errors.items():
        print(f"{which}: median {figures['median']:.1%}, P90 {figures['p90']:.1%}, bias {figures['bias']:+.1%}, "
              f"{figures['inside']:.0%} of {figures['rows']} inside the range")  # fmt: skip
    line = json.dumps({"benchmark": "cpu_steps", "version": 1, "machine": platform.processor() or platform.machine(),
                       "date": f"{dt.date.today()}", **errors, "rows": rows})  # fmt: skip
    print(line)
    if options.to:
        options.to.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
