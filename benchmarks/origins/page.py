"""`docs/origins.md`, its table of lines and its transcripts, from `origins.json`: nothing there is written by hand."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.origins.collect import GPUS, documents, kept

from forerun.units import format_bytes, format_percent, format_seconds

DOCS = Path(__file__).parents[2] / "docs"
PAGE, LINES_PAGE, TRANSCRIPTS_PAGE = (DOCS / f"origins{part}.md" for part in ("", "-lines", "-transcripts"))
Content = dict[str, Any]
HEAD = """# The five origins

Five public training projects promised times, memory and scores; this program comes from checking them. Here are the
claims of each document, what the same run is forecast to need today, a small run of the same recipe on a CPU, and what
became of every claim. Written by `python -m benchmarks.origins`; each table has its date. Times on GPUs are forecasts:
no GPU was at hand.

[Line by line](origins-lines.md): what each document wants to do, the command that does it, and whether it works.
[Transcripts](origins-transcripts.md): a first-time user's way through each system, from `forerun recipes` to a used
model.
"""
LINES_HEAD = """# The five origins, line by line

What each document wants to do, and the command that does it. Each was run by `python -m benchmarks.origins lines`; exit
codes 0, 3 (it does not fit) and 4 (a criterion failed) are answers. Seconds are of a machine with two cores that others
used too. Claims and forecasts: [The five origins](origins.md).
"""
TRANSCRIPTS_HEAD = """# The five origins, from `forerun recipes` to a used model

What a first-time user types and sees, each system in a new folder with an empty ledger, one thread of a machine with
two cores that others used too. Written by `python -m benchmarks.origins transcripts`; long outputs are cut in the
middle. Exit code 4 names the criteria that a run missed. The runs of code-lora and okadfa are cut short by their
`--set` options, so they learn little and miss some; whole runs are on the recipes' pages. Claims and forecasts: [The
five origins](origins.md).
"""


def page() -> str:
    """The whole page."""
    parts = kept()
    lines = [HEAD, *_all_gpus(parts.get("forecasts", {}))]
    for document in documents():
        lines += _document(document, parts)
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """All three pages by their files."""
    parts = kept()
    return {
        PAGE: page(),
        LINES_PAGE: "\n".join([LINES_HEAD, *_lines(parts.get("lines", {}))]) + "\n",
        TRANSCRIPTS_PAGE: "\n".join([TRANSCRIPTS_HEAD, *_transcripts(parts.get("transcripts", {}))]) + "\n",
    }


def _all_gpus(forecasts: Content) -> Iterator[str]:
    if not forecasts:
        return
    dates = sorted({entry["date"] for entry in forecasts.values()})
    yield f"## Every full-size run on six GPUs ({' and '.join(dates)})\n"
    yield (
        "Each cell: the most that the device needs (conservative), the run's expected time, its price, and what is "
        "changed to make it fit, or as the card lacks a number format: the mildest of a smaller micro-batch at the "
        "same global batch, and recomputation.\n"
    )
    yield "| run | " + " | ".join(GPUS) + " |"
    yield "|---|" + "---|" * len(GPUS)
    for document in documents():
        for run in document["full"]:
            entry = forecasts.get(f"{document['name']}: {run['name']}")
            if entry is not None:
                cells = {row["gpu"]: _cell(row) for row in entry["content"]["rows"]}
                yield f"| {document['title']}: {run['name']} | " + " | ".join(cells[gpu] for gpu in GPUS) + " |"
    yield ""


def _cell(row: Content) -> str:
    if not row["fits"]:
        return f"does not fit: {format_bytes(row['device_bytes'])} even with {_plain(', '.join(row['changes']))}"
    cost = "no price" if row["cost"] is None else f"${row['cost']:,.2f}"
    changes = ", ".join(row["changes"])
    first = f"{format_bytes(row['device_bytes'])}, {format_seconds(row['run_seconds'])}, {cost}"
    return _plain(f"{first}; {changes}" if changes else first)


def _document(document: Content, parts: Content) -> Iterator[str]:
    yield f"## {document['title']}\n"
    audit = parts.get("audits", {}).get(document["name"])
    if audit is not None:
        yield f"Source: {audit['content']['source']}. Recipe: [{document['recipe']}]({_recipe_page(document)}).\n"
    yield from _forecast_table(document, parts.get("forecasts", {}))
    yield from _run_table(document, parts.get("runs", {}).get(document["name"]))
    if audit is not None:
        yield from _claims_table(document, audit)


def _recipe_page(document: Content) -> str:
    return f"../src/forerun/recipes/{document['recipe'].replace('-', '_')}/README.md"


def _forecast_table(document: Content, forecasts: Content) -> Iterator[str]:
    rows = [(run, forecasts.get(f"{document['name']}: {run['name']}")) for run in document["full"]]
    rows = [(run, entry) for run, entry in rows if entry is not None]
    if not rows:
        return
    yield f"### Promised and forecast, as written, on the {document['on']} ({rows[0][1]['date']})\n"
    heads = ["run", "promised", "allocated, device at most", "step", "rows/s, tokens/s", "run"]
    yield _row(*heads, "of it training, evaluation, checkpoints")
    yield "|---|---|--:|--:|--:|--:|---|"
    for run, entry in rows:
        own = entry["content"]["as_written"]
        if "error" in own:
            yield _row(run["name"], run["promised"], own["error"], "", "", "", "")
            continue
        low, middle, high = (format_seconds(own["run_seconds"][n]) for n in ("optimistic", "expected", "conservative"))
        fits = "" if own["fits"] else ", **does not fit**"
        yield _row(
            run["name"], run["promised"],
            f"{format_bytes(own['allocated_bytes'])}, {format_bytes(own['device_bytes'])}{fits}",
            format_seconds(own["step_seconds"]),
            f"{own['samples_per_second']:,.1f}, {own['tokens_per_second']:,.0f}",
            f"{middle} ({low} to {high})",
            ", ".join(format_seconds(own["phases"][f"{n}_seconds"]) for n in ("training", "evaluation", "checkpoint")),
        )  # fmt: skip
    yield ""


def _run_table(document: Content, entry: Content | None) -> Iterator[str]:
    if entry is None:
        return
    own = entry["content"]
    load = "" if own["others"] is None else f", others used {format_percent(own['others'])} of the processors"
    yield f"### The small run here: `forerun run {document['recipe']}`, {own['started']} (run {own['run']}{load})\n"
    yield from run_lines(own)
    yield ""


def run_lines(own: Content) -> Iterator[str]:
    """Criteria of a recorded run, and forecast beside measured."""
    if own["better_baseline"]:
        yield f"**{own['better_baseline']}.**\n"
    yield "| criterion | value | rule | |"
    yield "|---|--:|---|---|"
    for result in own["criteria"]:
        word = "passed" if result["passed"] else "**failed**" if result["judged"] else "not judged"
        yield f"| {result['name']} | {result['value']:.3f} | {_plain(result['rule'])} | {word} |"
    yield ""
    yield "| | forecast | measured | error |"
    yield "|---|--:|--:|--:|"
    for row in own["rows"]:
        show = format_bytes if row["unit"] == "bytes" else format_seconds
        error = format_percent(row["relative_error"], signed=True)
        yield f"| {row['field']} | {show(row['forecast'])} | {show(row['measured'])} | {error} |"


def _claims_table(document: Content, entry: Content) -> Iterator[str]:
    claims = entry["content"]["claims"]
    counts = Counter(claim["verdict"] for claim in claims)
    said = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    yield f"### What became of its {len(claims)} claims: {said} (`forerun audit {document['name']}`, {entry['date']})\n"
    yield "| line | claim | verdict | right | why |"
    yield "|--:|---|---|---|---|"
    for claim in claims:
        verdict = claim["verdict"] if claim["verdict"] in ("consistent", "unsupported") else f"**{claim['verdict']}**"
        line = "" if claim["line"] is None else claim["line"]
        yield _row(line, claim["quote"], verdict, claim["right"], f"{claim['why']} ({claim['rule']})")
    yield ""


def _lines(entries: Content) -> Iterator[str]:
    yield "| document | line | what it says | command | works | date |"
    yield "|---|--:|---|---|---|---|"
    for entry in entries.values():
        own = entry["content"]
        works = f"{own['works']}, exit {own['exit_code']}, {format_seconds(own['seconds'])}"
        yield _row(own["document"], own["line"], own["says"], f"`{own['command']}`", works, entry["date"])
    yield ""


def _transcripts(entries: Content) -> Iterator[str]:
    for document in documents():
        entry = entries.get(document["title"])
        if entry is None:
            continue
        yield f"## {document['title']} ({entry['date']})\n"
        yield "```text"
        for step in entry["content"]:
            yield f"$ {step['command']}"
            yield from (line.rstrip() for line in step["output"])
            yield f"[exit {step['exit_code']}, {format_seconds(step['seconds'])}]\n"
        yield "```\n"


def _row(*cells: object) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _plain(text: object) -> str:
    """Text that fits into one cell."""
    return " ".join(str(text).replace("|", "/").split())
