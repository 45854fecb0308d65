"""The pages of the five origins, and the recorded figures on recipes' pages: `python -m benchmarks.origins PART …`.

Parts: audits, forecasts, runs, lines, transcripts, profiles, people. Without one the pages are written again from what
was kept (`origins.json`). `audits` takes about a minute, `forecasts` (eleven full-size runs on six GPUs) half an hour
on two cores, `lines` ten minutes, `profiles` ten; `transcripts` runs every system once below `./runs/origins`, some
twelve minutes, and `runs` reads their ledgers, or else the one here. `people=FILE` asks the exported detector of the
transcripts about people's rows of FILE (fields: `data/corpus.py` of the recipe; several with commas) and of the
standard library, five minutes. Else `PART=TEXT` makes only the entries whose name contains TEXT. No GPU, weights or
network are used. Method version 3.
"""

import sys

from benchmarks.origins.collect import make_audits, make_forecasts, make_people, make_profiles, make_runs
from benchmarks.origins.page import pages
from benchmarks.origins.recipe_pages import recipe_pages
from benchmarks.origins.shell import make_lines, make_transcripts

PARTS = {
    "audits": make_audits, "forecasts": make_forecasts, "runs": make_runs, "lines": make_lines,
    "transcripts": make_transcripts, "profiles": make_profiles, "people": make_people,
}  # fmt: skip


def main() -> None:
    """Make the parts that are named, and write the page."""
    parts = [argument.partition("=") for argument in sys.argv[1:]]
    unknown = [name for name, _, _ in parts if name not in PARTS]
    if unknown:
        sys.exit(f"No part {unknown[0]!r}. Parts: {', '.join(PARTS)}.")
    for name, _, only in parts:
        PARTS[name](lambda what: print(what, file=sys.stderr, flush=True), only)
    for path, text in (pages() | recipe_pages()).items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
