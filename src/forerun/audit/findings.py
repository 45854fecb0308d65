"""The result of an audit: one finding for each check, one verdict for each claim, counts for each document.

Verdicts, from best to worst:

    consistent    the arithmetic, the physics and what is recorded allow it, and nothing is left unsaid
    unsupported   possible, but nothing shows it: no run, no source, or only part of it is right
    wrong         arithmetic, an exact count, a comparison or a recorded outcome contradicts it
    impossible    beyond a physical or mathematical bound

The rules R01 to R25 are those of the study of five public training projects that this product comes from; each says
what it holds against a claim, and where that comes from.
"""

from typing import Literal

from forerun.audit.quantities import Agreement
from forerun.records import Record
from forerun.settings.schema import Section

AUDIT_SCHEMA = "forerun.audit/1"
Verdict = Literal["consistent", "unsupported", "wrong", "impossible"]
VERDICTS: tuple[Verdict, ...] = ("consistent", "unsupported", "wrong", "impossible")
FAILED = ("wrong", "impossible")


class Rule(Record):
    """One thing that a claim is held against."""

    says: str
    source: str


ARITHMETIC = "arithmetic"
RULES = {
    "R01": Rule(says="implied FLOP/s: impossible above the peak, implausible above 80 %, rare above 60 %",
                source="Chowdhery et al. 2022 (PaLM), appendix B, for the count; peaks: GPU catalogue"),
    "R02": Rule(says="time of a step times steps is the time of the run", source=ARITHMETIC),
    "R03": Rule(says="parts add up to their total; products and ratios are right", source=ARITHMETIC),
    "R04": Rule(says="a loss is not below its floor, nor at chance beside a good score",
                source="Khosla et al. 2020 (supervised contrastive loss), equation 2; entropy of a uniform choice"),
    "R05": Rule(says="a part of memory is parameters times bytes, or what a layer keeps",
                source="Rajbhandari et al. 2020 (ZeRO), section 3; Korthikanti et al. 2022, equation 2"),
    "R06": Rule(says="the peak of memory fits the device", source="forerun forecast, or sizes of the named buffers"),
    "R07": Rule(says="schedules count optimizer updates; warm-up takes at most 10 % of them",
                source="the PyTorch optimizer API: a schedule steps once an update; 10 %: stated"),
    "R08": Rule(says="a parameter count is within 3 % of the model's, every tensor counted once",
                source="the architecture built on the meta device"),
    "R09": Rule(says="a model of a family's name has that family's size",
                source="architecture catalogue"),
    "R10": Rule(says="at most 4 passes over the data, at least one token a parameter from random weights",
                source="Muennighoff et al. 2023 (arXiv 2305.16264); one token a parameter: stated"),
    "R11": Rule(says="a target is better than what a trivial method reaches", source="the named baseline"),
    "R12": Rule(says="a score is further from the trivial one than its noise", source="Wilson 1927"),
    "R13": Rule(says="a difference can be told at the given number of samples",
                source="Fleiss 1981 (two proportions, 5 %, power 80 %)"),
    "R14": Rule(says="a speed-up is not above the ratio of the devices; peaks are of one number format",
                source="GPU catalogue; Amdahl 1967"),
    "R15": Rule(says="time follows the work", source="FLOP of the architecture built on the meta device"),
    "R16": Rule(says="a reduction is smaller after than before", source=ARITHMETIC),
    "R17": Rule(says="a scaling rule is called by its name and applied to a batch that changed",
                source="Goyal et al. 2017 (linear); Krizhevsky 2014 (square root)"),
    "R18": Rule(says="a benchmark has the shape of what it is for, repeats, and keeps the device busy",
                source="forward FLOP of the architecture over the catalogue's peak"),
    "R19": Rule(says="a search parameter has an effect, and is neither the objective nor the seed nor the precision",
                source="Bergstra and Bengio 2012 on ineffective dimensions; stated for the rest"),
    "R20": Rule(says="one document says one thing", source="the document itself"),
    "R21": Rule(says="what is claimed to be active changes something", source="the recorded measurement"),
    "R22": Rule(says="a label cannot be told from metadata alone", source="the recorded measurement"),
    "R23": Rule(says="evaluation, checkpoints and start-up are part of a run's time, at the size they have",
                source="forerun forecast, or generated tokens over their rate"),
    "R24": Rule(says="a file is at least as large as the parameters in it", source="parameters times bytes"),
    "R25": Rule(says="a number has a run or a source behind it", source="the document itself"),
    "device": Rule(says="a device is what it is called", source="GPU catalogue"),
    "recorded": Rule(says="a forecast is what came out", source="the recorded outcome"),
    "verdict": Rule(says="a criterion is met as the run's verdict has it", source="the run's verdict"),
    "program": Rule(says="code does what is said of it", source="the code, followed step by step"),
}  # fmt: skip
"""The last four are beside R01 to R25: facts of devices, of outcomes, of runs and of programs."""


class Check(Section):
    """One thing to hold a claim against; each kind adds its word, `kind`, and its own fields."""

    of: str | None = None
    """Name of the configuration that the claim is about; the first one without it."""


class Finding(Record):
    """One check of one claim."""

    kind: str = ""
    rule: str
    verdict: Verdict
    right: str
    """The right number, with its unit."""
    formula: str
    source: str
    said: str = ""
    """What is wrong or open, in words; a caveat where the claim is consistent."""


class AuditedClaim(Record):
    """One claim with all its findings; the worst of them is the verdict."""

    id: str
    quote: str
    line: int | None = None
    note: str = ""
    verdict: Verdict
    findings: list[Finding]

    @property
    def worst(self) -> Finding:
        """The finding that decides; the first of several."""
        return max(self.findings, key=lambda finding: VERDICTS.index(finding.verdict))


class AuditReport(Record):
    """The audit of one document."""

    document: str
    source: str = ""
    claims: list[AuditedClaim]

    @property
    def counts(self) -> dict[str, int]:
        """Claims by verdict."""
        return {verdict: sum(claim.verdict == verdict for claim in self.claims) for verdict in VERDICTS}

    @property
    def passed(self) -> bool:
        """Nothing is wrong or impossible."""
        return not any(claim.verdict in FAILED for claim in self.claims)


def finding(
    rule: str, verdict: Verdict, *, right: str, formula: str, remark: str = "", source: str | None = None
) -> Finding:
    """A finding by a rule; its source is the rule's unless another is given."""
    default_source = RULES[rule].source
    return Finding(
        rule=rule, verdict=verdict, right=right, formula=formula, source=source or default_source, said=remark
    )


def verdict_of(agreement: Agreement, worst: Verdict = "wrong") -> Verdict:
    """The verdict that follows from comparing a claimed quantity with the right one; `worst` is for ranges apart."""
    return "consistent" if agreement == "agree" else "unsupported" if agreement == "partly" else worst
