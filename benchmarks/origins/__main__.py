"""The page of the five origins: `python -m benchmarks.origins [audits] [forecasts] [runs] [lines] [transcripts]`.

Without a word the page is written again from what was kept (`origins.json`). `audits` takes about a minute, `forecasts`
(ten full-size runs on six GPUs) about half an hour on two cores, `lines` ten minutes; `runs` reads the newest run of
each recipe from the ledger (`forerun run NAME` makes one); `transcripts` runs every system once, some twelve minutes.
No GPU, weights or network are used. Method version 1.
"""

import sys

from benchmarks.origins.collect import make_audits, make_forecasts, make_runs
from benchmarks.origins.page import PAGE, page
from benchmarks.origins.shell import make_lines, make_transcripts

PARTS = {
    "audits": make_audits, "forecasts": make_forecasts, "runs": make_runs, "lines": make_lines,
    "transcripts": make_transcripts,
}  # fmt: skip


def main() -> None:
    """Make the parts that are named, and write the page."""
    unknown = [name for name in sys.argv[1:] if name not in PARTS]
    if unknown:
        sys.exit(f"No part {unknown[0]!r}. Parts: {', '.join(PARTS)}.")
    for name in sys.argv[1:]:
        PARTS[name](lambda what: print(what, file=sys.stderr, flush=True))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
