"""Does the audit accuse claims that are true? Measured step times and published names, none of them used for its rules.

    python -m benchmarks.audit_true_claims

Step times: the measured runs of `benchmarks/scoreboard/rows` (their sources are there), each as the claim "an update
takes so long", without saying that it was measured. Names: every model of the catalogue as the claim that it has as
many parameters as its name says. Prints how many of each verdict, and every row that is accused.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.scoreboard.rows import Row, load_rows

from forerun.audit.check import check_one
from forerun.audit.findings import FAILED, Finding
from forerun.errors import UnknownModel
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from

SIMILAR: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-bigcode-santacoder": ("santacoder", {}),
    "opt-350m": (
        "opt-125m",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096},
    ),
    "pythia-410m": ("pythia-160m", {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096}),
    "gpt3-xl": ("gpt2", {"n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048}),
    "gpt3-2.7b": ("gpt2", {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048}),
}
"""Models of the measured programs that the catalogue has under another name, or as another size of a family."""
LORA = {"kind": "lora", "rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "c_attn", "c_proj"]}
PRECISIONS = {"supervised-tuning": "bf16-true", "attention-benchmark": "fp16-true", "forward-backward": "fp32"}
SIZE = re.compile(r"-(\d+(?:\.\d+)?[mb])$")


def main() -> None:
    """Audit both sets and print the counts."""
    for title, claims in (("step times", step_times()), ("names", names())):
        findings = list(claims)
        print(title, dict(Counter(finding.verdict for _, finding in findings)))
        for name, finding in findings:
            if finding.verdict in FAILED:
                print("  accused:", name, finding.verdict, finding.right, finding.said)


def step_times() -> Iterator[tuple[str, Finding]]:
    """Each measured update of the scoreboard whose model the catalogue has."""
    for row in load_rows():
        if row.step_seconds is None:
            continue
        check = {"kind": "speed", "time": f"{row.step_seconds} s", "per": "update"}
        with contextlib.suppress(UnknownModel):
            yield row.id, check_one(check, {"gpu": row.gpu, "settings": configuration(row)})


def configuration(row: Row) -> dict[str, Any]:
    """Settings of a measured program, as far as arithmetic goes."""
    if row.program == "settings":
        return settings_from(row.settings["settings"]).model_dump()
    program = row.settings
    name, config = SIMILAR.get(program["model"], (program["model"], {}))
    return {
        "workload": "masked-lm" if "bert" in name else "causal-lm",
        "model": {"name": name, "config": config},
        "precision": PRECISIONS[row.program],
        "batch": {"micro_batch_size": program["batch"], "sequence_length": program["length"]},
        "adapter": LORA if program.get("lora") else {"kind": "none"},
        "activation_checkpointing": "blocks" if row.program == "supervised-tuning" else "none",
    }


def names() -> Iterator[tuple[str, Finding]]:
    """The catalogue's models whose name ends in a size."""
    for row in architectures():
        size = SIZE.search(row.name)
        if size is not None:
            yield row.name, check_one({"kind": "parameters", "model": row.name, "claimed": size.group(1).upper()})


if __name__ == "__main__":
    main()
