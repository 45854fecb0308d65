"""What the page of the origins is made of: audits, forecasts on six GPUs, and the newest run of each recipe here.

Each part is a dated entry of `origins.json`, so that one that takes an hour need not be made again with the others.
"""

import fcntl
import json
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.api import find_device, forecast_on_cards, forecast_settings, requests_of, resolve
from forerun.audit.check import audit
from forerun.audit.claims import load_claims
from forerun.audit.shipped_claims import shipped_documents
from forerun.cli.options import ledger_url
from forerun.data.plan import BatchShape
from forerun.forecasting.traces import step_trace
from forerun.ledger.store import Ledger, open_ledger
from forerun.memory.card import replay_on_card
from forerun.records import Forecast
from forerun.runs.registry import criteria_of, load_recipe
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.verify.compare import verify

FOLDER = Path(__file__).parent
FILE = FOLDER / "origins.json"
RUNS = Path("runs") / "origins"
"""Folders of the transcripts, with their ledgers, in the current folder."""
LOOKED_AT = ("gcj2020_", "leetcode_", "whodunit_", "the standard library")
"""Sources of people's code on which the windows and the second opinion of code-detector were chosen."""
GPUS = ("t4", "l4", "rtx-3090", "rtx-4090", "a100-40gb", "h100-80gb")
Content = dict[str, Any]


def documents() -> list[Content]:
    """The five documents, in their order."""
    return tomllib.loads((FOLDER / "documents.toml").read_text(encoding="utf-8"))["document"]


def kept(file: Path = FILE) -> Content:
    """The parts that were made, by name; empty before the first."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def keep(part: str, name: str, content: Any, file: Path = FILE) -> None:
    """Enter one entry of a part, with its date.

    Parts that are made at the same time each keep theirs, and a stop leaves the file as it was: all that is there took
    an hour and a half to make.
    """
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the kernel lets go of it when the process ends, however that ends
        parts = kept(file)
        parts.setdefault(part, {})[name] = {"date": datetime.now(UTC).date().isoformat(), "content": content}
        partial = file.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(parts, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())  # else a power cut may leave the new name on an empty file
        partial.replace(file)
    finally:
        os.close(folder)


def make_audits(say: Callable[[str], None], only: str = "", enter: Callable[[str, str, Any], None] = keep) -> None:
    """Every claim of every document with its verdict, the right number and why."""
    paths = shipped_documents()
    for document in documents():
        if only not in document["name"]:
            continue
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


def make_forecasts(say: Callable[[str], None], only: str = "") -> None:
    """Each full-size run whose name contains `only` on each GPU: as written, and with the changes that make it fit."""
    for document in documents():
        for run in document["full"]:
            name = f"{document['name']}: {run['name']}"
            if only not in name:
                continue
            settings, started = resolve(run["target"], run.get("set", [])), time.perf_counter()
            rows, as_written = _on_cards(settings, document["on"])
            keep("forecasts", name, {"rows": rows, "as_written": as_written})
            say(f"{name}, {time.perf_counter() - started:.0f} s")


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


def _on_cards(settings: Settings, written_for: str) -> tuple[list[Content], Content]:
    """The run on each GPU with the first rung of the ladder that fits; and as written, on the document's own GPU.

    Cards that stand on the same rung are forecast together, from data that are opened once.
    """
    ladders = {gpu: ladder(settings, has_bf16=find_device(gpu).has_bf16) for gpu in GPUS}
    rungs, rows, as_written = {gpu: next(ladders[gpu]) for gpu in GPUS}, {}, {"gpu": written_for, "error": "not run"}
    while rungs:
        changes = min(rungs.values(), key=len)
        at = settings_from(settings.model_dump(), changes)
        standing = [gpu for gpu in rungs if rungs[gpu] == changes]
        roomy = _with_room(at, standing)
        last = {gpu: next(ladders[gpu], None) for gpu in standing}
        gpus = [gpu for gpu in standing if gpu in roomy or last[gpu] is None or (gpu == written_for and not changes)]
        for gpu, forecast in zip(gpus, forecast_on_cards(at, [find_device(gpu) for gpu in gpus]), strict=True):
            if gpu == written_for and not changes:
                as_written = _as_written(gpu, forecast)
            rows[gpu] = _row(gpu, changes, forecast)
        for gpu in standing:
            following = None if gpu in gpus and rows[gpu]["fits"] else last[gpu]
            if following is None:
                del rungs[gpu]
            else:
                rungs[gpu] = following
    return [rows[gpu] for gpu in GPUS], as_written


def _with_room(settings: Settings, gpus: Sequence[str]) -> list[str]:
    """The GPUs on which the longest training step fits; a full forecast says whether the run does."""
    kept = []
    for request in requests_of(settings, [find_device(gpu) for gpu in gpus], None):
        shape = BatchShape(request.settings.batch.micro_batch_size, request.plan.longest.length)
        if replay_on_card(step_trace(request, shape), request.device).fits:
            kept.append(request.device.name)
    return kept


def _row(gpu: str, changes: tuple[str, ...], forecast: Forecast) -> Content:
    row = {
        "gpu": gpu, "fits": forecast.fits, "changes": changes,
        "device_bytes": forecast.memory.device_bytes.conservative,
    }  # fmt: skip
    if not forecast.fits:
        return row
    step, run = forecast.step.seconds.expected, forecast.run
    return row | {"cost": run.cost, "step_seconds": step, "run_seconds": run.seconds.expected}


def _as_written(gpu: str, forecast: Forecast) -> Content:
    """The forecast on the GPU that the document speaks of, nothing changed."""
    run = forecast.run
    return {
        "gpu": gpu, "fits": forecast.fits, "allocated_bytes": forecast.memory.peak_allocated_bytes,
        "device_bytes": forecast.memory.device_bytes.conservative, "step_seconds": forecast.step.seconds.expected,
        "run_seconds": run.seconds.model_dump(), "cost": run.cost, "phases": run.phases.model_dump(),
        "tokens_per_second": forecast.step.tokens_per_second,
        "samples_per_second": forecast.step.samples_per_second,
    }  # fmt: skip


def make_profiles(say: Callable[[str], None], only: str = "") -> None:
    """The forecasts that recipes' pages show."""
    for profile in tomllib.loads((FOLDER / "profiles.toml").read_text(encoding="utf-8"))["profile"]:
        name = f"{profile['recipe']}: {profile['name']}"
        if only not in name:
            continue
        forecast = forecast_settings(resolve(profile["target"], profile["set"]), find_device(profile["gpu"]))
        content = _as_written(profile["gpu"], forecast) | {
            "step_seconds": forecast.step.seconds.model_dump(), "mfu": forecast.step.mfu,
            "breakdown": forecast.memory.breakdown.model_dump(),
        }  # fmt: skip
        keep("profiles", name, content)
        say(name)


def make_runs(say: Callable[[str], None], only: str = "") -> None:
    """The newest finished run of each recipe's own settings: of its transcript's ledger, or else of the one here."""
    for document in documents():
        if only not in document["name"]:
            continue
        own = RUNS / document["name"] / "ledger.sqlite"
        with open_ledger(f"sqlite:///{own}" if own.exists() else ledger_url()) as ledger:
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
            "run": row.id, "started": row.started_at[:10], "threads": measured.evidence.threads,
            "criteria": [result.model_dump(mode="json") for result in verdict.criteria],
            "better_baseline": verdict.better_baseline, "passed": verdict.passed,
            "rows": [figures[n] for n in ("step.seconds", "peak_allocated_bytes", "run.seconds") if n in figures],
            "others": measured.evidence.other_processes_share, "metrics": measured.metrics,
        }  # fmt: skip
    return None


def make_people(say: Callable[[str], None], only: str = "") -> None:
    """How often the exported detector of the transcripts flags people whom it has not seen.

    `only` names files of people's rows, with commas between them.
    """
    from benchmarks.detector_errors import MOST_FILES, of_library, of_sources

    from forerun.recipes.code_detector.evaluation.unseen_people import FILE as SHIPPED
    from forerun.recipes.code_detector.evaluation.unseen_people import UnseenPeople
    from forerun.recipes.code_detector.service.serving import open_detector

    folders = sorted((RUNS / "0-code-guard" / "runs").glob("*/export"))
    if not folders:
        say(f"No export below {RUNS / '0-code-guard'}; python -m benchmarks.origins transcripts=0-code-guard")
        return
    detector = open_detector(folders[-1])
    files = [Path(name) for name in only.split(",") if name]
    measured = [of_library(detector), *(rate for file in files for rate in of_sources(detector, file, MOST_FILES))]
    rates = [rate.model_copy(update={"looked_at": rate.name.startswith(LOOKED_AT)}) for rate in measured]
    card = detector.card
    points = {name: [each.model_dump(mode="json") for each in own] for name, own in
              (("points", card.points), ("alone", card.alone))}  # fmt: skip
    keep("detectors", "0-code-guard", {"run": folders[-1].parent.name, **points})
    people = UnseenPeople(
        run=folders[-1].parent.name, date=datetime.now(UTC).date().isoformat(), budget=card.served.budget,
        rates=tuple(sorted((rate for rate in rates if rate.files), key=lambda rate: rate.name)),
    )  # fmt: skip
    SHIPPED.write_text(people.model_dump_json(indent=1) + "\n", encoding="utf-8")
    say(people.sentence())
