"""Which packages of a lock file have a published vulnerability? `python audit.py LOCK`, where pip-audit is installed.

pip-audit says "No known vulnerabilities found", with exit code 0, where the index has no advisories at all. So one
package is asked about first, and a package that could not be looked up counts as not audited.

Exit codes: 0 nothing known; 1 vulnerabilities; 2 (some of) the packages could not be audited.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(lock: Path) -> int:
    """Print one line for each vulnerability; the exit code."""
    pins = re.findall(r"^([\w.-]+==[^\s;]+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for few in (pins[:1], pins):
        lines, code = judge(advisories(few))
        if code == 2:
            break
    print("\n".join(lines), file=sys.stdout if code == 0 else sys.stderr)
    return code


def advisories(pins: list[str]) -> dict[str, Any]:
    """What pip-audit writes about these requirements, each `name==version`; nothing where it could not ask."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--no-deps", "--format", "json"]
        result = subprocess.run([*command, "--requirement", file.name], capture_output=True, text=True)
    if not result.stdout.strip():
        last = result.stderr.strip().splitlines()[-1:]
        return {"dependencies": [{"name": pins[0], "skip_reason": "".join(last)}]}
    return json.loads(result.stdout)


def judge(document: dict[str, Any]) -> tuple[list[str], int]:
    """Lines to print and the exit code of pip-audit's JSON."""
    packages = document["dependencies"]
    skipped = [package for package in packages if "skip_reason" in package]
    vulnerable = [
        f"{package['name']} {package['version']}: {finding['id']}, fixed in {', '.join(finding['fix_versions']) or '-'}"
        for package in packages
        for finding in package.get("vulns", [])
    ]
    if skipped:
        vulnerable.append(
            f"audit: {len(skipped)} of {len(packages)} packages asked about could not be audited: "
            f"{skipped[0]['skip_reason']}. Use an index with advisories (pypi.org)."
        )
        return vulnerable, 2
    return vulnerable or [f"audit: no known vulnerability in {len(packages)} packages"], 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
