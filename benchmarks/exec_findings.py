"""What `forerun exec` finds in scripts with a fault built in, and in the same scripts without it.

    python -m benchmarks.exec_findings        prints a table (Markdown) and one JSON line

Exit 1 where a fault is not found, something else is, or a clean script has a finding. Times of making batches are those
of this machine. Method version 1.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from forerun.units import format_bytes, format_seconds

SCRIPTS = Path(__file__).parents[1] / "tests" / "scripts"
CASES = (
    *(("faulty.py", fault, "a10", 1) for fault in ("grows", "no-gradient", "fp32-product")),
    *(
        ("wasteful.py", fault, "a100-40gb", 1)
        for fault in (
            "host-sync",
            "waits-for-data",
            "attention-held",
            "logits-held",
            "accumulation-not-divided",
            "host-work",
        )
    ),
    ("wasteful.py", "missing-sampler", "a100-40gb", 4),
)
CLEAN = (
    ("faulty.py", "none", "a10", 1), ("wasteful.py", "none", "a100-40gb", 1),
    ("wasteful.py", "accumulation", "a100-40gb", 1), ("wasteful.py", "sampler", "a100-40gb", 4),
)  # fmt: skip
"""The same scripts without a fault; the last two accumulate and shard their rows as they should."""


def findings_of(script: str, argument: str, gpu: str, ranks: int) -> list[dict[str, Any]]:
    """The findings of one script.

    Raises:
        RuntimeError: it does not run.
    """
    several = [] if ranks == 1 else ["--nproc-per-node", str(ranks)]
    command = [sys.executable, "-m", "forerun", "exec", "--gpu", gpu, *several, "--json", "--"]
    process = subprocess.run(
        [*command, "python", str(SCRIPTS / script), argument], capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{script} {argument} ended with {process.returncode}: {process.stderr[-500:]}")
    return json.loads(process.stdout)["findings"]


def cost_of(finding: dict[str, Any]) -> str:
    """Its bytes or seconds, as people read them."""
    if finding.get("bytes"):
        return format_bytes(finding["bytes"])
    return format_seconds(finding["seconds"]) if finding.get("seconds") else "–"


def main() -> None:
    """Print the table and one JSON line."""
    rows, wrong = [], []
    print("| script | fault built in | ranks | found | line | cost |\n|---|---|--:|---|---|--:|")
    for script, fault, gpu, ranks in (*CASES, *CLEAN):
        findings = findings_of(script, fault, gpu, ranks)
        kinds = [each["kind"] for each in findings]
        is_clean = (script, fault, gpu, ranks) in CLEAN
        if kinds != ([] if is_clean else [fault]):
            wrong.append(f"{script} {fault}: {kinds}")
        first = findings[0] if findings else {}
        found, line = ", ".join(kinds) or "nothing", first.get("line", "–")
        print(
            f"| {script} | {'none' if is_clean else fault} | {ranks} | {found} | {line} | {cost_of(first)} |",
            flush=True,
        )
        rows.append({"script": script, "argument": fault, "findings": findings})
    print(json.dumps({"benchmark": "exec_findings", "version": 1, "rows": rows, "wrong": wrong}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
