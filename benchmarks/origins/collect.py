"""What the page of the origins is made of: audits, forecasts on six GPUs, and the newest run of each recipe here.

Each part is a dated entry of `origins.json`, so that one that takes an hour need not be made again with the others.
"""

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.api import find_device, forecast_settings, resolve
from forerun.audit.check import audit
from forerun.audit.claims import load_claims
from forerun.audit.shipped_claims import shipped_documents
from forerun.cli.options import ledger_url
from forerun.errors import ForerunError
from forerun.ledger.store import Ledger, open_ledger
from forerun.runs.registry import criteria_of, load_recipe
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.verify.compare import verify

FOLDER = Path(__file__).parent
FILE = FOLDER / "origins.json"
GPUS = ("t4", "l4", "rtx-3090", "rtx-4090", "a100-40gb", "h100-80gb")
Content = dict[str, Any]


def documents() -> list[Content]:
    """The five documents, in their order."""
    return tomllib.loads((FOLDER / "documents.toml").read_text(encoding="utf-8"))["document"]


def kept() -> Content:
    """The parts that were made, by name; empty before the first."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def keep(part: str, name: str, content: Any) -> None:
    """Enter one entry of a part, with its date."""
    parts = kept()
    parts.setdefault(part, {})[name] = {"date": datetime.now(UTC).date().isoformat(), "content": content}
    FILE.write_text(json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def make_audits(say: Callable[[str], None], enter: Callable[[str, str, Any], None] = keep) -> None:
    """Every claim of every document with its verdict, the right number and why."""
    paths = shipped_documents()
    for document in documents():
        say(document["name"])
        report = audit(
            load_claims(paths[document["name"]]), lambda settings, gpu: forecast_settings(settings, find_device(gpu))
        )
        claims = [
            {
                "id": claim.id, "line": claim.line, "quote": claim.quote, "verdict": claim.verdict,
                "right": claim.worst.right, "why": claim.worst.said or claim.worst.formula, "rule": claim.worst.rule,
            }
            for claim in report.claims
        ]  # fmt: skip
        enter("audits", document["name"], {"source": report.source, "claims": claims})


def make_forecasts(say: Callable[[str], None]) -> None:
    """Each full-size run on each GPU: as written, and with the changes that make it fit."""
    for document in documents():
        for run in document["full"]:
            settings, started = resolve(run["target"], run.get("set", [])), time.perf_counter()
            content: Content = {"rows": [_on(settings, gpu) for gpu in GPUS]}
            content["as_written"] = _as_written(settings, document["on"])
            keep("forecasts", f"{document['name']}: {run['name']}", content)
            say(f"{document['name']}: {run['name']}, {time.perf_counter() - started:.0f} s")


def ladder(settings: Settings, *, has_bf16: bool) -> Iterator[tuple[str, ...]]:
    """Overrides that make a run smaller, the mildest first: number format, micro-batch at its global batch, blocks."""
    formats = () if has_bf16 or "bf16" not in settings.precision else ("precision=fp16-mixed",)
    size, steps = settings.batch.micro_batch_size, settings.batch.gradient_accumulation_steps
    sizes = [size // 2**n for n in range(size.bit_length()) if size % 2**n == 0]
    for blocks in ((), ("activation_checkpointing=blocks",)):
        if blocks and settings.activation_checkpointing != "none":
            return
        for smaller in sizes:
            at_size = () if smaller == size else (
                f"batch.micro_batch_size={smaller}", f"batch.gradient_accumulation_steps={steps * size // smaller}",
            )  # fmt: skip
            yield (*formats, *at_size, *blocks)


def _on(settings: Settings, gpu: str) -> Content:
    """The run on a GPU with the first rung of the ladder that fits."""
    device, forecast = find_device(gpu), None
    changes: tuple[str, ...] = ()
    for changes in ladder(settings, has_bf16=device.has_bf16):
        forecast = forecast_settings(settings_from(settings.model_dump(), changes), device)
        if forecast.fits:
            return {
                "gpu": gpu, "fits": True, "changes": changes, "cost": forecast.run.cost,
                "device_bytes": forecast.memory.device_bytes.conservative,
                "step_seconds": forecast.step.seconds.expected, "run_seconds": forecast.run.seconds.expected,
            }  # fmt: skip
    assert forecast is not None, "a ladder has a first rung"
    least = forecast.memory.device_bytes.conservative
    return {"gpu": gpu, "fits": False, "changes": changes, "device_bytes": least}


def _as_written(settings: Any, gpu: str) -> Content:
    """The forecast on the GPU that the document speaks of, nothing changed."""
    try:
        forecast = forecast_settings(settings, find_device(gpu))
    except ForerunError as error:
        return {"gpu": gpu, "error": str(error)}
    run = forecast.run
    return {
        "gpu": gpu, "fits": forecast.fits, "allocated_bytes": forecast.memory.peak_allocated_bytes,
        "device_bytes": forecast.memory.device_bytes.conservative, "step_seconds": forecast.step.seconds.expected,
        "run_seconds": run.seconds.model_dump(), "cost": run.cost, "phases": run.phases.model_dump(),
        "tokens_per_second": forecast.step.tokens_per_second,
        "samples_per_second": forecast.step.samples_per_second,
    }  # fmt: skip


def make_runs(say: Callable[[str], None]) -> None:
    """The newest finished run of each recipe's own settings in the ledger here, with its verdict."""
    with open_ledger(ledger_url()) as ledger:
        for document in documents():
            content = _newest(ledger, document["recipe"])
            if content is None:
                say(f"{document['recipe']}: no finished run of its own settings; forerun run {document['recipe']}")
                continue
            keep("runs", document["name"], content)
            say(f"{document['recipe']}: run {content['run']}")


def _newest(ledger: Ledger, recipe: str) -> Content | None:
    own = load_recipe(recipe).SETTINGS.model_dump(mode="json", exclude={"data", "evaluation"})
    for row in ledger.runs(1000):
        forecast, measured = ledger.forecast(row.id), ledger.measurement(row.id)
        settings = settings_from(row.settings)
        is_own = settings.model_dump(mode="json", exclude={"data", "evaluation"}) == own
        if row.workload != recipe or forecast is None or measured is None or not is_own:
            continue
        verdict = verify(row.id, forecast, measured, criteria_of(recipe, settings))
        figures = {each.field: each.model_dump(mode="json") for each in verdict.rows}
        return {
            "run": row.id, "started": row.started_at[:10], "threads": measured.versions.get("threads"),
            "criteria": [result.model_dump(mode="json") for result in verdict.criteria],
            "better_baseline": verdict.better_baseline, "passed": verdict.passed,
            "rows": [figures[n] for n in ("step.seconds", "peak_allocated_bytes", "run.seconds") if n in figures],
            "others": measured.evidence.other_processes_share,
        }  # fmt: skip
    return None
