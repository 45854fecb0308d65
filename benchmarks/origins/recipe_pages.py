"""Figures on the recipes' pages that come from `origins.json`: what stands between two marks is written by this file.

    <!-- figures: NAME, by python -m benchmarks.origins -->  …  <!-- end of figures -->

`run`: the newest recorded run of the recipe's own settings. `profiles`: forecasts of `profiles.toml`, side by side;
`profiles KINDS`: those whose `table` is `KINDS`. `decisions`: the exported detector's thresholds and rates; `people`:
its rates on people whom it has not seen.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.origins.collect import FOLDER, documents, kept
from benchmarks.origins.page import run_lines

from forerun.recipes.code_detector.evaluation.unseen_people import unseen_people
from forerun.units import format_bytes, format_percent, format_seconds

RECIPES = Path(__file__).parents[2] / "src" / "forerun" / "recipes"
BLOCK = re.compile(
    r"(?P<head><!-- figures: (?P<name>[a-z]+)(?: (?P<table>[a-z-]+))?, by python -m benchmarks\.origins -->\n)"
    r"(?P<body>.*?)"
    r"(?P<end><!-- end of figures -->)",
    re.DOTALL,
)
Content = dict[str, Any]
PREVALENCES = ("0.01", "0.05", "0.1", "0.5")


def profiles() -> list[Content]:
    """The forecasts that recipes' pages show, in their order."""
    return tomllib.loads((FOLDER / "profiles.toml").read_text(encoding="utf-8"))["profile"]


def recipe_pages() -> dict[Path, str]:
    """Each recipe's page by its file, with every block as it is today."""
    parts = kept()
    texts = {}
    for document in documents():
        path = RECIPES / document["recipe"].replace("-", "_") / "README.md"
        texts[path] = with_figures(path.read_text(encoding="utf-8"), document, parts)
    return texts


def with_figures(text: str, document: Content, parts: Content) -> str:
    """A page with what stands between its marks replaced."""

    def body(match: re.Match[str]) -> str:
        if match["name"] == "profiles":
            lines = _profiles(document, parts, match["table"] or "")
        else:
            lines = {"run": _run, "decisions": _decisions, "people": _people}[match["name"]](document, parts)
        return match["head"] + "\n".join(lines) + "\n" + match["end"]

    return BLOCK.sub(body, text)


def _run(document: Content, parts: Content) -> Iterator[str]:
    entry = parts.get("runs", {}).get(document["name"])
    if entry is None:
        yield "No run is recorded."
        return
    own = entry["content"]
    load = "" if own["others"] is None else f", others used {format_percent(own['others'])} of the processors"
    yield f"Run {own['run']}, {own['started']}, threads: {own['threads'] or 'not recorded'}{load}."
    yield ""
    yield from run_lines(own)


def _decisions(document: Content, parts: Content) -> Iterator[str]:
    """Thresholds by budget with their rates on test, of the exported detector's card."""
    entry = parts.get("detectors", {}).get(document["name"])
    if entry is None:
        yield "No exported detector is recorded."
        return
    own = entry["content"]
    yield f"Run {own['run']}, exported {entry['date']}. Intervals of 95 %. Alone: the detector without the other."
    yield ""
    yield "| budget | thresholds: detector, second opinion | TPR on test | alone | FPR on test | alone | PPV at " + (
        " / ".join(f"{float(share):.0%}" for share in PREVALENCES)
    ) + " AI-written |"  # fmt: skip
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    for place, point in enumerate(own["points"]):
        if point["threshold"] is None:
            yield f"| {100 * point['budget']:g} % | none can be promised | | | | | |"
            continue
        alone = own["alone"][place] if own["alone"] else {}
        ppv = " / ".join(f"{point['ppv'][prevalence]:.2f}" for prevalence in PREVALENCES)
        yield (
            f"| {100 * point['budget']:g} % | {point['threshold']:.3f}, {_rate(point, 'second_threshold')} "
            f"| {point['tpr']:.3f} | {_rate(alone, 'tpr')} | {point['fpr']:.3f} ({point['fpr_low']:.3f} to "
            f"{point['fpr_high']:.3f}) | {_rate(alone, 'fpr')} | {ppv} |"
        )


def _rate(figures: Content, name: str) -> str:
    """A figure that detectors without a second opinion lack."""
    return "none" if figures.get(name) is None else f"{figures[name]:.3f}"


def _people(document: Content, parts: Content) -> Iterator[str]:
    """Rates on people whom the recorded detector has not seen."""
    people = unseen_people()
    yield f"Run {people.run}, {people.date}, at a promise of {people.budget:.0%}."
    yield ""
    yield "| people's files of | language | flagged | share (95 %) | promise | without the second opinion |"
    yield "|---|---|--:|--:|---|--:|"
    for row in people.rates:
        share = f"{row.flagged / row.files:.1%} ({row.low:.1%} to {row.high:.1%})"
        promise = row.promise(people.budget)
        word = f"**{promise}**" if promise == "broken" else promise
        alone = "" if row.flagged_alone is None else f"{row.flagged_alone:,}"
        flagged = f"{row.flagged:,} of {row.files:,}"
        yield f"| {row.label} | {row.language or ''} | {flagged} | {share} | {word} | {alone} |"


def _profiles(document: Content, parts: Content, table: str) -> Iterator[str]:
    made = [
        (each["name"], parts["profiles"][key])
        for each in profiles()
        if (each["recipe"], each.get("table", "")) == (document["recipe"], table)
        and (key := profile_key(each)) in parts.get("profiles", {})
    ]
    dates = sorted({entry["date"] for _, entry in made})
    yield f"Forecasts of {' and '.join(dates)}; the commands are in `benchmarks/origins/profiles.toml`."
    yield ""
    yield "| | " + " | ".join(name for name, _ in made) + " |"
    yield "|---|" + "--:|" * len(made)
    for label, show in ROWS.items():
        yield f"| {label} | " + " | ".join(show(entry["content"]) for _, entry in made) + " |"


def profile_key(profile: Content) -> str:
    """Name of a profile's entry in `origins.json`."""
    return f"{profile['recipe']}: {profile['name']}"


def _range(seconds: Content) -> str:
    low, middle, high = (format_seconds(seconds[n]) for n in ("optimistic", "expected", "conservative"))
    return f"{middle} ({low} to {high})"


ROWS = {
    "GPU": lambda own: own["gpu"],
    "fits": lambda own: "yes" if own["fits"] else "**no**",
    "peak allocated": lambda own: format_bytes(own["allocated_bytes"]),
    "device, at most": lambda own: format_bytes(own["device_bytes"]),
    "activations": lambda own: format_bytes(own["breakdown"]["activation_bytes"]),
    "weights, gradients, optimizer": lambda own: ", ".join(
        format_bytes(own["breakdown"][f"{name}_bytes"]) for name in ("parameter", "gradient", "optimizer_state")
    ),
    "step": lambda own: _range(own["step_seconds"]),
    "rows a second": lambda own: f"{own['samples_per_second']:,.1f}",
    "run": lambda own: _range(own["run_seconds"]),
    "of it training": lambda own: format_seconds(own["phases"]["training_seconds"]),
    "of it evaluation": lambda own: format_seconds(own["phases"]["evaluation_seconds"]),
    "of it checkpoints": lambda own: format_seconds(own["phases"]["checkpoint_seconds"]),
    "share of the peak": lambda own: format_percent(own["mfu"]),
    "cost": lambda own: "no price" if own["cost"] is None else f"${own['cost']:,.2f}",
}
"""Rows of the table of profiles, each with how a forecast shows it."""
